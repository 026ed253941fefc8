"""The task of predicting what is not in a flight log from windows of it, and its flights: simulated or from logs."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Le

from uavlab.core.errors import FileError, ResourceError
from uavlab.core.rng import Streams
from uavlab.core.types import Rule
from uavlab.storage.files import atomic_write
from uavlab.telemetry.dataset import HIDDEN, PHYSICS_ROWS
from uavlab.telemetry.logs.columns import INPUTS, TRUTH, ColumnMap, read_column_map
from uavlab.telemetry.logs.log import READERS, read_log, resample
from uavlab.telemetry.simulation import RATE, Columns, Fleet, Quadrotor


@dataclass(frozen=True)
class Telemetry:
    """Prediction of hidden quantities and of the tracking error ahead from a window of a flight log.

    Attributes:
        logs: Folder of logs to learn from; simulated flights if empty.
        mapping: YAML file that maps fields of the logs to columns; fields are named like columns if empty.
        flights: Flights to simulate.
        first: Seed of the first flight; a flight depends on its own seed alone.
        least: Rows of the shortest simulated flight, 100 per second.
        most: Rows of the longest simulated flight.
        wind: Strongest mean wind (m/s).
        payload: Heaviest payload (kg).
        training: Share of the flights in the training set.
        validation: Share of the flights in the validation set, which selects the model; the rest is the test set.
        used: Share of the training flights that are used, to measure the effect of less data.
        split: Seed of the random split of flights.
        window: Rows of a window (T).
        horizon: Rows ahead for which it predicts the tracking error (H).
        stride: Rows between windows.
    """

    logs: str = ""
    mapping: str = ""
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

    labels: ClassVar[dict[str, str]] = {
        "mean_r2": "mean R²",
        "wind": "wind (m/s)",
        "error": "error ahead",
        "wind_north": "wind north",
        "wind_east": "wind east",
        "motor_lag": "motor lag",
        "battery_sag": "battery sag",
        "error_north": "error north",
        "error_east": "error east",
        "error_down": "error down",
    }
    score: ClassVar[dict[str, float]] = {"mean_r2": 1.0}

    rules: ClassVar[tuple[Rule, ...]] = (
        (("mapping", "logs"), lambda m, f: f or not m, "mapping {0} without logs: set the folder that it is for"),
        (("least", "most"), lambda a, b: a <= b, "least {0} > most {1}: no flight is as long as that"),
        (
            ("window", "horizon", "least"),
            lambda w, h, n: w + h <= n,
            "window {0} + horizon {1} > least {2}: flights are too short",
        ),
        (
            ("physics", "window"),
            lambda p, w: p == 0 or w >= PHYSICS_ROWS,
            f"physics {{0}} looks at {PHYSICS_ROWS} rows, window {{1}} has fewer",
        ),
        (
            ("training", "validation"),
            lambda a, b: a + b < 1,
            "training {0} + validation {1} leave no flight for the test",
        ),
    )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of a window, and rows ahead."""
        return self.window, self.horizon

    spec = shape  # all that a learner needs


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
