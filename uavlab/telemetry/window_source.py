"""Where batches come from that are learned from logs: windows of flights, drawn by index."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Annotated, Literal, TypeVar, cast, get_args

import torch
from annotated_types import Ge, Le
from jaxtyping import Int
from torch import Tensor

from uavlab.core.errors import FileError, ResourceError
from uavlab.core.protocols import CheckedTensors
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Update, tree_map
from uavlab.runtime.oom_retry import refusal_reason, require_memory
from uavlab.runtime.runtime import Runtime
from uavlab.telemetry import dataset
from uavlab.telemetry import flights as fleet
from uavlab.telemetry.dataset import ASTRAY, FEATURES, HIDDEN, ROW, Scale, Series
from uavlab.telemetry.disk_dataset import Spool
from uavlab.telemetry.item_dataset import Items, brought
from uavlab.telemetry.task import Telemetry

T = TypeVar("T")
OTHERS = "flights: others than those this run was trained on; bring those back, or train anew."
LESS = "their number, or --set loader=stream"
Loader = Literal["per_item", "stream", "device"]


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
    """Fly or read a task's flights and share them out; where that was just done, give the same.

    Raises:
        FileError: There are too few, or something in them never varies.
        ResourceError: Memory or disk does not suffice.
    """
    plain = Telemetry()
    if not task.logs:  # which must be as long as a window and what follows it
        task = replace(task, window=plain.window, horizon=plain.horizon, stride=plain.stride)
    try:
        return _loaded(task, device, loader, fleet.file_stamp(task))
    except (MemoryError, RuntimeError) as error:
        said = refusal_reason(error)
        less = "most" if loader == "stream" else LESS
        raise ResourceError(f"flights: memory was refused ({said}); lower {less}.") from error


@lru_cache(maxsize=len(get_args(Loader)))
def _loaded(task: Telemetry, device: torch.device, loader: Loader, stamp: object) -> Sets:
    groups = dataset.split(fleet.count(task), (task.training, task.validation), task.split)
    used = (groups[0][: max(1, round(task.used * len(groups[0])))], *groups[1:])
    if loader == "stream":
        spools = [Spool(), Spool(), Spool()]
        for flights in fleet.load(task):
            for spool, group in zip(spools, used, strict=True):
                if some := [told for number, told in flights.items() if number in group]:
                    spool.append(dataset.series(some))
        training, validation, test = spools
        scale = dataset.named(*training.statistics(["inputs"]), FEATURES)
        hidden = dataset.named(*training.statistics(["truth", "astray"]), (*HIDDEN, *ASTRAY))
        training.normalise(scale)
        return Sets(training, validation, test, _on(scale, device), _on(hidden, device))
    everything = _held(task, device)
    first, second, third = (dataset.series([everything[n] for n in sorted(group)]) for group in used)
    scale = dataset.fitted(first.inputs, FEATURES)
    hidden = dataset.fitted(torch.cat([first.truth, first.astray], 1), (*HIDDEN, *ASTRAY))
    if loader == "device":
        dataset.normalised(first, scale)
    first, second, third = (_on(part, device) for part in (first, second, third))
    return Sets(first, second, third, _on(scale, device), _on(hidden, device))


def _held(task: Telemetry, device: torch.device) -> dict[int, fleet.Columns]:
    """Fly or read flights while there is room for them: for all, if that is known before, or for those that came."""
    found: dict[int, fleet.Columns] = {}
    _require_room(fleet.rows(task) or 0, device)
    for flights in fleet.load(task):
        found |= flights
        _require_room(sum(len(told["x"]) for told in found.values()), device)
    return found


def _require_room(rows: int, device: torch.device) -> None:
    for place in (torch.device("cpu"), device):
        require_memory(ROW * rows, "flights", LESS, place)


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

    items: Callable[..., Items] = Items  # what brings them one by one

    def __init__(self, task: Telemetry, config: WindowsConfig, rng: Streams, rt: Runtime) -> None:
        """Find out where windows begin."""
        self.task, self.config, self.rng, self.loader = task, config, rng, rt.toggles.loader
        self.sets = loaded(task, rt.device, self.loader)
        bounds = self.sets.training.bounds.cpu()
        self.starts = dataset.starts(bounds, sum(task.shape), task.stride)[0].to(rt.device)
        self.drawn: deque[Tensor] = deque()  # and not yet brought
        self._timed = partial(rt.time_stage, name="load")
        self._copied = rt.time_stage(partial(_on, device=rt.device), "copy")
        self._bring = self._timed(self._items() if self.loader == "per_item" else self._at_once)

    @torch.no_grad()
    def next(self) -> Batch:
        """Draw a batch for each run."""
        rows = self._copied(self._bring())
        index = self.drawn.popleft()
        return Batch(tree_map(lambda leaf: leaf.unflatten(0, index.shape), rows), index)

    def draw(self) -> Int[Tensor, " N"]:
        """Choose windows for a batch of all runs, and give their first rows."""
        self.drawn.append(self.rng.integers("windows", self.config.batch) % len(self.starts))
        return self.starts[self.drawn[-1].flatten()]

    def _at_once(self) -> dataset.Windows:
        return self.sets.training.gathered(self.draw(), *self.task.shape)

    def _items(self) -> Callable[[], dataset.Windows]:
        again = list(self.drawn)
        first = (self.starts[index.flatten()] for index in again)
        asked = (start.tolist() for start in chain(first, iter(self.draw, None)))
        flights, pin = cast(Series, self.sets.training), self.starts.is_cuda
        items = self.items(flights, self.sets.inputs, *self.task.shape)
        return brought(items, asked, self.config.workers, pin).__next__

    def before_cycle(self) -> None:
        """Nothing is left outside a captured cycle."""

    def after_cycle(self) -> None:
        """Nothing is."""

    def feedback(self, batch: Batch, update: Update) -> None:
        """Every window stays as likely as it was."""

    def tensors_to_check(self) -> CheckedTensors:
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
            raise FileError(OTHERS)
        self.drawn = deque(state["drawn"].to(self.starts.device))
        if self.loader == "per_item":
            self._bring = self._timed(self._items())

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
