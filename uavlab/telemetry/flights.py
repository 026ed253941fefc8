"""The flights of a task by number, as columns: simulated from their seeds, or read from a folder of logs."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from uavlab.core.errors import FileError, ResourceError
from uavlab.core.rng import Streams
from uavlab.storage.files import atomic_write
from uavlab.telemetry.dataset import HIDDEN
from uavlab.telemetry.logs.column_map import ColumnMap, read_column_map
from uavlab.telemetry.logs.columns import INPUTS, TRUTH
from uavlab.telemetry.logs.log import READERS, read_log
from uavlab.telemetry.logs.resample import resample
from uavlab.telemetry.simulation.flights import RATE, Columns, Fleet
from uavlab.telemetry.simulation.quadrotor import Quadrotor
from uavlab.telemetry.task import Telemetry

CHUNK = 300  # flights simulated at a time
SUFFIXES = {*READERS, ".ulg"}


def load(task: Telemetry) -> Iterator[Mapping[int, Columns]]:
    """Yield the flights of a task in chunks, by number."""
    return read_all(task) if task.logs else simulate(task)


def simulate(task: Telemetry) -> Iterator[Mapping[int, Columns]]:
    """Yield simulated flights in chunks; a flight depends on its own seed alone."""
    fleet = Fleet(task.least, task.most, task.wind, task.payload)
    for start in range(0, task.flights, CHUNK):
        numbers = range(start, min(start + CHUNK, task.flights))
        with torch.no_grad():
            flights = fleet.fly(Streams([task.first + n for n in numbers]), Quadrotor())
        yield dict(zip(numbers, flights, strict=True))


def read_all(task: Telemetry) -> Iterator[Mapping[int, Columns]]:
    """Yield logs one by one, sorted by name.

    Raises:
        FileError: There are no logs, or one is damaged, lacks a column, does not hold the truth or is too short.
    """
    mapping = read_column_map(Path(task.mapping)) if task.mapping else None
    for number, path in enumerate(list_logs(Path(task.logs))):
        flight = read(path, mapping, sum(task.shape))
        if unknown := [name for name in HIDDEN if name not in flight]:
            raise FileError(
                f"{path}: does not hold {', '.join(unknown)}; only logs with the truth can be learned from."
            )
        yield {number: flight}


def read(path: Path, mapping: ColumnMap | None = None, least: int = 1) -> Columns:
    """Read a log as a flight of ``RATE`` rows per second, with the truth if the log holds it.

    Raises:
        FileError: The log is damaged, lacks a column, or has fewer than ``least`` rows.
    """
    log = read_log(path, mapping)
    flight = resample(log, RATE, [*INPUTS, *(name for name in TRUTH if name in log.columns)])
    if (rows := len(flight["x"])) < least:
        raise FileError(f"{path}: {rows} rows at {RATE} a second; a window and what follows it are {least}.")
    for note in log.notes:
        warnings.warn(f"{path}: {note}", stacklevel=2)
    return {name: torch.from_numpy(values) for name, values in flight.items()}


def list_logs(folder: Path) -> list[Path]:
    """List the logs in a folder, sorted by name; raise a FileError if there are none."""
    paths = sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise FileError(f"{folder}: no logs there; expected files that end in {', '.join(sorted(SUFFIXES))}.")
    return paths


def count(task: Telemetry) -> int:
    """Count the flights of a task; raise a FileError for a folder without logs."""
    return len(list_logs(Path(task.logs))) if task.logs else task.flights


def rows(task: Telemetry) -> int | None:
    """Return the expected rows of all simulated flights; None for logs, whose length is unknown before reading."""
    return None if task.logs else round(task.flights * (task.least + task.most) / 2)


def file_stamp(task: Telemetry) -> tuple[tuple[str, int, int], ...]:
    """Return path, size and time of change of each file that a task reads; empty where flights are simulated."""
    paths = [*list_logs(Path(task.logs)), *([Path(task.mapping)] if task.mapping else [])] if task.logs else []
    stats = [(path, path.stat()) for path in paths if path.exists()]
    return tuple((str(path.resolve()), stat.st_size, stat.st_mtime_ns) for path, stat in stats)


def write(task: Telemetry, folder: Path, count: int) -> Iterator[tuple[Path, int]]:
    """Write the first simulated flights, with the truth, as NPZ files into a folder; yield each path and its rows.

    Raises:
        ResourceError: The folder or a file cannot be written; files that were yielded are complete.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"{folder}: cannot be made ({error.strerror}); choose another folder.") from error
    for chunk in simulate(task):
        for number, flight in list(chunk.items())[: max(0, count - min(chunk))]:
            path = folder / f"flight_{task.first + number:06d}.npz"
            values = {name: column.numpy().astype(np.float32) for name, column in flight.items()}
            time = np.arange(len(values["x"])) / RATE
            with atomic_write(path) as beside:
                np.savez(beside, allow_pickle=False, time=time, **values)
            yield path, len(time)
