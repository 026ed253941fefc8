"""The registrations of telemetry: its environment, its learner and its collector."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import FileError
from uavlab.core.portable import Layers, Portable, Signal, Signals
from uavlab.core.registry import (
    COLLECTORS,
    ENVIRONMENTS,
    LEARNERS,
    CollectorEntry,
    Environment,
    Evaluation,
    LearnerEntry,
    Settings,
    Trial,
)
from uavlab.core.rng import Streams
from uavlab.core.symptoms import Symptoms, higher, times
from uavlab.runtime.runtime import Runtime
from uavlab.telemetry import flights as fleet
from uavlab.telemetry import metrics
from uavlab.telemetry.check import check_logs
from uavlab.telemetry.dataset import AXES, FEATURES, HIDDEN, ROW
from uavlab.telemetry.forecaster import (
    TARGETS,
    Forecast,
    Forecaster,
    ForecasterConfig,
    network,
    predictor,
    size,
    target_scale,
)
from uavlab.telemetry.simulation.flights import RATE
from uavlab.telemetry.task import Telemetry, require_same
from uavlab.telemetry.window_source import DATASET_CHANGED, DataSplit, WindowsConfig, WindowSource, load_split

TOLERANCE = 1e-3  # standard deviations; rounding on another machine changes the same flights by less
TRIAL_FLIGHTS, TRIAL_ROWS = 10, 500  # of a trial: how many, and rows of each beyond a window and what follows it
NO_TEAM = "this learner learns from logs, no team flies"
FEATURE_UNITS = {
    **{"tracking_error": "m", "velocity": "m/s", "commanded_velocity": "m/s", "force": "m/s^2", "thrust": "m/s^2"},
    **{"rate": "rad/s", "lean": "1", "motor": "share", "voltage": "V", "current": "A", "spin": "rad/s^2"},
    "command": "1",
}
"""Units of ``FEATURES`` by how their names begin; the first that fits counts."""


def learner(config: Settings, sets: DataSplit, rng: Streams, rt: Runtime) -> Forecaster:
    """Build the forecaster."""
    outputs = target_scale(sets.hidden, config.env.horizon)
    return Forecaster(config.learner, config.env.spec, sets.inputs, outputs, rng, rt)


def source(
    config: Settings, task: Telemetry, sets: DataSplit, learner: object, snapshot: object, rng: Streams, rt: Runtime
) -> WindowSource:
    """Build the source of windows."""
    return WindowSource(task, config.source, rng, rt, sets)


def figures(
    config: Settings, task: Telemetry, forecast: Forecast, rng: Streams, count: int, mean_action: bool, stream: str
) -> dict[str, Tensor]:
    """Score a forecast on validation flights (stream ``validate``) or test flights (host sync).

    Raises:
        FileError: The training flights differ from those that the forecast was trained on.
    """
    sets = load_split(task, rng.device, config.toggles.loader)
    if replace(task, stride=config.env.stride) == config.env:
        center, spread = forecast.inputs.center, forecast.inputs.spread
        if ((sets.inputs.center - center) / spread).abs().max() > TOLERANCE:
            raise FileError(DATASET_CHANGED)
    flights = sets.validation if stream == "validate" else sets.test
    scores = metrics.figures(forecast, flights, task.shape, task.stride, count)
    return {name: each.to(rng.device) for name, each in scores.items()}


def baseline(config: Settings, rt: Runtime, fit: Callable[..., Any]) -> Any:
    """Fit a baseline to the training flights."""
    return fit(load_split(config.env, rt.device, config.toggles.loader), config.env.shape, config.env.stride)


def plan(config: Settings) -> dict[str, Any]:
    """Return planned windows, passes, flights and bytes without reading a flight; None where they depend on logs.

    Raises:
        FileError: There are no logs.
    """
    task, updates, rows = config.env, config.run.updates, fleet.rows(config.env)
    windows = None if updates is None else updates * config.source.batch
    strides = None if windows is None else windows * task.stride
    return {
        "windows_per_run": windows,
        "passes_per_run": strides and rows and round(strides / round(rows * task.training * task.used), 2),
        "flights": fleet.count(task),
        "flight_bytes": rows and rows * ROW,
    }


def trial(config: Settings) -> Trial:
    """Return the run on few and short simulated flights; an update takes windows of any flights."""
    task, rows = config.env, sum(config.env.shape) + TRIAL_ROWS
    small = Telemetry(flights=TRIAL_FLIGHTS, least=rows, most=rows, window=task.window, horizon=task.horizon)
    flights = f"{fleet.count(task):,} {'logs to read' if task.logs else 'flights to simulate'}"
    return Trial(replace(config, env=small), apart=f"{flights}, and scores")


def layers(config: ForecasterConfig, shape: tuple[int, int]) -> Layers:
    """Return the layout of ``Forecaster.parameters``."""
    net = network(config, shape)
    sizes = {"inputs": net.inputs, "targets": net.outputs}
    scales = {name: {"center": (count,), "spread": (count,)} for name, count in sizes.items()}
    return {**net.by_layer, "log_variance": {"targets": (len(TARGETS),)}, **scales}


def portable_inputs(shape: tuple[int, int]) -> Signals:
    """Return the input of an exported forecaster: a window of a log in physical units."""
    units = tuple(next(unit for start, unit in FEATURE_UNITS.items() if name.startswith(start)) for name in FEATURES)
    window = Signal(
        axes={"row": shape[0], "feature": len(FEATURES)},
        about=f"rows of a window at {RATE} per second, oldest first; uavlab.telemetry.dataset computes them",
        unit=units,
        names=FEATURES,
        normalisation="inside the file, by networks.0.inputs.center and networks.0.inputs.spread",
    )
    return {"window": window}


def portable_outputs(shape: tuple[int, int]) -> Signals:
    """Return the outputs of an exported forecaster: predictions and their standard deviations."""
    names = (*HIDDEN, *(f"error_{axis}_{row}" for row in range(1, shape[1] + 1) for axis in AXES))
    units = tuple(metrics.UNITS[name if name in HIDDEN else "error"] for name in names)
    about = "hidden quantities at the last row of the window, then the tracking error in each row ahead"
    signal = Signal({"target": len(names)}, about, units, names=names)
    return {"mean": signal, "standard_deviation": replace(signal, about=f"standard deviation of {about}")}


def predict_with_deviation(forecast: Forecast, window: Float[Tensor, "N T F"]) -> tuple[Tensor, Tensor]:
    """Return predictions and their standard deviations for windows, both in physical units."""
    mean, deviation = forecast(window[None])[0], forecast.deviation[0]
    ahead = deviation[-1:].expand(mean.shape[1] - len(HIDDEN))  # one for all rows and axes
    return mean, torch.cat([deviation[:-1], ahead]).repeat(mean.shape[0], 1)


ENVIRONMENTS.register(
    "telemetry",
    Environment(
        Telemetry,
        learner="forecaster",
        baselines={"ridge": metrics.fit_ridge},
        evaluation=Evaluation(
            figures=figures,
            summary=lambda task, values: metrics.summary(values),
            baseline=baseline,
            check=lambda config: check_logs(config.env, config.toggles.loader),
            units=lambda task: {metric.name: metric.unit for metric in metrics.METRICS},
            count="at most {} flights",
            flies=False,
        ),
    ),
)
LEARNERS.register(
    "forecaster",
    LearnerEntry(
        settings=ForecasterConfig,
        collector="windows",
        build=learner,
        load_policy=lambda config, trained, spec, numbers: predictor(network(config, trained), numbers),
        size=size,
        refusal=lambda spec: None if isinstance(spec, tuple) else "it learns from windows of logs; this one flies",
        require_same=lambda config, trained, spec: require_same(trained, spec),
        plan=lambda config: {"parameters": size(config.learner, config.env.spec)},
        portable=Portable(portable_inputs, portable_outputs, predict_with_deviation, layers),
        symptoms=Symptoms(
            loss="mse/error",
            remedies={
                "loss_grows": (times("lr", 0.3, least=1e-6),),
                "scores_still": (higher("lr", 1e-4, 1e-3), times("lr", 3, most=1e-2)),
            },
        ),
    ),
)
COLLECTORS.register(
    "windows",
    CollectorEntry(
        settings=WindowsConfig,
        data=lambda config, rng, rt: load_split(config.env, rt.device, rt.toggles.loader),
        build=source,
        plan=plan,
        pace=lambda config: (config.source.batch * config.run.runs, "windows"),
        calls=("update", "load"),
        replay=False,
        lacks=dict.fromkeys(("team", "replay"), NO_TEAM),
        trial=trial,
    ),
)
