"""Tiny tasks of one step whose best action is known, to see whether a learner improves at all."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.types import EnvSpec, MapObs, Metric, tensors

AGENTS, CHOICES, SIDE = 2, 4, 3


@tensors
class Turn:
    """Worlds in which every agent acts once; ``start`` is the noise of the beginning."""

    start: Float[Tensor, " B"]
    done: Bool[Tensor, " B"]
    step: Int[Tensor, " B"]


@dataclass(frozen=True)
class Bandit:
    """Two agents, each rewarded for an action near ``best``.

    Attributes:
        best: The best action, in [-1, 1].
        scale: The reward is minus this times the distance to the best action.
    """

    best: float = 0.5
    scale: float = 10.0
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("distance", "last", better="low"),)
    score: ClassVar[dict[str, float]] = {"distance": -1.0}
    highest: ClassVar[float] = 0.0

    @property
    def spec(self) -> EnvSpec:
        """Shapes of the task."""
        return EnvSpec(AGENTS, obs=1, action=1, horizon=1, dt=1.0, initial_noise=1, step_noise=0, groups=(0,) * AGENTS)

    def initial(self, noise: Float[Tensor, "B 1"]) -> Turn:
        """Create worlds, all equal."""
        return _start(noise)

    def transition(self, state: Turn, action: Float[Tensor, "B A 1"], noise: Float[Tensor, "B 0"]) -> Turn:
        """End the task."""
        return replace(state, done=torch.ones_like(state.done), step=state.step + 1)

    def observe(self, state: Turn) -> Float[Tensor, "B A 1"]:
        """Return one constant feature."""
        return state.start.new_ones(len(state.start), AGENTS, 1)

    def reward(self, state: Turn, action: Float[Tensor, "B A 1"], after: Turn) -> Float[Tensor, "B A"]:
        """Return minus the scaled distance to the best action."""
        return -self.scale * (action[..., 0].clamp(-1, 1) - self.best).abs()

    def terminated(self, state: Turn) -> Bool[Tensor, "B A"]:
        """Return whether the step was taken."""
        return state.done[:, None].expand(-1, AGENTS)

    def measure(self, state: Turn, action: Float[Tensor, "B A 1"], after: Turn) -> dict[str, Float[Tensor, " B"]]:
        """Return the mean distance to the best action."""
        return {"distance": (action[..., 0].clamp(-1, 1) - self.best).abs().mean(-1)}


@dataclass(frozen=True)
class MoveBandit:
    """Two agents that choose among four moves on a map, rewarded 1 for the move ``best``.

    Attributes:
        best: Number of the best move.
    """

    best: int = 2
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("chosen", "last"),)
    score: ClassVar[dict[str, float]] = {"chosen": 1.0}
    highest: ClassVar[float] = 1.0

    @property
    def spec(self) -> EnvSpec:
        """Shapes of the task."""
        return EnvSpec(AGENTS, 1, 1, 1, 1.0, 1, 0, groups=(0,) * AGENTS, choices=CHOICES, team=1, side=SIDE)

    def initial(self, noise: Float[Tensor, "B 1"]) -> Turn:
        """Create worlds, all equal."""
        return _start(noise)

    def transition(self, state: Turn, action: Int[Tensor, "B A"], noise: Float[Tensor, "B 0"]) -> Turn:
        """End the task."""
        return replace(state, done=torch.ones_like(state.done), step=state.step + 1)

    def observe(self, state: Turn) -> MapObs:
        """Return constant maps; every move is open, and leads to another cell for each agent."""
        worlds, device = len(state.start), state.start.device
        cells = torch.arange(AGENTS * CHOICES, device=device).view(AGENTS, CHOICES)
        return MapObs(
            maps=state.start.new_ones(worlds, AGENTS, 1, SIDE, SIDE),
            team=state.start.new_ones(worlds, 1, SIDE, SIDE),
            place=torch.arange(AGENTS, device=device).repeat(worlds, 1),
            legal=torch.ones(worlds, AGENTS, CHOICES, dtype=torch.bool, device=device),
            target_cell=cells.repeat(worlds, 1, 1),
        )

    def reward(self, state: Turn, action: Int[Tensor, "B A"], after: Turn) -> Float[Tensor, "B A"]:
        """Return 1 for the best move, otherwise 0."""
        return (action == self.best).to(state.start.dtype)

    def terminated(self, state: Turn) -> Bool[Tensor, "B A"]:
        """Return whether the move was taken."""
        return state.done[:, None].expand(-1, AGENTS)

    def measure(self, state: Turn, action: Int[Tensor, "B A"], after: Turn) -> dict[str, Float[Tensor, " B"]]:
        """Return the share of agents that chose the best move."""
        return {"chosen": self.reward(state, action, after).mean(-1)}


def _start(noise: Float[Tensor, "B 1"]) -> Turn:
    step = torch.zeros_like(noise[:, 0], dtype=torch.int64)
    return Turn(start=noise[:, 0].clone(), done=step.bool(), step=step)
