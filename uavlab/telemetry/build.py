"""From valid settings to the objects of a run that learns from data."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import FileError
from uavlab.core.rng import Streams
from uavlab.experiment.config import Config
from uavlab.runtime.runtime import Runtime
from uavlab.telemetry import flights as fleet
from uavlab.telemetry import forecaster, metrics, ridge
from uavlab.telemetry.dataset import HIDDEN, ROW, Scale
from uavlab.telemetry.forecaster import Forecast, Forecaster
from uavlab.telemetry.task import Telemetry
from uavlab.telemetry.window_source import DATASET_CHANGED, WindowSource, load_split

MOVED = 1e-3  # deviations: more than other machines make of the same flights


def learner(config: Config, rng: Streams, rt: Runtime) -> Forecaster:
    """Build the learner with its first parameters."""
    sets, task = load_split(config.env, rt.device, rt.toggles.loader), config.env
    return Forecaster(config.learner, task.shape, sets.inputs, targets(sets.hidden, task.horizon), rng, rt)


def source(config: Config, rng: Streams, rt: Runtime) -> WindowSource:
    """Build what draws windows."""
    return WindowSource(config.env, config.source, rng, rt)


def targets(hidden: Scale, horizon: int) -> Scale:
    """Scale a network's outputs: errors ahead like those of any row, around none."""
    count = len(HIDDEN)
    center = torch.cat([hidden.center[:count], torch.zeros_like(hidden.center[count:]).repeat(horizon)])
    spread = hidden.spread[count:].square().mean().sqrt().expand(3 * horizon)  # of all axes alike
    return Scale(center, torch.cat([hidden.spread[:count], spread]))


def kept_policy(config: Config, parameters: Float[Tensor, "R 1 P"]) -> Forecast:
    """Make kept numbers tell again."""
    return forecaster.predictor(forecaster.network(config.learner, config.env.shape), parameters)


def size(config: Config) -> int:
    """Count the numbers kept of a run."""
    return forecaster.size(config.learner, config.env.shape)


def figures(
    config: Config, task: Telemetry, forecast: Forecast, device: torch.device, count: int, choose: bool
) -> dict[str, Tensor]:
    """Score what is told of flights that were not learned from; those of validation choose, the others judge.

    Raises:
        FileError: Logs came or went since, so that they would be shared out otherwise than they were.
    """
    sets = load_split(task, device, config.toggles.loader)
    if replace(task, stride=config.env.stride) == config.env:
        center, spread = forecast.inputs.center, forecast.inputs.spread
        if ((sets.inputs.center - center) / spread).abs().max() > MOVED:
            raise FileError(DATASET_CHANGED)
    flights = sets.validation if choose else sets.test
    return metrics.figures(forecast, flights, task.shape, task.stride, count)


def planned(config: Config, device: torch.device, plan: str) -> Forecast:
    """Make what tells of windows by other means than a network: ``PLANS``."""
    sets = load_split(config.env, device, config.toggles.loader)
    return PLANS[plan](sets, config.env.shape, config.env.stride)


PLANS = {"ridge": ridge.fit_ridge}


def plan(config: Config) -> dict[str, Any]:
    """Tell what a run would do and take, before any flight is made; how long logs are is not known then.

    Raises:
        FileError: There are no logs.
    """
    task, run, rows = config.env, config.run, fleet.rows(config.env)
    windows = None if run.updates is None else run.updates * config.source.batch
    strides = None if windows is None else windows * task.stride
    return {
        "windows_per_run": windows,
        "passes_per_run": strides and rows and round(strides / round(rows * task.training * task.used), 2),
        "flights": fleet.count(task),
        "flight_bytes": rows and rows * ROW,
        "parameters": size(config),
    }
