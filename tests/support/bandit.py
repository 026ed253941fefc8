"""A task of one step whose best action is known, on which a learner must improve."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from uavlab.core.types import ChoiceObs, EnvSpec, MapObs, Metric, tensors

AGENTS, CHOICES, SIDE = 2, 4, 3


@tensors
class Turn:
    """Worlds in which every agent acts once; ``start`` is the noise of the beginning."""

    start: Float[Tensor, " B"]
    done: Bool[Tensor, " B"]
    step: Int[Tensor, " B"]


@dataclass(frozen=True)
class Bandit:
    """Two agents, each rewarded 0 for the best action (0.5 in [-1, 1], or move 2 of 4) and down to -15 for others.

    With ``moves`` agents choose moves, all of which but the best cost 10: at once, where they observe ``vectors``; in
    turn, each to a cell of its own, where they observe ``maps``.
    """

    moves: Literal["none", "vectors", "maps"] = "none"
    metrics: ClassVar[tuple[Metric, ...]] = ()
    score: ClassVar[dict[str, float]] = {"return": 1.0}

    @property
    def spec(self) -> EnvSpec:
        spec = EnvSpec(AGENTS, obs=1, action=1, horizon=1, dt=1.0, initial_noise=1, step_noise=0, groups=(0,) * AGENTS)
        if self.moves == "none":
            return spec
        spec = replace(spec, choices=CHOICES)
        return replace(spec, team=1, side=SIDE) if self.moves == "maps" else spec

    def initial(self, noise: Float[Tensor, "B 1"]) -> Turn:
        step = torch.zeros_like(noise[:, 0], dtype=torch.int64)
        return Turn(start=noise[:, 0].clone(), done=step.bool(), step=step)

    def transition(self, state: Turn, action: Shaped[Tensor, "B A *D"], noise: Float[Tensor, "B 0"]) -> Turn:
        return replace(state, done=torch.ones_like(state.done), step=state.step + 1)

    def observe(self, state: Turn) -> Float[Tensor, "B A 1"] | ChoiceObs | MapObs:
        """Return one constant feature, or constant maps; every move is legal."""
        lead, one = (len(state.step), AGENTS), state.start.new_ones
        if self.moves == "none":
            return one(*lead, 1)
        cells = torch.arange(AGENTS * CHOICES, device=state.step.device).view(AGENTS, CHOICES).repeat(lead[0], 1, 1)
        if self.moves == "vectors":
            return ChoiceObs(one(*lead, 1), cells >= 0)
        maps, team = one(*lead, 1, SIDE, SIDE), one(lead[0], 1, SIDE, SIDE)
        return MapObs(maps, team, cells[..., 0].clone(), cells >= 0, cells)

    def reward(self, state: Turn, action: Shaped[Tensor, "B A *D"], after: Turn) -> Float[Tensor, "B A"]:
        """Return minus ten times the distance to the best action, or 10 for another than the best move."""
        off = action != 2 if self.spec.choices else (action[..., 0].clamp(-1, 1) - 0.5).abs()
        return -10 * off.to(state.start.dtype)

    def terminated(self, state: Turn) -> Bool[Tensor, "B A"]:
        return state.done[:, None].expand(-1, AGENTS)

    def measure(self, state: Turn, action: Shaped[Tensor, "B A *D"], after: Turn) -> dict[str, Float[Tensor, " B"]]:
        return {}
