"""Where batches come from that are learned from logs: windows of flights, drawn by index."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from uavlab.core.errors import FileError
from uavlab.core.protocols import Numbers
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Rule, Update, tree_map
from uavlab.data import telemetry
from uavlab.data.telemetry import ASTRAY, FEATURES, HIDDEN, Scale, Series
from uavlab.envs.flights import Fleet, columns
from uavlab.envs.quadrotor import Quadrotor
from uavlab.runtime.runtime import Runtime

TOGETHER = 600  # flights that are flown at a time


@dataclass(frozen=True)
class Telemetry:
    """A task: tell from a window of a flight's log what the log does not show.

    Attributes:
        flights: Flights to simulate.
        first: Seed of the first flight; each is the same whatever others are flown.
        least: Rows of the shortest, 100 a second.
        most: Rows of the longest.
        wind: Strongest mean wind (m/s).
        payload: Heaviest payload (kg).
        training: Share of the flights that are learned from.
        validation: Share of those by which a model is chosen; the rest is for the last word.
        used: Share of the training flights that are used: what can be learned from less.
        split: Seed by which flights are shared out.
        window: Rows that a model sees (T).
        horizon: Rows ahead for which it tells how far the vehicle goes astray (H).
        stride: Rows between windows.
    """

    flights: Annotated[int, Ge(3), Le(100_000)] = 60
    first: Annotated[int, Ge(0), Le(2**31)] = 0
    least: Annotated[int, Ge(2), Le(100_000)] = 2000
    most: Annotated[int, Ge(2), Le(100_000)] = 5000
    wind: Annotated[float, Ge(0), Le(20)] = 8.0
    payload: Annotated[float, Ge(0), Le(1)] = 0.5
    training: Annotated[float, Ge(0.01), Le(0.98)] = 0.7
    validation: Annotated[float, Ge(0.01), Le(0.98)] = 0.15
    used: Annotated[float, Ge(0.001), Le(1)] = 1.0
    split: Annotated[int, Ge(0), Le(2**31)] = 0
    window: Annotated[int, Ge(2), Le(10_000)] = 200
    horizon: Annotated[int, Ge(1), Le(1000)] = 50
    stride: Annotated[int, Ge(1), Le(1000)] = 5

    score: ClassVar[dict[str, float]] = {"mean_r2": 1.0}

    rules: ClassVar[tuple[Rule, ...]] = (
        (("least", "most"), lambda a, b: a <= b, "least {0} > most {1}: no flight is as long as that"),
        (("window", "horizon", "least"), lambda w, h, n: w + h <= n, "window {0} + horizon {1} > least {2}: flights are too short"),
        (("training", "validation"), lambda a, b: a + b < 1, "training {0} + validation {1} leave no flight for the test"),
    )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows that are seen, and rows ahead."""
        return self.window, self.horizon


@dataclass(frozen=True)
class Sets:
    """Flights shared out; both scales were measured on the training flights alone, whose inputs are normalised.

    ``hidden`` is that of the truth and of how far vehicles go astray.
    """

    training: Series
    validation: Series
    test: Series
    inputs: Scale
    hidden: Scale


def loaded(task: Telemetry, device: torch.device) -> Sets:
    """Fly a task's flights, share them out, and normalise those to be learned from, once."""
    plain = Telemetry()
    return _loaded(replace(task, window=plain.window, horizon=plain.horizon, stride=plain.stride), device)


@lru_cache(maxsize=2)
def _loaded(task: Telemetry, device: torch.device) -> Sets:
    fleet = Fleet(task.least, task.most, task.wind, task.payload)
    flights: list[dict[str, Tensor]] = []
    with torch.no_grad():
        for start in range(0, task.flights, TOGETHER):
            seeds = range(task.first + start, task.first + min(start + TOGETHER, task.flights))
            flights += columns(fleet.recorded(Streams(seeds), Quadrotor()))
    groups = telemetry.split(len(flights), (task.training, task.validation), task.split)
    used = (groups[0][: max(1, round(task.used * len(groups[0])))], *groups[1:])
    training, validation, test = (telemetry.series([flights[n] for n in group]) for group in used)
    scale = telemetry.fitted(training.inputs, FEATURES)
    hidden = telemetry.fitted(torch.cat([training.truth, training.astray], 1), (*HIDDEN, *ASTRAY))
    telemetry.normalised(training, scale)
    parts = (training, validation, test, scale, hidden)
    return Sets(*(tree_map(lambda leaf: leaf.to(device), part) for part in parts))


@dataclass(frozen=True)
class WindowsConfig:
    """How much is learned from at a time.

    Attributes:
        batch: Windows per run and update (N).
    """

    batch: Annotated[int, Ge(1), Le(1_000_000)] = 256


class Windowed:
    """Draws windows of the training flights, each as likely as any other at any time: nothing of a pass is to be kept.

    The flights stay on the device as they are, and a batch is gathered from them.
    """

    def __init__(self, task: Telemetry, config: WindowsConfig, rng: Streams, rt: Runtime) -> None:
        """Find out where windows begin."""
        self.task, self.config, self.rng = task, config, rng
        self.flights = loaded(task, rt.device).training
        found, _ = telemetry.starts(self.flights.bounds.cpu(), task.window + task.horizon, task.stride)
        self.starts = found.to(rt.device)
        self._gather = rt.timed(telemetry.gathered, "load")
        self.drawn = 0  # batches

    @torch.no_grad()
    def next(self) -> Batch:
        """Draw a batch for each run."""
        index = self.rng.integers("windows", self.config.batch) % len(self.starts)
        rows = self._gather(self.flights, self.starts[index.flatten()], *self.task.shape)
        self.drawn += 1
        return Batch(_unflattened(rows, len(self.rng.seeds)), index)

    def begin(self) -> None:
        """Nothing is left outside a captured cycle."""

    def end(self) -> None:
        """Nothing is."""

    def feedback(self, batch: Batch, update: Update) -> None:
        """Every window stays as likely as it was."""

    def numbers(self) -> Numbers:
        """Name nothing: what is kept never changes."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return a sign of the flights; all else is in the streams."""
        return {"flights": fingerprint(self.flights)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken.

        Raises:
            FileError: The flights are others.
        """
        if not torch.equal(state["flights"].cpu(), fingerprint(self.flights)):
            raise FileError("flights: others than those this run was trained on; bring those back, or train anew.")

    def segments(self, saved: Iterable[str]) -> dict[str, dict[str, Tensor] | None]:
        """Cut up nothing: there is no replay."""
        return {}

    def load_segments(self, segments: Mapping[str, Mapping[str, Tensor]] | None) -> None:
        """Bring back nothing."""

    def rows(self) -> dict[str, Tensor]:
        """Give nothing."""
        return {}


def fingerprint(flights: Series) -> Tensor:
    """Sum up flights such that others give other numbers (host sync)."""
    weight = torch.arange(1, len(flights.inputs) + 1, dtype=torch.float64, device=flights.inputs.device)
    parts = [(leaf.double().nan_to_num().sum(1) * weight).sum() for leaf in (flights.inputs, flights.truth)]
    return torch.stack(parts).cpu()


def _unflattened(rows: telemetry.Windows, runs: int) -> telemetry.Windows:
    return tree_map(lambda leaf: leaf.unflatten(0, (runs, -1)), rows)




DATA: dict[str, type[Telemetry]] = {"telemetry": Telemetry}
"""Tasks of learning from data, by name."""
