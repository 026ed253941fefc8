"""Leader and followers with a pause in each step, as a slow simulator has: constant, random, or by rank."""

import os
import random
import time
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor

from uavlab.envs.leader_follower.env import LeaderFollower, State

Pause = Annotated[float, Ge(0), Le(60_000)]


@dataclass(frozen=True)
class SlowLeaderFollower(LeaderFollower):
    """``LeaderFollower`` with a delay in each step, as from an external simulator; results do not depend on it.

    Attributes:
        step_ms: Time that the host waits in each step of the batch (ms).
        pause_ms: Mean of a random time that it waits besides, exponentially distributed (ms).
        rank_ms: Time that it waits besides on rank 1, twice as long on rank 2, and so on (ms).
    """

    step_ms: Pause = 1.0
    pause_ms: Pause = 0.0
    rank_ms: Pause = 0.0

    def transition(self, state: State, action: Float[Tensor, "B A 2"], noise: Float[Tensor, "B 0"]) -> State:
        if (wait_ms := self.step_ms + rank() * self.rank_ms + self.pause_ms * waits(rank()).expovariate(1.0)) > 0:
            if state.step.is_cuda and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("step_ms keeps the host waiting, and a graph's replays run nothing on the host")
            time.sleep(wait_ms / 1e3)
        return super().transition(state, action, noise)


def rank() -> int:
    """Return the number of this process among those that ``torchrun`` starts; 0 without it."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


@cache
def waits(rank: int) -> random.Random:
    """Return the generator of a rank's random pauses, apart from all random streams of a run."""
    return random.Random(rank)
