"""Which agent uses which network: the assignment to a team's agents, and the rows of tables that follow from it."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.groups import own_actions
from uavlab.core.types import EnvSpec


def assign_networks(trained: EnvSpec, team: EnvSpec, share: bool) -> tuple[int, ...]:
    """Return the index of each agent's network: that of its group if networks are shared, else its own.

    In a team of another size without shared networks, agents use the network of the first agent of their group.
    """
    padded = [(spec.obs, spec.action, spec.choices) for spec in (trained, team)]
    own = [own_widths(spec) for spec in (trained, team)]
    if padded[0] != padded[1] or not own[1].items() <= own[0].items():
        raise ConfigError(
            f"policy: trained on {describe_groups(trained)}, to be used with {describe_groups(team)}; expected agents "
            "of trained groups that see and do the same."
        )
    if not share and team.agents == trained.agents:
        return tuple(range(team.agents))
    rows = sorted(set(trained.groups)) if share else list(trained.groups)
    return tuple(rows.index(group) for group in team.groups)


def own_widths(spec: EnvSpec) -> dict[int, tuple[int, int]]:
    """Return for each label of a group the observations of its agents, and their actions or moves, without padding."""
    obs = [part.obs for part in spec.parts for _ in range(part.agents)] or [spec.obs] * spec.agents
    return dict(zip(spec.groups, zip(obs, own_actions(spec), strict=True), strict=True))


def describe_groups(spec: EnvSpec) -> str:
    """Return what the agents of each group see and do, as in ``group 0 (12 observations, 2 actions)``."""
    kind = "moves" if spec.choices else "actions"
    groups = [f"group {n} ({seen} observations, {done} {kind})" for n, (seen, done) in own_widths(spec).items()]
    padding = f", padded to {spec.obs} and {spec.choices or spec.action}" if spec.parts else ""
    return ", ".join(groups) + padding


def require_same_task(trained: EnvSpec, team: EnvSpec) -> None:
    """Check that a team has the maps, features and actions of the one trained; its size may differ."""
    tasks = [(spec.obs, spec.side, spec.features, spec.choices, spec.action, spec.centred) for spec in (trained, team)]
    if tasks[0] != tasks[1]:
        text = [
            "{} channels of side {}, {} features, {} moves and {} actions (centred: {})".format(*task) for task in tasks
        ]
        raise ConfigError(f"policy: trained on {text[0]}, to be used with {text[1]}; expected the same of both.")


def per_agent(rows: Float[Tensor, "G ..."], runs: int, networks: tuple[int, ...]) -> Float[Tensor, "R A ..."]:
    """Return the row of each agent's network, as a view if the rows are consecutive."""
    return of_agents(rows.unflatten(0, (runs, -1)), networks)


def of_agents(table: Float[Tensor, "R K ..."], networks: tuple[int, ...]) -> Float[Tensor, "R A ..."]:
    """Return for each agent what its network has, as a view if the networks are consecutive.

    An index that is a tensor would come from the host, for which a GPU waits.
    """
    if networks == tuple(range(table.shape[1])):
        return table
    first = networks[0]
    if networks == tuple(range(first, first + len(networks))):
        return table[:, first : first + len(networks)]
    return torch.cat([table[:, n : n + 1] for n in networks], 1)


def by_network(
    reduce: Callable[[Tensor, int], Tensor], x: Float[Tensor, "R A ..."], networks: tuple[int, ...]
) -> Float[Tensor, "R K ..."]:
    """Return for each network the sum or mean (``reduce``) over its agents; ``x`` itself if each agent has its own."""
    if networks == tuple(range(len(networks))):
        return x
    return torch.stack([reduce(of_agents(x, members(networks, n)), 1) for n in range(len(set(networks)))], 1)


def members(networks: tuple[int, ...], network: int) -> tuple[int, ...]:
    return tuple(agent for agent, own in enumerate(networks) if own == network)
