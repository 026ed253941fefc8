"""The registrations of telemetry: its environment, its learner and its collector."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
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
from uavlab.core.types import leaves
from uavlab.runtime.runtime import Runtime
from uavlab.telemetry import dataset, metrics
from uavlab.telemetry import flights as fleet
from uavlab.telemetry.dataset import AXES, FEATURES, HIDDEN, ROW, FlightDataset, Windows
from uavlab.telemetry.flights import Telemetry, require_same
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
from uavlab.telemetry.simulation import RATE
from uavlab.telemetry.window_source import (
    DATASET_CHANGED,
    DataSplit,
    Flights,
    Loader,
    WindowsConfig,
    WindowSource,
    load_split,
)

GROUPS = ("training", "validation", "test")
COMPARED = 10  # windows of each flight, with its first and its last
UNIT_TOLERANCE = 0.001  # between a normalised input's mean and 0, and between its standard deviation and 1


@dataclass(frozen=True)
class LogsReport:
    """Counts of ``check_logs`` for training, validation and test; ``str`` formats them as a few lines."""

    task: str  # its ``repr``
    flights: tuple[int, ...]
    rows: tuple[int, ...]
    windows: tuple[int, ...]
    compared: int  # windows that were compared with the rows of their flights

    def __str__(self) -> str:
        """Describe what was checked, one fact per line."""
        lines = [f"{self.task} can be learned from."]
        for name, counts in (("flights", self.flights), ("rows", self.rows), ("windows", self.windows)):
            groups = (f"{count:,} for {group}" for count, group in zip(counts, GROUPS, strict=True))
            lines.append(f"  {name:9} {', '.join(groups)}")
        return "\n".join(lines) + (
            "\n  checked   every flight made twice, finite and in one group; every window within its flight,"
            f" {self.compared:,} equal its rows; {len(FEATURES)} inputs vary, with mean 0 and deviation 1"
        )


def check_logs(task: Telemetry, loader: Loader = "device") -> LogsReport:
    """Simulate or read a task's flights and raise at the first violated condition of training.

    Flights are finite, repeatable, distinct, and in one group each; inputs vary, and those of the training flights have
    mean 0 and standard deviation 1; windows lie within their flights and equal the rows there.
    """
    groups = dataset.split(fleet.count(task), (task.training, task.validation), task.split)
    _check_split(groups, fleet.count(task))
    sets = load_split(task, torch.device("cpu"), loader)
    _check_scale(sets, loader)
    parts = [_Part(task, name, getattr(sets, name), group) for name, group in zip(GROUPS, groups, strict=True)]
    names = [str(path) for path in fleet.list_logs(Path(task.logs))] if task.logs else []
    owners: dict[str, str] = {}  # flights by the hash of their rows
    for chunk, again in zip(fleet.load(task), fleet.load(task), strict=True):
        for number, flight in chunk.items():
            where = names[number] if names else f"flight {number}"
            _check_columns(where, flight, again[number])
            rows = hashlib.sha256(b"".join(values.numpy().tobytes() for values in flight.values())).hexdigest()
            if owners.setdefault(rows, where) != where:
                do = "Leave one of them out, or training rows may be in the test."
                _refuse(where, f"the rows of {owners[rows]} once more", "every flight once", do)
            for part in parts:
                if number in part.numbers:
                    single = dataset.concatenate([flight])
                    if part is parts[0] and loader != "per_item":
                        single.normalise(sets.inputs)
                    part.check(where, number, single)
    return LogsReport(
        repr(task),
        tuple(len(part.numbers) for part in parts),
        tuple(int(part.bounds[-1]) for part in parts),
        tuple(len(part.start) for part in parts),
        sum(part.compared for part in parts),
    )


def _refuse(where: str, got: str, expected: str, do: str) -> NoReturn:
    raise ConfigError(f"{where}: got {got}; expected {expected}. {do}")


def _check_split(groups: tuple[list[int], ...], count: int) -> None:
    for number in range(count):
        names = [name for name, group in zip(GROUPS, groups, strict=True) for _ in range(group.count(number))]
        if len(names) != 1:
            got = f"flight {number} in {' and '.join(names) or 'no group'}"
            _refuse("split", got, f"each of {count} flights in one group", "Correct uavlab.telemetry.dataset.split.")


def _check_scale(sets: DataSplit, loader: Loader) -> None:
    mean, deviation = sets.training.statistics(["inputs"])
    if loader == "per_item":  # it normalises window by window
        mean, deviation = (mean - sets.inputs.center) / sets.inputs.spread, deviation / sets.inputs.spread
    for n, (low, wide) in enumerate(zip(mean.tolist(), deviation.tolist(), strict=True)):
        if not (abs(low) < UNIT_TOLERANCE and abs(wide - 1) < UNIT_TOLERANCE):
            got, expected = f"mean {low:.3g} and deviation {wide:.3g}", "0 and 1 over the training flights"
            do = "Measure scales on these flights alone, and apply them once."
            _refuse(f"input {n} ({FEATURES[n]})", got, expected, do)


def _check_columns(where: str, columns: Mapping[str, Tensor], again: Mapping[str, Tensor]) -> None:
    for name, values in columns.items():
        if not (finite := values.isfinite()).all():
            row = int(finite.long().argmin())
            do = "Leave this flight out, or correct what makes it."
            _refuse(f"{where}, column {name!r}, row {row}", f"{values[row]:g}", "a finite number", do)
        if not torch.equal(values, again[name]):
            do = "Draw all that is random from the flight's own seed, and change no log meanwhile."
            _refuse(f"{where}, column {name!r}", "other numbers the second time", "the same", do)


class _Part:
    """The flights of one group, and the first rows of their windows."""

    def __init__(self, task: Telemetry, name: str, flights: Flights, group: list[int]) -> None:
        self.task, self.name, self.flights, self.compared = task, name, flights, 0
        self.bounds = flights.bounds
        self.numbers = sorted(group[: len(self.bounds) - 1])  # fewer with ``used`` < 1
        self.start, self.flight = dataset.window_starts(self.bounds, sum(task.shape), task.stride)
        last = self.start + sum(task.shape) - 1
        within = (self.bounds[self.flight] <= self.start) & (last < self.bounds[self.flight + 1])
        if not within.all():
            n = int(within.long().argmin())
            flight, got = self.numbers[self.flight[n]], f"rows {self.start[n]} to {last[n]} of the {name} flights"
            do = "Correct uavlab.telemetry.dataset.window_starts."
            _refuse(f"a window of flight {flight}", got, "rows of that flight alone", do)
        if without := set(range(len(self.numbers))) - set(self.flight.tolist()):
            number = self.numbers[min(without)]
            do = "Leave it out, or lower window or horizon."
            _refuse(f"flight {number}", "no window", f"at least {sum(task.shape)} rows", do)

    def check(self, where: str, number: int, single: FlightDataset) -> None:
        """Compare windows of a flight with its rows, simulated or read again."""
        window, horizon = self.task.shape
        begin, end = self.bounds[(n := self.numbers.index(number)) : n + 2].tolist()
        if len(single.inputs) != end - begin:
            do = "Correct uavlab.telemetry.window_source.load_split."
            _refuse(where, f"{end - begin} rows among the {self.name} flights", f"its {len(single.inputs)}", do)
        start = self.start[self.flight == n]
        start = start[torch.linspace(0, len(start) - 1, min(len(start), COMPARED)).long()]
        rows = start[:, None] - begin + torch.arange(window)
        ahead = rows[:, -1:] + 1 + torch.arange(horizon)
        expected = Windows(single.inputs[rows], single.truth[rows[:, -1]], single.tracking_error[ahead])
        windows = self.flights.gather(start, window, horizon)
        for (name, value), (_, right) in zip(leaves(windows), leaves(expected), strict=True):
            if not torch.equal(value, right):
                do = "Correct how flights are split, or how windows are gathered."
                _refuse(f"{where}, {name} of its windows", f"other numbers from the {self.name} flights", "its own", do)
        self.compared += len(start)


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
    return WindowSource(task, config.source, rng, rt, sets)


def figures(
    config: Settings, task: Telemetry, forecast: Forecast, rng: Streams, count: int, mean_action: bool, stream: str
) -> dict[str, Tensor]:
    """Score a forecast on validation flights (stream ``validate``) or test flights (host sync)."""
    sets = load_split(task, rng.device, config.toggles.loader)
    if replace(task, stride=config.env.stride) == config.env:
        center, spread = forecast.inputs.center, forecast.inputs.spread
        if ((sets.inputs.center - center) / spread).abs().max() > TOLERANCE:
            raise FileError(DATASET_CHANGED)
    flights = sets.validation if stream == "validate" else sets.test
    scores = metrics.figures(forecast, flights, task.shape, task.stride, count)
    return {name: values.to(rng.device) for name, values in scores.items()}


def baseline(config: Settings, rt: Runtime, fit: Callable[..., Any]) -> Any:
    """Fit a baseline to the training flights."""
    return fit(load_split(config.env, rt.device, config.toggles.loader), config.env.shape, config.env.stride)


def plan(config: Settings) -> dict[str, Any]:
    """Return planned windows, passes, flights and bytes without reading a flight; None where they depend on logs."""
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
