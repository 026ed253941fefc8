"""A team that sees maps beside features, by continuous actions or moves, registered as ``sighted`` for single tests."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

import uavlab as ul
from tests.support.registries import registered

AGENTS, SIDE, FEATURES, MOVES = 2, 4, 3, 2
SHORT = {
    **{"worlds": 4, "rollout_steps": 4, "epochs": 2, "minibatches": 2, "hidden": 8, "width": 4, "kernels": (2, 2)},
    **{"updates": 4, "evaluate_every": 2, "evaluate_episodes": 3, "checkpoint_every": 2, "device": "cpu"},
}


@ul.tensors
class State:
    """What the map and the features of each agent tell, -1 or 1, and which cell of a half is marked."""

    clue: Tensor  # B A 2: by the map, by a feature
    cell: Tensor  # B A, within the half of the map that tells
    step: Tensor  # B


@dataclass(frozen=True)
class Sighted:
    """Two agents, each rewarded for acting by what its map or its feature tells anew in each step: at best 1.

    A mark in the left half of the map means -1, in the right half 1; so does the first feature, which varies
    by 0.1 around a mean of 5. The others are constant, and the number of the agent. The team's map is the sum of marks.

    Attributes:
        paid: What the right action depends on: map or feature.
        moves: Whether agents choose the moves 0 (for -1) and 1 instead of acting in [-1, 1].
        features: Whether agents observe features beside their maps.
        team: Whether a critic sees the sum of all marks.
        centred: Whether the team's map is centred.
    """

    paid: Literal["map", "feature"] = "feature"
    moves: bool = False
    features: bool = True
    team: bool = False
    centred: bool = False
    metrics: ClassVar = (ul.Metric("right", "mean", bounds=(-1.0, 1.0)),)
    score: ClassVar = {"right": 1.0}

    @property
    def spec(self) -> ul.EnvSpec:
        noise = 3 * AGENTS
        return ul.EnvSpec(
            *(AGENTS, 2, 1, 5, 1.0, noise, noise, (0,) * AGENTS),
            choices=MOVES * self.moves,
            team=int(self.team),
            side=SIDE,
            centred=self.centred,
            features=FEATURES * self.features,
        )

    def initial(self, noise: Tensor) -> State:
        return self.draw(noise, torch.zeros_like(noise[:, 0], dtype=torch.int64))

    def draw(self, noise: Tensor, step: Tensor) -> State:
        parts = noise.view(-1, AGENTS, 3)
        return State(2 * (parts[..., :2] < 0.5).to(noise.dtype) - 1, (parts[..., 2] * SIDE * SIDE / 2).long(), step)

    def transition(self, state: State, action: Tensor, noise: Tensor) -> State:
        return self.draw(noise, state.step + 1)

    def observe(self, state: State) -> ul.MapObs:
        """Return a map of the mark beside a constant one, and the features; each move leads to a cell of its own."""
        half, clue = SIDE // 2, state.clue
        place = state.cell // half * SIDE + state.cell % half + half * (clue[..., 0] > 0)
        marks = torch.nn.functional.one_hot(place, SIDE * SIDE).to(clue.dtype).unflatten(-1, (SIDE, SIDE))
        agents = torch.arange(AGENTS, device=place.device)
        spec, cells = self.spec, (agents[:, None] * MOVES + torch.arange(MOVES, device=place.device))
        cells = cells.repeat(len(place), 1, 1)
        number = agents.to(clue.dtype).expand(len(place), -1)
        seen = torch.stack((5 + 0.1 * clue[..., 1], torch.full_like(number, 2.0), number), -1)[..., :FEATURES]
        return ul.MapObs(
            maps=torch.stack((marks, torch.ones_like(marks)), 2),
            team=marks.sum(1, keepdim=True) if spec.team else None,
            place=place if self.moves or (self.centred and self.team) else None,
            legal=cells >= 0 if self.moves else None,
            target_cell=cells if self.moves else None,
            features=seen if self.features else None,
        )

    def reward(self, state: State, action: Tensor, after: State) -> Tensor:
        act = 2 * action.to(state.clue.dtype) - 1 if self.moves else action[..., 0].clamp(-1, 1)
        return act * state.clue[..., 0 if self.paid == "map" else 1]

    def terminated(self, state: State) -> Tensor:
        return (state.step < 0)[:, None].expand(-1, AGENTS)

    def measure(self, state: State, action: Tensor, after: State) -> dict[str, Tensor]:
        return {"right": self.reward(state, action, after).mean(-1)}


def registered_sighted() -> AbstractContextManager[None]:
    """Register ``sighted``, and forget it afterwards."""
    return registered(sighted=Sighted)
