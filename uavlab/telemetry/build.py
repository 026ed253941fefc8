"""The registrations of telemetry, how it is evaluated, and a check of its flights."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.registry import COLLECTORS, ENVIRONMENTS, LEARNERS, Environment, Settings
from uavlab.core.rng import Streams
from uavlab.core.types import leaves
from uavlab.evaluation import Evaluation
from uavlab.runtime.runtime import Runtime
from uavlab.telemetry import dataset, metrics
from uavlab.telemetry import flights as fleet
from uavlab.telemetry.dataset import FEATURES, FlightDataset, Windows
from uavlab.telemetry.flights import Telemetry
from uavlab.telemetry.forecaster import (
    Forecaster,
)
from uavlab.telemetry.window_source import (
    DATASET_CHANGED,
    DataSplit,
    Loader,
    WindowCollector,
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

    def __init__(self, task: Telemetry, name: str, flights: FlightDataset, group: list[int]) -> None:
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


class LogsEvaluation(Evaluation):
    """How forecasts are evaluated: over windows of validation or test flights."""

    count = "at most {} flights"
    flies = False

    def figures(
        self, config: Settings, env: Any, policy: Any, rng: Streams, count: int, mean_action: bool, stream: str
    ) -> dict[str, Tensor]:
        """Score a forecast on validation flights (stream ``validate``) or test flights (host sync)."""
        sets = load_split(env, rng.device, config.toggles.loader)
        if replace(env, stride=config.env.stride) == config.env:
            center, spread = policy.inputs.center, policy.inputs.spread
            if ((sets.inputs.center - center) / spread).abs().max() > TOLERANCE:
                raise FileError(DATASET_CHANGED)
        flights = sets.validation if stream == "validate" else sets.test
        scores = metrics.figures(policy, flights, env.shape, env.stride, count)
        return {name: figure.to(rng.device) for name, figure in scores.items()}

    def summary(self, env: Any, figures: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
        return metrics.summary(figures)

    def units(self, env: Any) -> dict[str, str]:
        return {metric.name: metric.unit for metric in metrics.METRICS}

    def baseline(self, config: Settings, rt: Runtime, plan: Callable[..., Any]) -> Any:
        return plan(load_split(config.env, rt.device, config.toggles.loader), config.env.shape, config.env.stride)

    def check(self, config: Settings) -> LogsReport:
        return check_logs(config.env, config.toggles.loader)


ENVIRONMENTS.register(
    "telemetry",
    Environment(Telemetry, learner="forecaster", baselines={"ridge": metrics.fit_ridge}, evaluation=LogsEvaluation()),
)
LEARNERS.register("forecaster", Forecaster)
COLLECTORS.register("windows", WindowCollector)
