"""The data that flows through uavlab: frozen dataclasses of tensors with fixed leading axes.

Axes: R independent runs held in one process, B worlds (R x worlds per run, flat), N rows of a batch per run, A agents,
O observation features, D action dimensions. ``*lead`` is B in a world and R N in a batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

T = TypeVar("T")

Rule = tuple[tuple[str, ...], Callable[..., bool], str]
"""Settings that belong together: their names, what must hold of their values, and what to say, ``{0}`` the first."""


@dataclass_transform(frozen_default=True)
def tensors(cls: type[T]) -> type[T]:
    """Make a frozen dataclass whose fields are tensors or other ``@tensors`` objects."""
    return dataclass(frozen=True, eq=False)(cls)


def tree_map(fn: Callable[..., Any], tree: T, *others: T) -> T:
    """Apply ``fn`` to each tensor of ``tree`` (and to its namesakes in ``others``), keeping the structure."""
    if isinstance(tree, Tensor):
        return fn(tree, *others)
    parts = {
        f.name: tree_map(fn, getattr(tree, f.name), *(getattr(other, f.name) for other in others))
        for f in fields(tree)  # type: ignore[arg-type]
    }
    return type(tree)(**parts)


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of ``tree`` with its dotted name, in declaration order."""
    if isinstance(tree, Tensor):
        yield prefix, tree
        return
    for f in fields(tree):
        yield from leaves(getattr(tree, f.name), f"{prefix}.{f.name}" if prefix else f.name)


def load_leaves(tree: T, state: dict[str, Tensor], prefix: str) -> T:
    """Rebuild ``tree`` from tensors named like its leaves, on the devices that it has now."""
    names = iter([f"{prefix}.{name}" for name, _ in leaves(tree)])
    return tree_map(lambda leaf: state[next(names)].to(leaf.device).clone(), tree)


def where_world(mask: Bool[Tensor, " B"], chosen: Tensor, other: Tensor) -> Tensor:
    """Take each world of ``chosen`` where ``mask`` is true and of ``other`` elsewhere."""
    return torch.where(mask.view(-1, *[1] * (chosen.dim() - 1)), chosen, other)


def select(mask: Bool[Tensor, " B"], chosen: T, other: T) -> T:
    """Do the same leaf by leaf."""
    return tree_map(lambda a, b: where_world(mask, a, b), chosen, other)


@dataclass(frozen=True)
class EnvSpec:
    """What a learner and a source must know of an environment.

    Attributes:
        agents: Agents per world (A).
        obs: Observation features per agent (O); of maps, an agent's channels (C).
        action: Continuous action dimensions per agent (D), each in [-1, 1]; 1 where agents choose.
        horizon: Steps after which an episode is truncated.
        dt: Duration of one step (s).
        initial_noise: Uniform numbers in [0, 1) that ``initial`` consumes per world.
        step_noise: Uniform numbers in [0, 1) that ``transition`` consumes per world and step.
        groups: One label per agent; agents with the same label are interchangeable and may share a network.
        choices: Moves that agents choose among (E); 0 where actions are continuous.
        team: Of maps, the channels that a critic may see beyond the agents' own (K).
        side: Of maps, rows and columns (L); 0 where observations are vectors.
        centred: Maps are drawn around each agent, and a critic's shall be, too.
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


@dataclass(frozen=True)
class Metric:
    """One figure by which a flight is judged.

    Attributes:
        name: Its key in results.
        over: How an episode's steps become one number: ``last`` live step, ``mean`` or ``sum`` over live steps.
        unit: Unit for tables and axes; empty for shares.
        better: ``high`` or ``low``.
    """

    name: str
    over: str
    unit: str = ""
    better: str = "high"


@tensors
class Transition:
    """One step's lesson, and one row of replay.

    Attributes:
        obs: What each agent saw before acting.
        action: What it did, in [-1, 1].
        reward: What it earned.
        next_obs: What it saw next: the true successor, recorded before any reset.
        terminated: The agent's task ended here, so nothing is bootstrapped.
        truncated: The time limit cut the episode; bootstrapping goes on.
    """

    obs: Float[Tensor, "*lead A O"]
    action: Float[Tensor, "*lead A D"]
    reward: Float[Tensor, "*lead A"]
    next_obs: Float[Tensor, "*lead A O"]
    terminated: Bool[Tensor, "*lead A"]
    truncated: Bool[Tensor, "*lead"]


@tensors
class MapObs:
    """What a team sees that chooses moves on a grid, one agent after the other.

    Attributes:
        maps: What each agent sees.
        team: What a critic may see beyond that, the same for all.
        place: Cell of the maps in which each agent is, row * L + column.
        legal: Moves that each agent may choose, at least one.
        target_cell: Cell that each move leads to, as a number; no two agents move into one in the same step.
    """

    maps: Float[Tensor, "*lead A C L L"]
    team: Float[Tensor, "*lead K L L"]
    place: Int[Tensor, "*lead A"]
    legal: Bool[Tensor, "*lead A E"]
    target_cell: Int[Tensor, "*lead A E"]


@tensors
class Rollout:
    """Whole episodes of W worlds, T steps each, and what was seen and chosen after the last of them.

    Attributes:
        obs: What each agent saw.
        action: What it chose.
        reward: What it earned.
        live: Its task had not ended before the step.
        terminated: Its task ended with the step, so nothing is bootstrapped.
    """

    obs: MapObs  # R T+1 W ...
    action: Int[Tensor, "R T+1 W A"]
    reward: Float[Tensor, "R T W A"]
    live: Bool[Tensor, "R T W A"]
    terminated: Bool[Tensor, "R T W A"]


@tensors
class Inputs:
    """Where observations lie and how much they vary, per run, agent and feature: what a fresh network is fitted to."""

    center: Float[Tensor, "R A O"]
    scale: Float[Tensor, "R A O"]


@dataclass(frozen=True)
class Batch:
    """Rows drawn by a source: ``data`` has leading axes R N; ``weight`` are importance weights, None for uniform."""

    data: Any
    index: Int[Tensor, "R N"]
    weight: Float[Tensor, "R N"] | None = None


@dataclass(frozen=True)
class Update:
    """What a learner returns: metrics still on the device, and how far each agent's value of each row was off."""

    metrics: dict[str, Shaped[Tensor, "R ..."]]
    td_error: Float[Tensor, "R N A"] | None = None
