"""Where flights come from: simulated by their numbers, or read from a folder of logs."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from uavlab.core.errors import FileError
from uavlab.core.rng import Streams
from uavlab.storage.files import replacing
from uavlab.telemetry.dataset import HIDDEN
from uavlab.telemetry.logs.column_map import read_mapping
from uavlab.telemetry.logs.columns import INPUTS, TRUTH
from uavlab.telemetry.logs.log import READERS, read_log
from uavlab.telemetry.logs.resample import resampled
from uavlab.telemetry.simulation.flights import RATE, Fleet, columns
from uavlab.telemetry.simulation.quadrotor import Quadrotor
from uavlab.telemetry.task import Telemetry

TOGETHER = 300  # flights that are flown at a time
SUFFIXES = {*READERS, ".ulg"}

Columns = dict[str, Tensor]


def flown(task: Telemetry) -> Iterator[Mapping[int, Columns]]:
    """Fly some flights after the other; each is the same whatever others are flown."""
    fleet = Fleet(task.least, task.most, task.wind, task.payload)
    for start in range(0, task.flights, TOGETHER):
        numbers = range(start, min(start + TOGETHER, task.flights))
        with torch.no_grad():
            recording = fleet.recorded(Streams([task.first + n for n in numbers]), Quadrotor())
        yield dict(zip(numbers, columns(recording), strict=True))


def logged(task: Telemetry) -> Iterator[Mapping[int, Columns]]:
    """Read one log after the other, in the order of their names.

    Raises:
        FileError: There is none, or one is damaged, lacks a column, does not know the truth or is too short.
    """
    mapping = read_mapping(Path(task.mapping)) if task.mapping else None
    for number, path in enumerate(files(Path(task.logs))):
        told = read(path, mapping, sum(task.shape))
        if unknown := [name for name in HIDDEN if name not in told]:
            raise FileError(f"{path}: does not tell {', '.join(unknown)}; only logs that do can be learned from.")
        yield {number: told}


def read(path: Path, mapping: object = None, least: int = 1) -> Columns:
    """Read a log as a flight of ``RATE`` rows a second, with the truth if the log knows it.

    Raises:
        FileError: It is damaged, lacks a column, or has fewer than ``least`` rows.
    """
    log = read_log(path, mapping)  # type: ignore[arg-type]
    flight = resampled(log, RATE, [*INPUTS, *(name for name in TRUTH if name in log.columns)])
    if len(flight.values) < least:
        raise FileError(
            f"{path}: {len(flight.values)} rows at {RATE} a second; a window and what follows it are {least}."
        )
    return {name: torch.from_numpy(flight.column(name).copy()) for name in flight.columns}


def files(folder: Path) -> list[Path]:
    """List the logs in a folder.

    Raises:
        FileError: It is no folder, or holds none.
    """
    found = sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise FileError(f"{folder}: no logs there; expected files that end in {', '.join(sorted(SUFFIXES))}.")
    return found


def flights(task: Telemetry) -> Iterator[Mapping[int, Columns]]:
    """Give the flights of a task, some after the other, by number."""
    return logged(task) if task.logs else flown(task)


def count(task: Telemetry) -> int:
    """Count them.

    Raises:
        FileError: There are no logs.
    """
    return len(files(Path(task.logs))) if task.logs else task.flights


def rows(task: Telemetry) -> int | None:
    """Expect so many rows of all flights; how long logs are is not known before they are read."""
    return None if task.logs else round(task.flights * (task.least + task.most) / 2)


def stamp(task: Telemetry) -> tuple[tuple[str, int, int], ...]:
    """Tell which files a task's flights come from, and when they were last changed; none where they are simulated.

    Raises:
        FileError: There are no logs.
    """
    paths = [*files(Path(task.logs)), *([Path(task.mapping)] if task.mapping else [])] if task.logs else []
    stats = [(path, path.stat()) for path in paths if path.exists()]
    return tuple((str(path.resolve()), stat.st_size, stat.st_mtime_ns) for path, stat in stats)


def write(task: Telemetry, folder: Path, count: int) -> Iterator[tuple[Path, int]]:
    """Write the first simulated flights, truth and all, as NPZ files into a folder that exists; yield each.

    Raises:
        ResourceError: The disk refuses; files that were yielded are whole.
    """
    for some in flown(task):
        for number, told in list(some.items())[: max(0, count - min(some))]:
            path = folder / f"flight_{task.first + number:06d}.npz"
            values = {name: column.numpy().astype(np.float32) for name, column in told.items()}
            time = np.arange(len(values["x"])) / RATE
            with replacing(path) as beside:
                np.savez(beside, allow_pickle=False, time=time, **values)
            yield path, len(time)
