"""The registrations of telemetry, how it is evaluated, and a check of its flights."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.registry import COLLECTORS, ENVIRONMENTS, LEARNERS, Environment, Settings
from uavlab.core.rng import Streams
from uavlab.evaluation import Evaluation
from uavlab.runtime.runtime import Runtime
from uavlab.telemetry import flights as fleet
from uavlab.telemetry import predict
from uavlab.telemetry.flights import Telemetry
from uavlab.telemetry.forecaster import Forecaster
from uavlab.telemetry.window_source import DATASET_CHANGED, Loader, WindowCollector, load_split

GROUPS = ("training", "validation", "test")


@dataclass(frozen=True)
class LogsReport:
    """Counts of ``check_logs`` for training, validation and test; ``str`` formats them as a few lines."""

    task: str  # its ``repr``
    flights: tuple[int, ...]
    rows: tuple[int, ...]
    windows: tuple[int, ...]

    def __str__(self) -> str:
        """Describe what was checked, one fact per line."""
        lines = [f"{self.task} can be learned from."]
        for name, counts in (("flights", self.flights), ("rows", self.rows), ("windows", self.windows)):
            groups = (f"{count:,} for {group}" for count, group in zip(counts, GROUPS, strict=True))
            lines.append(f"  {name:9} {', '.join(groups)}")
        return "\n".join([*lines, "  checked   no flight is there twice, and all inputs vary"])


def check_logs(task: Telemetry, loader: Loader = "device") -> LogsReport:
    """Simulate or read a task's flights; raise if one is there twice, or if a feature never varies."""
    sets = load_split(task, torch.device("cpu"), loader)
    names = [str(path) for path in fleet.list_logs(Path(task.logs))] if task.logs else []
    owners: dict[str, str] = {}  # flights by the hash of their rows
    for chunk in fleet.load(task):
        for number, flight in chunk.items():
            where = names[number] if names else f"flight {number}"
            rows = hashlib.sha256(b"".join(values.numpy().tobytes() for values in flight.values())).hexdigest()
            if (first := owners.setdefault(rows, where)) != where:
                do = "Leave one of them out, or training rows may be in the test"
                raise ConfigError(f"{where}: got the rows of {first} once more; expected every flight once. {do}.")
    bounds = [getattr(sets, name).bounds for name in GROUPS]
    windows = (fleet.window_starts(part, sum(task.shape), task.stride)[0] for part in bounds)
    flights, ends = (len(part) - 1 for part in bounds), (int(part[-1]) for part in bounds)
    return LogsReport(repr(task), tuple(flights), tuple(ends), tuple(map(len, windows)))


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
        scores = predict.figures(policy, flights, env.shape, env.stride, count)
        return {name: figure.to(rng.device) for name, figure in scores.items()}

    def summary(self, env: Any, figures: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
        return predict.summarise_scores(figures)

    def units(self, env: Any) -> dict[str, str]:
        return {metric.name: metric.unit for metric in predict.METRICS}

    def baseline(self, config: Settings, rt: Runtime, plan: Callable[..., Any]) -> Any:
        return plan(load_split(config.env, rt.device, config.toggles.loader), config.env.shape, config.env.stride)

    def check(self, config: Settings) -> LogsReport:
        return check_logs(config.env, config.toggles.loader)


ENVIRONMENTS.register(
    "telemetry",
    Environment(Telemetry, learner="forecaster", baselines={"ridge": predict.fit_ridge}, evaluation=LogsEvaluation()),
)
LEARNERS.register("forecaster", Forecaster)
COLLECTORS.register("windows", WindowCollector)
