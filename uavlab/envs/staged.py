"""An environment whose worlds start in one of several stages, such as those of a curriculum."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote
from uavlab.core.types import EnvSpec, select


@dataclass(frozen=True)
class Staged:
    """Worlds of several stages; the last number of a world's initial noise says which one it starts in.

    Stages differ in how worlds start, and in nothing else: all are stepped as those of ``env`` are.

    Attributes:
        env: The environment by which all worlds are stepped.
        stages: The environments by which worlds start, from the first stage to the last (S).
    """

    env: Any
    stages: tuple[Any, ...]

    def __post_init__(self) -> None:
        """Refuse stages of other shapes.

        Raises:
            ConfigError: There is no stage, or one has another ``spec`` than ``env``.
        """
        if not self.stages:
            raise ConfigError("stages: got none; expected at least one.")
        for number, stage in enumerate(self.stages, 1):
            if stage.spec != self.env.spec:
                raise ConfigError(
                    f"stage {number}: got {quote(stage.spec)}; expected that of the task, {quote(self.env.spec)}; let "
                    "stages have as many slots as the largest one."
                )

    @property
    def metrics(self) -> Any:
        """Figures of an episode."""
        return self.env.metrics

    @property
    def score(self) -> Any:
        """Weights of figures."""
        return self.env.score

    @cached_property
    def spec(self) -> EnvSpec:
        """The spec of ``env``, with a number more of noise."""
        return replace(self.env.spec, initial_noise=self.env.spec.initial_noise + 1)

    def initial(self, noise: Float[Tensor, "B K"]) -> Any:
        """Create worlds, each of the stage that the last number of its noise says."""
        number = self.stage_of(noise[:, -1])
        state = self.stages[0].initial(noise[:, :-1])
        for other, stage in enumerate(self.stages[1:], 1):
            state = select(number == other, stage.initial(noise[:, :-1]), state)
        return state

    def stage_of(self, unit: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Return the number of the stage that a number in [0, 1) stands for."""
        return (unit * len(self.stages)).long().clamp_max(len(self.stages) - 1)

    def transition(self, state: Any, action: Tensor, noise: Tensor) -> Any:
        """Step every world."""
        return self.env.transition(state, action, noise)

    def observe(self, state: Any) -> Any:
        """Return observations."""
        return self.env.observe(state)

    def reward(self, state: Any, action: Tensor, after: Any) -> Float[Tensor, "B A"]:
        """Return the reward of each agent."""
        return self.env.reward(state, action, after)

    def terminated(self, state: Any) -> Bool[Tensor, "B A"]:
        """Return which agents' task has ended."""
        return self.env.terminated(state)

    def measure(self, state: Any, action: Tensor, after: Any) -> dict[str, Float[Tensor, " B"]]:
        """Return the figures of a step."""
        return self.env.measure(state, action, after)


def choose_stages(noise: Float[Tensor, "R *lead K"], chance: Float[Tensor, "R S"]) -> Float[Tensor, "R *lead K"]:
    """Turn the last number of the noise of worlds into that of a stage, which each run draws by its chances."""
    unit, count = noise[..., -1], chance.shape[1]
    edge = chance.cumsum(1)[:, :-1]  # the last stage has the rest
    edge = edge.view(-1, *[1] * (unit.dim() - 1), count - 1)
    number = (unit[..., None] >= edge).sum(-1)
    return torch.cat((noise[..., :-1], ((number + 0.5) / count).to(noise.dtype)[..., None]), -1)
