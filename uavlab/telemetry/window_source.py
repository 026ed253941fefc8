"""The source of batches for learning from logs: windows of flights, drawn by index from memory, files or processes."""

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args
from weakref import finalize

import numpy as np
import torch
from annotated_types import Ge, Le
from jaxtyping import Float, Float64, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from uavlab.core.errors import FileError, ResourceError
from uavlab.core.protocols import Collector, Trial
from uavlab.core.registry import Resume, Settings
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Scale, tree_map
from uavlab.runtime.oom_retry import refusal_reason, require_memory
from uavlab.runtime.runtime import Runtime
from uavlab.telemetry import flights as fleet
from uavlab.telemetry.flights import FEATURES, HIDDEN, ROW, TRACKING_ERROR, FlightDataset, Telemetry, Windows

FIELDS = ("inputs", "truth", "tracking_error")
BLOCK = 100_000  # rows of ``block_statistics`` in memory at a time


class FlightFiles:
    """Flights in unnamed temporary files, which end with the process, or with this object and the last tensor of it."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.gettempdir())
        self.bounds = torch.zeros(1, dtype=torch.int64)
        with ExitStack() as stack:
            try:
                files = [stack.enter_context(tempfile.TemporaryFile(buffering=0, dir=self.folder)) for _ in FIELDS]
            except OSError as error:
                raise ResourceError(f"{self.folder}: no flights can be kept ({error.strerror}); set TMPDIR.") from error
            self.files = dict(zip(FIELDS, files, strict=True))
            finalize(self, stack.pop_all().close)

    def append(self, flights: FlightDataset) -> None:
        try:
            for name, file in self.files.items():
                left = getattr(flights, name).float().contiguous().numpy().data.cast("B")
                while left:
                    left = left[file.write(left) :]
        except OSError as error:
            do = "free space there, or set TMPDIR"
            raise ResourceError(f"{self.folder}: cannot be written ({error.strerror}); {do}.") from error
        self.bounds = torch.cat([self.bounds, self.bounds[-1] + flights.bounds[1:]])

    def read(self) -> FlightDataset:
        """Return all flights as tensors whose memory is that of the files; the system reads rows when they are used."""
        rows = int(self.bounds[-1])
        mapped = {name: np.memmap(file, np.float32, "r+").reshape(rows, -1) for name, file in self.files.items()}
        return FlightDataset(**{name: torch.from_numpy(part) for name, part in mapped.items()}, bounds=self.bounds)


def block_statistics(flights: FlightDataset, fields: Sequence[str]) -> tuple[Float[Tensor, " F"], Float[Tensor, " F"]]:
    """Compute mean and standard deviation of the columns of ``fields`` with ``BLOCK`` rows in memory at a time.

    Source:
        Chan, Golub and LeVeque 1983, "Algorithms for Computing the Sample Variance", eq. 2.1.
    """
    count, mean, total = 0, torch.zeros(()), torch.zeros(())
    for blocks in zip(*(getattr(flights, name).split(BLOCK) for name in fields), strict=True):
        values = torch.cat(blocks, 1).double()
        center, share = values.mean(0), len(values) / (count + len(values))
        total = total + (values - center).square().sum(0) + (center - mean).square() * count * share
        mean, count = mean + (center - mean) * share, count + len(values)
    return mean, (total / count).sqrt()


class ItemDataset(Dataset):
    """Windows by their first row, each a copy that is normalised when it is read.

    With ``cached``, rows are normalised once, and windows are views of them.
    """

    def __init__(self, flights: FlightDataset, scale: Scale, window: int, horizon: int, cached: bool = False) -> None:
        """Copy flights that are not normalised."""
        self.inputs, self.truth, self.tracking_error = (
            leaf.double().cpu().numpy() for leaf in (flights.inputs, flights.truth, flights.tracking_error)
        )
        self.window, self.horizon = window, horizon
        self.center, self.spread = (part.double().cpu().numpy() for part in (scale.center, scale.spread))
        self.cached = cached
        if cached:
            self.inputs, self.truth, self.tracking_error = (
                part.astype(np.float32) for part in (self._normal(self.inputs), self.truth, self.tracking_error)
            )

    def __getitem__(self, begin: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, truth and tracking error of the window whose first row is ``begin``."""
        end = begin + self.window
        parts = [self.inputs[begin:end], self.truth[end - 1], self.tracking_error[end : end + self.horizon]]
        if not self.cached:
            parts = [part.astype(np.float32) for part in (self._normal(parts[0]), *parts[1:])]
        inputs, truth, error = map(torch.from_numpy, parts)
        return inputs, truth, error

    def _normal(self, rows: Float64[np.ndarray, "rows F"]) -> Float64[np.ndarray, "rows F"]:
        return (rows - self.center) / self.spread


def load_batches(
    items: ItemDataset, starts: Iterator[list[int]], workers: int, pin: bool, ahead: int = 2, length: int | None = None
) -> Iterator[Windows]:
    """Yield batches of windows by their first rows; each of ``workers`` processes reads ``ahead`` batches in advance.

    ``length`` is that of a pass over ``starts`` without an end, after which the processes are started anew.
    """
    if length is not None:
        return chain.from_iterable(load_batches(items, islice(starts, length), workers, pin, ahead) for _ in count())
    kind: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": ahead} if workers else {}
    batches = iter(DataLoader(items, batch_sampler=starts, num_workers=workers, pin_memory=pin, **kind))
    # where it is part of a cycle, its queues would be closed before it can end its workers: it would wait 5 s for each
    finalize(batches, tuple, getattr(batches, "_index_queues", ()))
    return (Windows(*parts) for parts in batches)


T = TypeVar("T")
DATASET_CHANGED = "flights: others than those this run was trained on; bring those back, or train anew."
REDUCE_HINT = "their number, or --set loader=stream"
Loader = Literal["per_item", "stream", "device"]
TRIAL_FLIGHTS, TRIAL_ROWS = 10, 500  # of a trial: how many, and rows of each beyond a window and what follows it


@dataclass(frozen=True)
class DataSplit:
    """Flights split into groups, with scales of the training flights."""

    training: FlightDataset  # inputs are normalised, except for ``loader=per_item``, which does so window by window
    validation: FlightDataset
    test: FlightDataset
    inputs: Scale
    hidden: Scale  # of the truth and of the tracking error, in this order


def load_split(task: Telemetry, device: torch.device, loader: Loader = "device") -> DataSplit:
    """Simulate or read a task's flights and split them; the last result of each loader is cached."""
    if not task.logs:  # simulated flights do not depend on the windows
        task = replace(task, window=Telemetry.window, horizon=Telemetry.horizon, stride=Telemetry.stride)
    try:
        return _load_split(task, device, loader, fleet.file_stamp(task))
    except (MemoryError, RuntimeError) as error:
        reason = refusal_reason(error)
        less = "most" if loader == "stream" else REDUCE_HINT
        raise ResourceError(f"flights: memory was refused ({reason}); lower {less}.") from error


@lru_cache(maxsize=len(get_args(Loader)))
def _load_split(task: Telemetry, device: torch.device, loader: Loader, stamp: object) -> DataSplit:
    group, *others = fleet.split(fleet.count(task), (task.training, task.validation), task.split)
    groups = [group[: max(1, round(task.used * len(group)))], *others]
    stream = loader == "stream"
    parts = _read_to_files(task, groups) if stream else _read_to_memory(task, groups, device)
    statistics = block_statistics if stream else FlightDataset.statistics
    inputs = fleet.make_scale(*statistics(parts[0], ["inputs"]), FEATURES)
    hidden = fleet.make_scale(*statistics(parts[0], ["truth", "tracking_error"]), (*HIDDEN, *TRACKING_ERROR))
    if loader != "per_item":
        parts[0].normalise(inputs)
    training, validation, test = (part if stream else _move(part, device) for part in parts)
    return DataSplit(training, validation, test, _move(inputs, device), _move(hidden, device))


def _read_to_files(task: Telemetry, groups: Sequence[list[int]]) -> list[FlightDataset]:
    parts = [FlightFiles() for _ in groups]
    for chunk in fleet.load(task):
        for part, group in zip(parts, groups, strict=True):
            if flights := [flight for number, flight in chunk.items() if number in group]:
                part.append(fleet.concatenate(flights))
    return [part.read() for part in parts]


def _read_to_memory(task: Telemetry, groups: Sequence[list[int]], device: torch.device) -> list[FlightDataset]:
    flights: dict[int, fleet.Columns] = {}
    _require_room(fleet.rows(task) or 0, device)
    for chunk in fleet.load(task):
        flights |= chunk
        _require_room(sum(len(flight["x"]) for flight in flights.values()), device)
    return [fleet.concatenate([flights[number] for number in sorted(group)]) for group in groups]


def _require_room(rows: int, device: torch.device) -> None:
    for memory in (torch.device("cpu"), device):
        require_memory(ROW * rows, "flights", REDUCE_HINT, memory)


def _move(tree: T, device: torch.device) -> T:
    return tree_map(lambda leaf: leaf.to(device), tree)  # host sync, unless it is there


def _copy(tree: T, device: torch.device, pin: bool) -> T:
    """Return tensors on a device; with ``pin`` by way of pinned memory, so that the host does not wait for them."""

    def copy(leaf: Tensor) -> Tensor:
        waits = pin and not (leaf.is_cuda or leaf.is_pinned())
        return (leaf.pin_memory() if waits else leaf).to(device, non_blocking=pin)

    return tree_map(copy, tree)


@dataclass(frozen=True)
class WindowsConfig:
    """Size of a batch, and how it is read; all ways return the same windows.

    Attributes:
        batch: Windows per run and update (N).
        workers: Processes that read windows one by one (``loader=per_item``); 0 reads them in the main process.
        prefetch_factor: Batches that each of these processes reads in advance.
        persistent_workers: Whether these processes stay; otherwise they are started anew after each pass, that is as
            many windows as there are.
        pinned: Whether ``loader=per_item`` and ``stream`` pass batches to a GPU by pinned memory, in copies that the
            host does not wait for; without effect on a CPU.
        cached: Whether ``loader=per_item`` normalises all rows once, not window by window, and ``stream`` reads its
            files into host memory once.
    """

    batch: Annotated[int, Ge(1), Le(1_000_000), Resume.RESHAPED] = 256
    workers: Annotated[int, Ge(0), Le(256)] = 0
    prefetch_factor: Annotated[int, Ge(1), Le(64), Resume.SAME] = 2
    persistent_workers: Annotated[bool, Resume.SAME] = True
    pinned: Annotated[bool, Resume.SAME] = True
    cached: Annotated[bool, Resume.SAME] = False


class WindowCollector(Collector):
    """Draws windows of the training flights uniformly with replacement, without epochs.

    All loaders, ``device``, ``stream`` and ``per_item``, return the same windows.
    """

    settings = WindowsConfig
    per_rank = ("batch",)
    lacks: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("team", "replay"), "this learner learns from logs, no team flies"
    )
    calls = ("update", "load")
    items: Callable[..., ItemDataset] = ItemDataset

    @classmethod
    def measure_inputs(cls, config: Settings, rng: Streams, rt: Runtime) -> DataSplit:
        return load_split(config.env, rt.device, rt.toggles.loader)

    @classmethod
    def build(
        cls, config: Settings, env: Telemetry, inputs: DataSplit, policy: Any, snapshot: Any, rng: Streams, rt: Runtime
    ) -> "WindowCollector":
        return cls(env, config.source, rng, rt, inputs)

    @classmethod
    def plan(cls, config: Settings) -> dict[str, Any]:
        """Count windows, passes, flights and bytes without reading a flight; None where they depend on logs."""
        task, updates, rows = config.env, config.run.updates, fleet.rows(config.env)
        windows = None if updates is None else updates * config.source.batch
        strides = None if windows is None else windows * task.stride
        return {
            "windows_per_run": windows,
            "passes_per_run": strides and rows and round(strides / round(rows * task.training * task.used), 2),
            "flights": fleet.count(task),
            "flight_bytes": rows and rows * ROW,
        }

    @classmethod
    def data_per_update(cls, config: Settings) -> tuple[int, str]:
        return config.source.batch * config.run.runs, "windows"

    @classmethod
    def trial(cls, config: Settings) -> Trial:
        """Return the run on few and short simulated flights; an update takes windows of any flights."""
        task, rows = config.env, sum(config.env.shape) + TRIAL_ROWS
        small = Telemetry(flights=TRIAL_FLIGHTS, least=rows, most=rows, window=task.window, horizon=task.horizon)
        flights = f"{fleet.count(task):,} {'logs to read' if task.logs else 'flights to simulate'}"
        return Trial(replace(config, env=small), apart=f"{flights}, and scores")

    def __init__(
        self, task: Telemetry, config: WindowsConfig, rng: Streams, rt: Runtime, sets: DataSplit | None = None
    ) -> None:
        """List the windows of the training flights; ``sets`` are the flights, if they were loaded before."""
        self.task, self.config, self.rng, self.loader = task, config, rng, rt.toggles.loader
        self.sets = sets or load_split(task, rt.device, self.loader)
        bounds = self.sets.training.bounds.cpu()
        self.starts = fleet.window_starts(bounds, sum(task.shape), task.stride)[0].to(rt.device)
        self.host_work = "" if self.loader == "device" else f"loader={self.loader} reads on the host; use loader=device"
        self.pending: deque[Tensor] = deque()  # indices of windows that were drawn and not yet returned
        self._timed = partial(rt.time_stage, name="load")
        self.pin = config.pinned and rt.device.type == "cuda"
        copied = config.cached and self.loader == "stream"
        self.flights = tree_map(torch.clone, self.sets.training) if copied else self.sets.training
        self._copy = rt.time_stage(partial(_copy, device=rt.device, pin=self.pin), "copy")
        self._load = self._timed(self._load_items() if self.loader == "per_item" else self._gather)

    @torch.no_grad()
    def next(self) -> Batch:
        rows = self._copy(self._load())
        index = self.pending.popleft()
        return Batch(tree_map(lambda leaf: leaf.unflatten(0, index.shape), rows), index)

    def draw(self) -> Int[Tensor, " N"]:
        """Draw the windows of a batch for all runs, and return their first rows."""
        self.pending.append(self.rng.integers("windows", self.config.batch) % len(self.starts))
        return self.starts[self.pending[-1].flatten()]

    def _gather(self) -> Windows:
        """Return the windows of the next batch (host sync, unless they are on the device)."""
        if not self.pending:
            self.draw()
        starts = self.starts[self.pending[0].flatten()]
        return self.flights.gather(starts if self.loader == "device" else starts.cpu(), *self.task.shape)

    def _load_items(self) -> Callable[[], Windows]:
        again = list(self.pending)
        first = (self.starts[index.flatten()] for index in again)
        starts = (start.tolist() for start in chain(first, iter(self.draw, None)))  # host sync
        config = self.config
        items = self.items(self.flights, self.sets.inputs, *self.task.shape, config.cached)
        length = None if config.persistent_workers else max(1, len(self.starts) // (config.batch * len(self.rng.seeds)))
        return load_batches(items, starts, config.workers, self.pin, config.prefetch_factor, length).__next__

    def state_dict(self) -> dict[str, Tensor]:
        """Return the scales, which identify the flights, and the indices of windows drawn ahead."""
        empty = self.starts.new_zeros(0, len(self.rng.seeds), self.config.batch)
        return {"flights": self._fingerprint(), "drawn": torch.stack(list(self.pending)) if self.pending else empty}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``; windows that were drawn ahead for another size of batches are dropped."""
        if not torch.equal(state["flights"].to(self.starts.device), self._fingerprint()):
            raise FileError(DATASET_CHANGED)
        drawn = state["drawn"].to(self.starts.device)
        self.pending = deque(drawn if drawn.shape[-1] == self.config.batch else ())
        if self.loader == "per_item":
            self._load = self._timed(self._load_items())

    def _fingerprint(self) -> Tensor:
        scales = (self.sets.inputs, self.sets.hidden)
        return torch.cat([part for scale in scales for part in (scale.center, scale.spread)])
