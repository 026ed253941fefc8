"""An environment whose worlds start in one of several stages, such as those of a curriculum."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, differences, select


@dataclass(frozen=True)
class Staged:
    """Worlds of several stages; the last number of a world's initial noise says in which one it starts.

    Stages differ in how worlds start, and in nothing else: all are stepped, observed and judged as those of ``env``.
    """

    env: Any
    stages: tuple[Any, ...]  # the environments by which worlds start, from the first stage to the last (S)

    def __post_init__(self) -> None:
        if not self.stages:
            raise ConfigError("stages: got none; expected at least one.")
        for number, stage in enumerate(self.stages, 1):
            if stage.spec != self.env.spec:
                raise ConfigError(
                    f"stage {number}: spec of the task, then of the stage: {differences(self.env.spec, stage.spec)}; "
                    "expected equal ones: let stages have as many slots as the largest one."
                )

    def __getattr__(self, name: str) -> Any:
        """Return what stages have in common: functions and figures of ``env``."""
        if name == "env" or name.startswith("__"):  # a copy asks before there is an ``env``
            raise AttributeError(name)
        return getattr(self.env, name)

    @cached_property
    def spec(self) -> EnvSpec:
        return replace(self.env.spec, initial_noise=self.env.spec.initial_noise + 1)

    def numbers(self, noise: Float[Tensor, "B K"]) -> Int[Tensor, " B"]:
        """Return the stage at which each world starts, from 0."""
        return (noise[:, -1] * len(self.stages)).long().clamp_max(len(self.stages) - 1)

    def initial(self, noise: Float[Tensor, "B K"]) -> Any:
        number = self.numbers(noise)
        state = self.stages[0].initial(noise[:, :-1])
        for n, stage in enumerate(self.stages[1:], 1):
            state = select(number == n, stage.initial(noise[:, :-1]), state)
        return state


@dataclass(frozen=True)
class AtStages(Staged):
    """Worlds of which all of a run start at one stage, to evaluate policies."""

    at: tuple[int, ...]  # the stage of each run (R), from 0

    def numbers(self, noise: Float[Tensor, "B K"]) -> Int[Tensor, " B"]:
        """Return the stage of each world; there are as many for each run, and those of the first run come first."""
        return torch.tensor(self.at, device=noise.device).repeat_interleave(len(noise) // len(self.at))


def choose_stages(noise: Float[Tensor, "R *lead K"], share: Float[Tensor, "R S"]) -> Float[Tensor, "R *lead K"]:
    """Turn the last number of the noise of worlds into that of a stage, which each run draws by its shares."""
    unit, count = noise[..., -1], share.shape[1]
    edge = share.cumsum(1)[:, :-1]  # the last stage has the rest
    edge = edge.view(len(share), *[1] * (unit.dim() - 1), count - 1)
    number = (unit[..., None] >= edge).sum(-1)
    return torch.cat((noise[..., :-1], ((number + 0.5) / count).to(noise.dtype)[..., None]), -1)


def stage_numbers(env: Any, noise: Float[Tensor, "B K"]) -> Int[Tensor, " B"] | None:
    """Return the stage at which each world starts; None for an environment without stages."""
    return env.numbers(noise) if isinstance(env, Staged) else None


def first_stage(env: Any, runs: int, rng: Streams) -> Float[Tensor, "R S"] | None:
    """Return the shares with which runs begin, all of the first stage; None for an environment without stages."""
    if not isinstance(env, Staged):
        return None
    share = torch.zeros(runs, len(env.stages), dtype=rng.dtype, device=rng.device)
    share[:, 0] = 1.0
    return share


def start_noise(
    env: Any, rng: Streams, name: str, shape: Sequence[int], share: Float[Tensor, "R S"] | None
) -> Float[Tensor, "R ..."]:
    """Draw the noise of new worlds, and where there are ``share``s, their stages by them."""
    noise = rng.uniform(name, *shape, env.spec.initial_noise)
    return noise if share is None else choose_stages(noise, share)
