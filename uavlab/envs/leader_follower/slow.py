"""Leader and followers with a pause in each step, as a slow simulator has."""

import time
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor

from uavlab.envs.leader_follower.env import LeaderFollower, State


@dataclass(frozen=True)
class SlowLeaderFollower(LeaderFollower):
    """``LeaderFollower`` with a delay in each step, as from an external simulator.

    Attributes:
        step_ms: Time that the host waits in each step of the batch (ms).
    """

    step_ms: Annotated[float, Ge(0), Le(60_000)] = 1.0

    def transition(self, state: State, action: Float[Tensor, "B A 2"], noise: Float[Tensor, "B 0"]) -> State:
        """Wait, then move agents and obstacles by one step.

        Raises:
            RuntimeError: A CUDA graph is being captured; its replays would not wait.
        """
        if self.step_ms > 0:
            if state.step.is_cuda and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("step_ms keeps the host waiting, and a graph's replays run nothing on the host")
            time.sleep(self.step_ms / 1e3)
        return super().transition(state, action, noise)
