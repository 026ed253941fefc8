"""A team of two groups whose actions have 2 and 3 dimensions, registered as ``uneven`` for single tests."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import uavlab as ul
from tests.support.registries import registered

NARROW = 2  # agents of two dimensions; the third agent has three
SHORT = {
    **{"worlds": 4, "batch": 8, "learning_starts": 16, "capacity": 64, "updates": 4, "hidden": 8},
    **{"evaluate_every": 2, "evaluate_episodes": 3, "checkpoint_every": 2, "device": "cpu"},
}


@ul.tensors
class State:
    """Places of three agents, and the sum of the sizes of all actions in dimensions that an agent lacks."""

    pos: Tensor  # B A 3
    beyond: Tensor  # B
    step: Tensor  # B


@dataclass(frozen=True)
class Uneven:
    """Two agents in a plane and one in space, each rewarded for being near the origin."""

    metrics: ClassVar = (ul.Metric("distance", "mean", better="low"), ul.Metric("beyond", "last", bounds=(0.0, 1e-9)))
    score: ClassVar = {"distance": -1.0}
    group_scores: ClassVar = {"plane": {"distance": -1.0}, "solid": {"distance": -1.0}}
    spec: ClassVar = ul.team_spec(
        ul.Group("plane", NARROW, obs=2, action=2), ul.Group("solid", 1, obs=3, action=3), horizon=6, initial_noise=9
    )

    def initial(self, noise: Tensor) -> State:
        pos = 2 * noise.view(-1, 3, 3) - 1
        pos[:, :NARROW, 2] = 0
        zero = torch.zeros_like(noise[:, 0])
        return State(pos=pos, beyond=zero, step=zero.long())

    def transition(self, state: State, action: Tensor, noise: Tensor) -> State:
        pos = (state.pos + 0.3 * action).clamp(-2, 2)
        return State(pos, state.beyond + action[:, :NARROW, 2].abs().sum(1), state.step + 1)

    def observe(self, state: State) -> Tensor:
        return ul.join_groups(self.spec, {"plane": state.pos[:, :NARROW, :2], "solid": state.pos[:, NARROW:]})

    def reward(self, state: State, action: Tensor, after: State) -> Tensor:
        return -after.pos.square().sum(-1)

    def terminated(self, state: State) -> Tensor:
        return (state.step < 0)[:, None].expand(-1, 3)

    def measure(self, state: State, action: Tensor, after: State) -> dict[str, Tensor]:
        return {"distance": after.pos.norm(dim=-1).mean(-1), "beyond": after.beyond}


def registered_uneven() -> AbstractContextManager[None]:
    """Register ``uneven``, and forget it afterwards."""
    return registered(uneven=Uneven)
