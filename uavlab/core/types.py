"""Data types: frozen dataclasses of tensors with fixed leading axes, and functions over them.

Axes: R independent runs in one process, B worlds (R x worlds per run, flat), N rows of a batch per run, A agents,
O observation features, D action dimensions. ``*lead`` is B in a world and R N in a batch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any, TypeVar, dataclass_transform

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote

T = TypeVar("T")

Rule = tuple[tuple[str, ...], Callable[..., bool], str]
"""A condition on several settings: their names, the condition on their values, and a message with ``{0}``, ``{1}``."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def tensors(cls: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass whose fields are tensors or other ``@tensors`` objects."""
    return dataclass(frozen=True, eq=False)(cls)


def tree_map(fn: Callable[..., Any], tree: T, *others: T) -> T:
    """Apply ``fn`` to each tensor of ``tree`` and those of its name in ``others``; what a tree lacks stays None."""
    if tree is None:
        return tree
    if isinstance(tree, Tensor):
        return fn(tree, *others)
    parts = {}
    for f in fields(tree):  # type: ignore[arg-type]
        part = getattr(tree, f.name)
        rest = [getattr(other, f.name) for other in others] if others else []
        parts[f.name] = fn(part, *rest) if isinstance(part, Tensor) else tree_map(fn, part, *rest)
    return type(tree)(**parts)


def leaves(tree: Any, prefix: str = "") -> list[tuple[str, Tensor]]:
    """Return every tensor of ``tree`` with its dotted name, in declaration order."""
    if isinstance(tree, Tensor):
        return [(prefix, tree)]
    found = []
    for f in fields(tree) if tree is not None else ():
        name, part = f"{prefix}.{f.name}" if prefix else f.name, getattr(tree, f.name)
        if isinstance(part, Tensor):
            found.append((name, part))
        elif part is not None:
            found += leaves(part, name)
    return found


def load_leaves(tree: T, state: dict[str, Tensor], prefix: str) -> T:
    """Rebuild ``tree`` from a state dict with the names of its leaves, on its present devices."""
    names = iter([f"{prefix}.{name}" for name, _ in leaves(tree)])
    return tree_map(lambda leaf: state[next(names)].to(leaf.device).clone(), tree)


def where_world(mask: Bool[Tensor, " B"], chosen: Tensor, other: Tensor) -> Tensor:
    return torch.where(mask.view(-1, *[1] * (chosen.dim() - 1)), chosen, other)


def select(mask: Bool[Tensor, " B"], chosen: T, other: T) -> T:
    """Apply ``where_world`` to every tensor of two trees."""
    return tree_map(partial(where_world, mask), chosen, other)


Count = Annotated[int, Ge(0), Le(256)]
"""A number of things in a world."""


@dataclass(frozen=True)
class Entities:
    """Two kinds of things that a vector observation lists, and moves that are pairs of them, such as UAV and target.

    An observation holds the features of all rows, then those of all columns, then how many nearest rows and columns
    count as neighbours. The first feature of a thing is 1 if it counts, or 0; the next two are its place. Move
    (row x M + column) x S + s is the s-th of the pair (row, column).

    Attributes:
        rows: Things that act (N).
        columns: Things on which they act (M).
        features: Features of each thing (F).
        moves: Moves of each pair (S).
    """

    rows: int
    columns: int
    features: int
    moves: int

    @property
    def width(self) -> int:
        """Features of an observation."""
        return (self.rows + self.columns) * self.features + 2

    def split(
        self, x: Float[Tensor, "*lead O"]
    ) -> tuple[Float[Tensor, "*lead N F"], Float[Tensor, "*lead M F"], Float[Tensor, "*lead 2"]]:
        """Return the features of rows and of columns, and the numbers of neighbours."""
        row, column, near = x.split([self.rows * self.features, self.columns * self.features, 2], -1)
        return row.unflatten(-1, (self.rows, -1)), column.unflatten(-1, (self.columns, -1)), near

    def masks(self, x: Float[Tensor, "*lead O"]) -> tuple[Bool[Tensor, "*lead N"], Bool[Tensor, "*lead M"]]:
        """Return which rows and which columns count, such as UAVs that are alive and targets that are visible."""
        row, column, _ = self.split(x)
        return row[..., 0] > 0, column[..., 0] > 0


def first_slots(unit: Float[Tensor, " B"], limits: tuple[int, int], slots: int) -> Bool[Tensor, "B slots"]:
    """Mark the first slots of each world, as many as ``unit`` draws, uniformly within the limits."""
    fewest, most = limits
    count = fewest + (unit * (most - fewest + 1)).long()
    return torch.arange(slots, device=unit.device) < count[:, None]


@dataclass(frozen=True)
class Group:
    """Agents that observe and do the same, one part of a team (``uavlab.core.types.team_spec``).

    >>> hunters, prey = ul.Group("hunters", 3, obs=12, action=2), ul.Group("prey", 1, obs=10, action=3)
    >>> tag = ul.team_spec(hunters, prey, horizon=25, initial_noise=8)

    Attributes:
        name: What scores and tables call it.
        agents: Agents of the group.
        obs: Observation features per agent.
        action: Continuous action dimensions per agent, each in [-1, 1]; 0 where actions are choices.
        choices: Moves among which an agent chooses; 0 where actions are continuous.
        share: Whether its agents are interchangeable and may share a network.
    """

    name: str
    agents: int
    obs: int
    action: int = 0
    choices: int = 0
    share: bool = True


@dataclass(frozen=True)
class EnvSpec:
    """Shapes, time scale and noise of an environment.

    Attributes:
        agents: Agents per world (A).
        obs: Observation features per agent (O); where agents observe maps, an agent's channels (C).
        action: Continuous action dimensions per agent (D), each in [-1, 1]; 1 where actions are choices.
        horizon: Steps after which an episode is truncated.
        dt: Duration of one step (s).
        initial_noise: Uniform numbers in [0, 1) that ``initial`` needs per world.
        step_noise: Uniform numbers in [0, 1) that ``transition`` needs per world and step.
        groups: One label per agent; agents with the same label are interchangeable and may share a network.
        choices: Moves among which an agent chooses (E); 0 where actions are continuous.
        team: Additional map channels that a critic sees (K).
        side: Rows and columns of maps (L); 0 where observations are vectors.
        features: Features that an agent observes beside its maps (F); 0 without, and where observations are vectors.
        centred: Maps are egocentric: the agent is in the centre. A critic's additional maps are centred likewise.
        parts: Groups of different agents, in the order of agents; empty where all observe and do the same. ``obs``,
            ``action`` and ``choices`` are those of the widest group, and further numbers of an agent are padding.
        deaths: An agent's task may end while those of others go on; then replay marks the agent's rows before its end.
        entities: Things that an observation lists, and moves that are pairs of them; None for other observations.
    """

    agents: int
    obs: int
    action: int
    horizon: int
    dt: float
    initial_noise: int
    step_noise: int
    groups: tuple[int, ...]
    choices: int = 0
    team: int = 0
    side: int = 0
    centred: bool = False
    features: int = 0
    parts: tuple[Group, ...] = ()
    deaths: bool = False
    entities: Entities | None = None


def differences(spec: EnvSpec, other: EnvSpec) -> str:
    """Return what differs between two descriptions, as ``agents 3 -> 4, obs 12 -> 14``."""
    pairs = [(f.name, getattr(spec, f.name), getattr(other, f.name)) for f in fields(spec)]
    return ", ".join(f"{name} {before} -> {after}" for name, before, after in pairs if before != after)


# Teams of groups that observe and do different things. A batch has one width, that of the widest group; other groups
# are padded by zeros, or by moves that are never legal. So are their actions: dimensions beyond an agent's own are 0,
# and have neither density nor entropy.


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
    """Return the action dimensions of each agent, or its moves where agents choose, without padding."""
    if not spec.parts:
        return (spec.choices or spec.action,) * spec.agents
    return tuple(part.choices or part.action for part in spec.parts for _ in range(part.agents))


def padded_actions(spec: EnvSpec, device: torch.device) -> Bool[Tensor, "A D"] | None:
    """Mark the action dimensions beyond each agent's own; None if there are none, or if agents choose moves."""
    own = own_actions(spec)
    if spec.choices or min(own) == spec.action:
        return None
    dimension = torch.arange(spec.action, device=device)
    return torch.stack([dimension >= count for count in own])  # a tensor of ``own`` would be a host sync


@dataclass(frozen=True)
class Metric:
    """One figure of an episode.

    Attributes:
        name: Key in results.
        over: Reduction over an episode's steps: value at the ``last`` step, ``mean``, ``sum``, or ``outcome``: the last
            value, 0 or 1, of which the share of episodes is of interest.
        unit: Unit in tables and axes; empty for shares.
        better: Whether ``high`` or ``low`` values are better.
        bounds: Smallest and largest possible value of an episode, where intervals end. Those of an outcome are 0 and 1.
    """

    name: str
    over: str
    unit: str = ""
    better: str = "high"
    bounds: tuple[float, float] = (-math.inf, math.inf)


@tensors
class Transition:
    """A transition of all agents, the row of a replay buffer.

    Attributes:
        obs: Observations before the action, of the type ``observation_type``.
        action: Actions in [-1, 1], or numbers of moves.
        reward: Rewards of the step.
        next_obs: Observations after the action, before any reset.
        terminated: The agent's task ended with this step; its value is not bootstrapped.
        truncated: The time limit ended the episode; values are bootstrapped.
        stage_number: The stage of a curriculum at which the world started, from 0; None without a curriculum.
    """

    obs: Any  # Float[Tensor, "*lead A O"] | ChoiceObs | MapObs
    action: Float[Tensor, "*lead A D"] | Int[Tensor, "*lead A"]
    reward: Float[Tensor, "*lead A"]
    next_obs: Any
    terminated: Bool[Tensor, "*lead A"]
    truncated: Bool[Tensor, "*lead"]
    stage_number: Int[Tensor, "*lead"] | None = field(default=None, kw_only=True)


@tensors
class LiveTransition(Transition):
    """A transition of a team whose agents may end before the others (``EnvSpec.deaths``)."""

    live: Bool[Tensor, "*lead A"]  # the task had not ended before the step; from other rows the agent must not learn


@tensors
class ChoiceObs:
    """Observations of a team whose agents choose moves, all at once.

    >>> obs = ul.ChoiceObs(features=torch.zeros(5, 2, 7), legal=torch.ones(5, 2, 4, dtype=torch.bool))
    >>> obs.legal.shape  # 5 worlds, 2 agents, 4 moves
    torch.Size([5, 2, 4])

    Attributes:
        features: What each agent observes.
        legal: Moves that each agent may choose, at least one.
    """

    features: Float[Tensor, "*lead A O"]
    legal: Bool[Tensor, "*lead A E"]


@tensors
class MapObs:
    """Observations of a team that sees maps, and acts by continuous actions, or by moves chosen one after the other.

    What ``spec`` does not describe is None.

    >>> obs = ul.MapObs(maps=torch.zeros(5, 2, 3, 9, 9), features=torch.zeros(5, 2, 4))
    >>> obs.features.shape, obs.legal  # 5 worlds, 2 agents with 3 maps of 9 x 9 cells and 4 features; no moves
    (torch.Size([5, 2, 4]), None)

    Attributes:
        maps: Maps of each agent.
        team: Additional maps for a critic, the same for all agents.
        place: Cell of each agent in the maps, row * L + column; where agents choose moves, or ``team`` is centred.
        legal: Moves that each agent may choose, at least one; where agents choose moves.
        target_cell: Number of the cell that each move leads to; agents share one only if no other is left.
        features: What each agent observes beside its maps.
    """

    maps: Float[Tensor, "*lead A C L L"]
    team: Float[Tensor, "*lead K L L"] | None = None
    place: Int[Tensor, "*lead A"] | None = None
    legal: Bool[Tensor, "*lead A E"] | None = None
    target_cell: Int[Tensor, "*lead A E"] | None = None
    features: Float[Tensor, "*lead A F"] | None = None


NO_FLOATS = {"legal": torch.bool, "place": torch.int64, "target_cell": torch.int64}
"""Types of those tensors of observations that hold no floating point numbers."""


def observation_type(spec: EnvSpec) -> type:
    """Return the class of a team's observations: ``Tensor``, ``ChoiceObs`` or ``MapObs``."""
    if spec.side:
        return MapObs
    return ChoiceObs if spec.choices else Tensor


def observation_shapes(spec: EnvSpec, *lead: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a team's observations by name, which is empty for a ``Tensor``."""
    agents, square, kind = (*lead, spec.agents), (spec.side, spec.side), observation_type(spec)
    vectors, moves = (*agents, spec.obs), (*agents, spec.choices)
    if kind is Tensor:
        return {"": vectors}
    if kind is ChoiceObs:
        return {"features": vectors, "legal": moves}
    shapes = {
        "maps": ((*vectors, *square), True),
        "team": ((*lead, spec.team, *square), spec.team),
        "place": (agents, spec.choices or (spec.centred and spec.team)),
        "legal": (moves, spec.choices),
        "target_cell": (moves, spec.choices),
        "features": ((*agents, spec.features), spec.features),
    }
    return {name: shape for name, (shape, described) in shapes.items() if described}


def features_of(obs: Any) -> Float[Tensor, "*lead A O"]:
    """Return the vectors that agents observe, alone or beside maps and moves; None of a team without."""
    return obs if isinstance(obs, Tensor) else obs.features


def legal_of(obs: Any) -> Bool[Tensor, "*lead A E"] | None:
    """Return the moves that agents may choose; None where actions are continuous."""
    return None if isinstance(obs, Tensor) else obs.legal


@tensors
class Rollout:
    """Whole episodes of W worlds, T steps each, with the observation and action after the last step.

    Attributes:
        obs: Observations, of the type ``observation_type``.
        action: Actions in [-1, 1], or numbers of moves.
        reward: Rewards.
        live: The agent's task had not ended before the step.
        terminated: The agent's task ended with the step; its value is not bootstrapped.
    """

    obs: Any  # Float[Tensor, "R T+1 W A O"] | ChoiceObs | MapObs
    action: Float[Tensor, "R T+1 W A D"] | Int[Tensor, "R T+1 W A"]
    reward: Float[Tensor, "R T W A"]
    live: Bool[Tensor, "R T W A"]
    terminated: Bool[Tensor, "R T W A"]


@tensors
class Steps:
    """T consecutive steps of W worlds; a world that ends is replaced, so they may cross the ends of episodes.

    Fields are those of a ``LiveTransition``. ``ended`` marks agents whose task, or whose world's episode, ended with
    the step: later steps tell nothing of its value.
    """

    obs: Any  # Float[Tensor, "R T W A O"] | ChoiceObs | MapObs
    action: Float[Tensor, "R T W A D"] | Int[Tensor, "R T W A"]
    reward: Float[Tensor, "R T W A"]
    next_obs: Any
    live: Bool[Tensor, "R T W A"]
    terminated: Bool[Tensor, "R T W A"]
    ended: Bool[Tensor, "R T W A"]


@tensors
class Scale:
    """Mean and standard deviation by which a network's inputs or outputs are normalised."""

    center: Float[Tensor, "*lead F"]
    spread: Float[Tensor, "*lead F"]


@dataclass(frozen=True)
class Batch:
    """Rows of a source: ``data`` (leading axes R N), indices, and importance weights (None if uniform).

    ``data`` is a ``Transition`` from replay, a ``Rollout`` of whole episodes, or ``Steps``; with steps of a policy with
    memory comes its ``memory`` before the first one. With ``discount``, rewards are sums over several steps, and it is
    the discount of values after the last one.
    """

    data: Any
    index: Int[Tensor, "R N"]
    weight: Float[Tensor, "R N"] | None = None
    memory: Float[Tensor, "R W A M"] | None = None
    discount: Float[Tensor, "R N"] | None = None


@dataclass(frozen=True)
class Update:
    """Result of an update: metrics on the device, and the absolute TD error of each row and agent, for priorities."""

    metrics: dict[str, Shaped[Tensor, "R ..."]]
    td_error: Float[Tensor, "R N A"] | None = None
