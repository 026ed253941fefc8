"""A task that needs a memory: an agent sees a cue in the first step alone, and is paid in the last for repeating it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from uavlab.core.types import EnvSpec, Metric, tensors

AGENTS, LAST = 2, 4  # the cue is asked for in the step with this number, after three blank ones


@tensors
class Recalls:
    """Worlds with a cue of -1 or 1 for each agent."""

    cue: Tensor  # B A
    step: Tensor  # B


@dataclass(frozen=True)
class Recall:
    """Two agents; the reward of the last step is the action times the cue, at most 1, on average 0 without memory."""

    metrics: ClassVar[tuple[Metric, ...]] = ()
    score: ClassVar[dict[str, float]] = {"return": 1.0}
    spec: ClassVar[EnvSpec] = EnvSpec(AGENTS, 2, 1, LAST + 1, 1.0, initial_noise=AGENTS, step_noise=0, groups=(0, 0))

    def initial(self, noise: Tensor) -> Recalls:
        return Recalls(cue=2.0 * (noise < 0.5) - 1, step=torch.zeros(len(noise), dtype=torch.int64))

    def transition(self, state: Recalls, action: Tensor, noise: Tensor) -> Recalls:
        return Recalls(cue=state.cue.clone(), step=state.step + 1)

    def observe(self, state: Recalls) -> Tensor:
        """Return the cue in the first step, and whether it is asked for."""
        first, last = ((state.step == step)[:, None].expand(-1, AGENTS) for step in (0, LAST))
        return torch.stack((state.cue * first, last.to(state.cue.dtype)), -1)

    def reward(self, state: Recalls, action: Tensor, after: Recalls) -> Tensor:
        return (state.step == LAST)[:, None] * state.cue * action[..., 0]

    def terminated(self, state: Recalls) -> Tensor:
        return (state.step > LAST)[:, None].expand(-1, AGENTS)

    def measure(self, state: Recalls, action: Tensor, after: Recalls) -> dict[str, Tensor]:
        return {}
