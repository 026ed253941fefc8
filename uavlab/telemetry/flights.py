"""The flights of a task by number, as columns: simulated from their seeds, or read from a folder of logs."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64

from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.core.rng import Streams
from uavlab.storage.files import atomic_write
from uavlab.telemetry.dataset import HIDDEN
from uavlab.telemetry.logs.column_map import ColumnMap, read_column_map
from uavlab.telemetry.logs.columns import COLUMNS, INPUTS, QUATERNION, TRUTH
from uavlab.telemetry.logs.log import READERS, Log, Signal, read_log
from uavlab.telemetry.logs.raw import list_names
from uavlab.telemetry.simulation.flights import RATE, Columns, Fleet
from uavlab.telemetry.simulation.quadrotor import Quadrotor
from uavlab.telemetry.task import Telemetry

GAP = 1.0  # s: longest time without a value
SAME = 1e-6  # s: time resolution of ULog; smaller differences are ignored
MOST_VALUES = 2**28  # of one flight: a gigabyte of float32


def resample(log: Log, rate: float, columns: Sequence[str]) -> dict[str, Float32[np.ndarray, " T"]]:
    """Resample columns of a log to ``rate`` rows per second over the time that all of them share.

    Sensor values are interpolated linearly; commands and references hold their last value. Quaternions are interpolated
    linearly along the shorter arc and normalised. Rows without a value are skipped.
    """
    _require_columns(log, columns)
    known = {name: _finite_rows(log, name) for name in columns}
    first, last = _shared_time(log, known)
    for name in columns:
        _check_gaps(log.columns[name], name, known[name], first, last)
    rows = int((last - first) * rate + SAME * rate) + 1
    if rows * len(columns) > MOST_VALUES:
        raise ConfigError(
            f"{log.source}: {rows:,} rows of {len(columns)} columns; resample at a lower rate or in parts."
        )
    time = first + np.arange(rows) / rate
    flight = {name: _interpolate(log, name, known[name], time).astype(np.float32) for name in columns}
    if set(QUATERNION) <= set(columns):
        length = np.linalg.norm([flight[name] for name in QUATERNION], axis=0)
        flight |= {name: flight[name] / length for name in QUATERNION}
    return flight


def _require_columns(log: Log, columns: Sequence[str]) -> None:
    absent = [name for name in columns if name not in log.columns]
    if absent:
        problem = f"{log.source}: no column {', '.join(map(repr, absent))}"
        notes = "".join(f" ({note})" for note in log.notes if {*note.partition(":")[0].split(", ")} & {*absent})
        expected, present = list_names(list(columns)), list_names(list(log.columns))
        raise FileError(f"{problem}{notes}; expected {expected}; found {present}.")


def _finite_rows(log: Log, name: str) -> Bool[np.ndarray, " T"]:
    """Mask the rows with a value; for an attitude, those with all four components."""
    parts = QUATERNION if name in QUATERNION else (name,)
    return np.logical_and.reduce([np.isfinite(log.columns[part].values) for part in parts])


def _shared_time(log: Log, known: Mapping[str, Bool[np.ndarray, " T"]]) -> tuple[float, float]:
    ends = {name: log.columns[name].time[rows][[0, -1]] for name, rows in known.items() if rows.any()}
    if len(ends) < len(known):
        raise FileError(f"{log.source}: no row has all of {', '.join(QUATERNION)}.")
    late, early = max(ends, key=lambda it: ends[it][0]), min(ends, key=lambda it: ends[it][1])
    first, last = float(ends[late][0]), float(ends[early][1])
    if last <= first:
        problem = f"{late!r} begins at {first:.3f} s, {early!r} ends at {last:.3f} s after the start"
        raise FileError(f"{log.source}: columns share no time: {problem}; leave one of them out.")
    return first, last


def _check_gaps(signal: Signal, name: str, known: Bool[np.ndarray, " T"], first: float, last: float) -> None:
    """Refuse gaps longer than ``GAP`` between ``first`` and ``last``."""
    rows = np.flatnonzero(known)
    time = signal.time[rows]
    long = (np.diff(time) > GAP + SAME) & (time[:-1] < last) & (time[1:] > first)
    if long.any():
        at = int(np.flatnonzero(long)[0])
        before, after = int(rows[at]), int(rows[at + 1])
        what = f"{after - before - 1} rows without a value" if after - before > 1 else "nothing"
        where = f"{signal.group.label(signal.field, before)} ({name})"
        until = f"{time[at + 1]:.3f} s after the start ({signal.group.locate(after)})"
        expected = f"expected gaps of at most {GAP:g} s; cut the log there"
        raise FileError(f"{where}: {what} from {time[at]:.3f} to {until}; {expected}.")


def _interpolate(
    log: Log, name: str, known: Bool[np.ndarray, " T"], time: Float64[np.ndarray, " N"]
) -> Float64[np.ndarray, " N"]:
    signal = log.columns[name]
    since, values = signal.time[known], signal.values[known]
    if COLUMNS[name].held:
        return values[np.searchsorted(since, time + SAME, side="right") - 1]
    if name in QUATERNION:
        values = values * _signs(log, known)
    return np.interp(time, since, values)


def _signs(log: Log, known: Bool[np.ndarray, " T"]) -> Float64[np.ndarray, " K"]:
    """Return the sign of each quaternion that makes the sequence continuous (q and -q are equal attitudes)."""
    parts = np.stack([log.columns[name].values[known] for name in QUATERNION])
    flips = np.where((parts[:, 1:] * parts[:, :-1]).sum(0) < 0, -1.0, 1.0)
    begin = -1.0 if parts[0, 0] < 0 else 1.0
    return begin * np.concatenate(([1.0], np.cumprod(flips)))


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
    """Yield logs one by one, sorted by name."""
    mapping = read_column_map(Path(task.mapping)) if task.mapping else None
    for number, path in enumerate(list_logs(Path(task.logs))):
        flight = read(path, mapping, sum(task.shape))
        if unknown := [name for name in HIDDEN if name not in flight]:
            raise FileError(
                f"{path}: does not hold {', '.join(unknown)}; only logs with the truth can be learned from."
            )
        yield {number: flight}


def read(path: Path, mapping: ColumnMap | None = None, least: int = 1) -> Columns:
    """Read a log as a flight of ``RATE`` rows per second, with the truth if the log holds it."""
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
    """Write the first simulated flights, with the truth, as NPZ files into a folder; yield each path and its rows."""
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
