"""Teams of groups that observe and do different things: their description, and values of all agents and of each group.

A batch has one width, that of the widest group; other groups are padded by zeros, or by moves that are never legal. So
are their actions: dimensions beyond an agent's own are 0, and have neither density nor entropy.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote
from uavlab.core.types import EnvSpec, Group


def team_spec(
    *groups: Group, horizon: int, dt: float = 1.0, initial_noise: int, step_noise: int = 0, deaths: bool = False
) -> EnvSpec:
    """Return the ``EnvSpec`` of a team of groups, whose agents have consecutive numbers in the order of the groups.

    >>> tag.agents, tag.obs, tag.action, tag.groups
    (4, 12, 3, (0, 0, 0, 1))

    Raises:
        ConfigError: There is no group, two have one name, or some act continuously while others choose moves.
    """
    names = [group.name for group in groups]
    if not groups or len(set(names)) < len(names):
        raise ConfigError(f"team_spec: got groups {names}; expected at least one, each with a name of its own.")
    for group in groups:
        if group.agents < 1 or group.obs < 1 or (group.action < 1) == (group.choices < 1):
            raise ConfigError(
                f"team_spec: got {group}; expected agents and obs of at least 1, and either action or choices of at "
                "least 1."
            )
    if len({group.choices > 0 for group in groups}) > 1:
        raise ConfigError(
            "team_spec: some groups have continuous actions and others choose moves; expected one kind for all: let "
            "the former choose among directions, or read the latter's move from the sign of an action."
        )
    labels: list[int] = []
    for group in groups:
        first = max(labels, default=-1) + 1
        labels += [first if group.share else first + n for n in range(group.agents)]
    return EnvSpec(
        agents=len(labels),
        obs=max(group.obs for group in groups),
        action=max(1, *(group.action for group in groups)),
        horizon=horizon,
        dt=dt,
        initial_noise=initial_noise,
        step_noise=step_noise,
        groups=tuple(labels),
        choices=max(group.choices for group in groups),
        parts=groups,
        deaths=deaths,
    )


def join_groups(spec: EnvSpec, values: Mapping[str, Tensor]) -> Tensor:
    """Return values of all agents from those of each group, such as rewards (B A), observations or legal moves (B A O).

    The last axis of three is padded to the widest: by zeros, or false.

    >>> ul.join_groups(tag, {"hunters": torch.ones(5, 3, 12), "prey": torch.ones(5, 1, 10)}).shape
    torch.Size([5, 4, 12])

    Raises:
        ConfigError: A group is missing, unknown, or has another number of agents.
    """
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    if any(shapes.get(part.name, ())[1:2] != (part.agents,) for part in spec.parts) or len(shapes) > len(spec.parts):
        expected = ", ".join(f"{part.name} (B, {part.agents}, ...)" for part in spec.parts)
        raise ConfigError(f"join_groups: got {quote(shapes)}; expected {expected or 'a spec of team_spec'}.")
    each = [values[part.name] for part in spec.parts]
    if each[0].dim() > 2:
        width = max(value.shape[-1] for value in each)
        each = [value if value.shape[-1] == width else F.pad(value, (0, width - value.shape[-1])) for value in each]
    return torch.cat(each, 1)


def split_groups(spec: EnvSpec, values: Tensor) -> dict[str, Tensor]:
    """Return the values of each group, views of those of all agents (B A ...), such as actions or positions.

    >>> {name: tuple(action.shape) for name, action in ul.split_groups(tag, torch.zeros(5, 4, 3)).items()}
    {'hunters': (5, 3, 3), 'prey': (5, 1, 3)}
    """
    return dict(zip((p.name for p in spec.parts), values.split([p.agents for p in spec.parts], 1), strict=True))


def own_actions(spec: EnvSpec) -> tuple[int, ...]:
    """Return the action dimensions of each agent, or its moves where agents choose, without padding.

    >>> own_actions(tag)
    (2, 2, 2, 3)
    """
    if not spec.parts:
        return (spec.choices or spec.action,) * spec.agents
    return tuple(part.choices or part.action for part in spec.parts for _ in range(part.agents))


def padded_actions(spec: EnvSpec, device: torch.device) -> Bool[Tensor, "A D"] | None:
    """Mark the action dimensions beyond each agent's own; None if there are none, or if agents choose moves.

    >>> padded_actions(tag, torch.device("cpu"))[:, 2]
    tensor([ True,  True,  True, False])
    """
    own = own_actions(spec)
    if spec.choices or min(own) == spec.action:
        return None
    dimension = torch.arange(spec.action, device=device)
    return torch.stack([dimension >= count for count in own])  # a tensor of ``own`` would be a host sync
