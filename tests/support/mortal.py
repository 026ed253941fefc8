"""A team of two groups whose agents end one after the other, with numbers that are easy to compute by hand."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import uavlab as ul


@ul.tensors
class State:
    """Numbers of one or three agents of each world."""

    start: Tensor  # B, drawn at the start
    total: Tensor  # B A, the sum of an agent's moves, and of the noise of steps
    step: Tensor  # B


@dataclass(frozen=True)
class Mortal:
    """``short_0`` ends after 2 steps, ``long_0`` after 3, ``long_1`` never; the horizon is 5.

    Odd steps close the first move of every agent; an agent that has ended may choose its second move alone.
    """

    metrics: ClassVar = (ul.Metric("total", "last"),)
    score: ClassVar = {"total": 1.0}
    spec: ClassVar = ul.team_spec(
        ul.Group("short", 1, obs=2, choices=2),
        ul.Group("long", 2, obs=3, choices=3),
        horizon=5,
        initial_noise=1,
        step_noise=3,
        deaths=True,
    )

    def initial(self, noise: Tensor) -> State:
        step = torch.zeros_like(noise[:, 0], dtype=torch.int64)
        return State(start=noise[:, 0], total=noise.new_zeros(len(noise), 3), step=step)

    def transition(self, state: State, action: Tensor, noise: Tensor) -> State:
        return State(state.start.clone(), state.total + action + noise, state.step + 1)

    def observe(self, state: State) -> ul.ChoiceObs:
        step = state.step.to(state.start.dtype)
        short = torch.stack((state.start, step), -1)[:, None]
        long = torch.cat((short.expand(-1, 2, -1), state.total[:, 1:, None]), -1)
        odd, gone = (state.step % 2 == 1)[:, None].expand(-1, 3), self.terminated(state)
        legal = torch.stack((~odd & ~gone, torch.ones_like(odd), ~gone), -1)
        legal = {"short": legal[:, :1, :2], "long": legal[:, 1:]}
        return ul.ChoiceObs(ul.join_groups(self.spec, {"short": short, "long": long}), ul.join_groups(self.spec, legal))

    def reward(self, state: State, action: Tensor, after: State) -> Tensor:
        return after.total - state.total + after.step[:, None]

    def terminated(self, state: State) -> Tensor:
        return state.step[:, None] >= torch.tensor((2, 3, 100))

    def measure(self, state: State, action: Tensor, after: State) -> dict[str, Tensor]:
        return {"total": after.total.sum(1)}
