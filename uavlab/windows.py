"""Where batches come from that are learned from logs: windows of flights, drawn by index."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Annotated, ClassVar, Literal, TypeVar, cast

import torch
from annotated_types import Ge, Le
from jaxtyping import Int
from torch import Tensor

from uavlab.core.errors import FileError
from uavlab.core.protocols import Numbers
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Rule, Update, tree_map
from uavlab.data import telemetry
from uavlab.data.items import Items, brought
from uavlab.data.spool import Spool
from uavlab.data.telemetry import ASTRAY, FEATURES, HIDDEN, Scale, Series
from uavlab.envs.flights import Fleet, columns
from uavlab.envs.quadrotor import Quadrotor
from uavlab.runtime.runtime import Runtime

T = TypeVar("T")
Loader = Literal["per_item", "stream", "device"]
TOGETHER = 300  # flights that are flown at a time


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
    """Flights shared out; both scales were measured on the training flights alone.

    ``hidden`` is that of the truth and of how far vehicles go astray. The training flights' inputs are normalised,
    unless that is left to whoever reads them.
    """

    training: Series | Spool
    validation: Series | Spool
    test: Series | Spool
    inputs: Scale
    hidden: Scale


def loaded(task: Telemetry, device: torch.device, loader: Loader = "device") -> Sets:
    """Fly a task's flights and share them out; where that was just done, give the same.

    Raises:
        FileError: There are too few, or something in them never varies.
        ResourceError: The disk does not suffice.
    """
    plain = Telemetry()
    return _loaded(replace(task, window=plain.window, horizon=plain.horizon, stride=plain.stride), device, loader)


@lru_cache(maxsize=2)
def _loaded(task: Telemetry, device: torch.device, loader: Loader) -> Sets:
    groups = telemetry.split(task.flights, (task.training, task.validation), task.split)
    used = (groups[0][: max(1, round(task.used * len(groups[0])))], *groups[1:])
    if loader == "stream":
        spools = [Spool(), Spool(), Spool()]
        for numbers, flights in _flown(task):
            for spool, group in zip(spools, used, strict=True):
                if some := [flights[n] for n in numbers if n in group]:
                    spool.append(telemetry.series(some))
        training, validation, test = spools
        scale = telemetry.named(*training.statistics(["inputs"]), FEATURES)
        hidden = telemetry.named(*training.statistics(["truth", "astray"]), (*HIDDEN, *ASTRAY))
        training.normalise(scale)
        return Sets(training, validation, test, _on(scale, device), _on(hidden, device))
    all_flights = {n: flights[n] for numbers, flights in _flown(task) for n in numbers}
    parts = [telemetry.series([all_flights[n] for n in sorted(group)]) for group in used]
    scale = telemetry.fitted(parts[0].inputs, FEATURES)
    hidden = telemetry.fitted(torch.cat([parts[0].truth, parts[0].astray], 1), (*HIDDEN, *ASTRAY))
    if loader == "device":
        telemetry.normalised(parts[0], scale)
    return Sets(*(_on(part, device) for part in (*parts, scale, hidden)))


def _flown(task: Telemetry) -> Iterator[tuple[range, dict[int, dict[str, Tensor]]]]:
    """Fly some flights after the other, by number."""
    fleet = Fleet(task.least, task.most, task.wind, task.payload)
    for start in range(0, task.flights, TOGETHER):
        numbers = range(start, min(start + TOGETHER, task.flights))
        with torch.no_grad():
            recording = fleet.recorded(Streams([task.first + n for n in numbers]), Quadrotor())
        yield numbers, dict(zip(numbers, columns(recording), strict=True))


def _on(tree: T, device: torch.device) -> T:
    return tree_map(lambda leaf: leaf.to(device), tree)


@dataclass(frozen=True)
class WindowsConfig:
    """How much is learned from at a time.

    Attributes:
        batch: Windows per run and update (N).
        workers: Processes that read windows one by one (``loader=per_item``); 0 reads them in this one.
    """

    batch: Annotated[int, Ge(1), Le(1_000_000)] = 256
    workers: Annotated[int, Ge(0), Le(256)] = 0


class Windowed:
    """Draws windows of the training flights, each as likely as any other at any time: nothing of a pass is to be kept.

    However they are read, ``device``, ``stream`` or ``per_item``, they are the same.
    """

    def __init__(self, task: Telemetry, config: WindowsConfig, rng: Streams, rt: Runtime) -> None:
        """Find out where windows begin."""
        self.task, self.config, self.rng, self.loader = task, config, rng, rt.toggles.loader
        self.sets = loaded(task, rt.device, self.loader)
        bounds = self.sets.training.bounds.cpu()
        self.starts = telemetry.starts(bounds, sum(task.shape), task.stride)[0].to(rt.device)
        self.drawn: deque[Tensor] = deque()  # and not yet brought
        self._bring = rt.timed(self._items() if self.loader == "per_item" else self._at_once, "load")

    @torch.no_grad()
    def next(self) -> Batch:
        """Draw a batch for each run."""
        rows = self._bring()
        index = self.drawn.popleft()
        return Batch(tree_map(lambda leaf: leaf.to(index.device).unflatten(0, index.shape), rows), index)

    def draw(self) -> Int[Tensor, " N"]:
        """Choose windows for a batch of all runs, and give their first rows."""
        self.drawn.append(self.rng.integers("windows", self.config.batch) % len(self.starts))
        return self.starts[self.drawn[-1].flatten()]

    def _at_once(self) -> telemetry.Windows:
        return self.sets.training.gathered(self.draw(), *self.task.shape)

    def _items(self) -> Callable[[], telemetry.Windows]:
        again = list(self.drawn)
        first = (self.starts[index.flatten()] for index in again)
        asked = (start.tolist() for start in chain(first, iter(self.draw, None)))
        flights, pin = cast(Series, self.sets.training), self.starts.is_cuda
        return brought(Items(flights, self.sets.inputs, *self.task.shape), asked, self.config.workers, pin).__next__

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
        """Return a sign of the flights, and what was drawn ahead; all else is in the streams."""
        empty = self.starts.new_zeros(0, len(self.rng.seeds), self.config.batch)
        return {"flights": self._sign(), "drawn": torch.stack(list(self.drawn)) if self.drawn else empty}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken.

        Raises:
            FileError: The flights are others.
        """
        if not torch.equal(state["flights"].to(self.starts.device), self._sign()):
            raise FileError("flights: others than those this run was trained on; bring those back, or train anew.")
        self.drawn = deque(state["drawn"].to(self.starts.device))
        if self.loader == "per_item":
            self._bring = self._items()

    def _sign(self) -> Tensor:
        scales = (self.sets.inputs, self.sets.hidden)
        return torch.cat([part for scale in scales for part in (scale.center, scale.spread)])

    def segments(self, saved: Iterable[str]) -> dict[str, dict[str, Tensor] | None]:
        """Cut up nothing: there is no replay."""
        return {}

    def load_segments(self, segments: Mapping[str, Mapping[str, Tensor]] | None) -> None:
        """Bring back nothing."""

    def rows(self) -> dict[str, Tensor]:
        """Give nothing."""
        return {}


DATA: dict[str, type[Telemetry]] = {"telemetry": Telemetry}
"""Tasks of learning from data, by name."""
