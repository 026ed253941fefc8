"""The task of predicting what is not in a flight log, its flights, simulated or from logs, and windows of them.

Flights are concatenated into one tensor per quantity; windows are gathered by index, and each lies within one flight.
Its targets are the hidden quantities of its last row and the tracking error of the rows after it.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.errors import FileError, ResourceError
from uavlab.core.rng import Streams
from uavlab.core.types import Rule, Scale, tensors
from uavlab.ops.geometry import rotate
from uavlab.storage.files import atomic_write
from uavlab.telemetry.logs.columns import INPUTS, MOTORS, TRUTH, ColumnMap, read_column_map
from uavlab.telemetry.logs.log import READERS, read_log, resample
from uavlab.telemetry.simulation import LAYOUT, RATE, Columns, Fleet, Quadrotor

CHUNK = 300  # flights simulated at a time
SUFFIXES = {*READERS, ".ulg"}
AXES, TURNS = ("north", "east", "down"), ("roll", "pitch", "yaw")
RECENT = 100  # rows of ``recent_mean``
PHYSICS_ROWS = 50  # last rows of a window that the physics loss needs
TRACKING_ERROR = tuple(f"tracking_error_{axis}" for axis in AXES)
FEATURES = (
    *TRACKING_ERROR,
    *(f"velocity_{axis}" for axis in AXES),
    *(f"commanded_velocity_{axis}" for axis in AXES),
    *(f"force_{axis}" for axis in AXES),
    "thrust",
    *(f"rate_{axis}" for axis in TURNS),
    *(f"lean_{axis}" for axis in AXES),
    *MOTORS,
    "voltage",
    "current",
    *(f"spin_{axis}" for axis in TURNS),
    *(f"command_{axis}" for axis in TURNS),
    "voltage_swing",
    "current_swing",
)
"""Inputs of a network in each row; positions enter as tracking errors only.

``force`` is the specific force in world axes, ``thrust`` its part along the body's down axis (m/s^2), ``lean`` the
direction of that axis, ``spin`` the change of turn rates (rad/s^2), ``command`` the commanded torque, up to a factor
per axis, and ``swing`` the difference of a number from its recent mean.
"""

HIDDEN = ("wind_north", "wind_east", "payload", "drag", "motor_lag", "battery_sag")
ROW = 4 * (len(FEATURES) + len(HIDDEN) + len(TRACKING_ERROR))  # bytes


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


@tensors
class Windows:
    """Windows of T rows with their targets: truth of the last row, tracking error (m) of the H rows after it."""

    inputs: Float[Tensor, "*lead T F"]
    truth: Float[Tensor, "*lead K"]
    tracking_error: Float[Tensor, "*lead H 3"]


@tensors
class FlightDataset:
    """Concatenated flights."""

    inputs: Float[Tensor, "rows F"]  # ``FEATURES``
    truth: Float[Tensor, "rows K"]  # ``HIDDEN``
    tracking_error: Float[Tensor, "rows 3"]  # true position minus its reference (m; north, east, down)
    bounds: Int[Tensor, " bounds"]  # first row of each flight, and the end of the last

    def gather(self, start: Int[Tensor, " N"], window: int, horizon: int) -> Windows:
        """Copy windows by their first rows, by one gather from overlapping views."""
        inputs, rows = self.inputs, len(self.inputs)
        width = inputs.shape[1]
        overlapping = inputs.as_strided((rows - window + 1, window * width), (width, 1))
        ahead = self.tracking_error.as_strided((rows - horizon + 1, horizon * 3), (3, 1))
        return Windows(
            inputs=overlapping.index_select(0, start).unflatten(1, (window, width)),
            truth=self.truth.index_select(0, start + (window - 1)),
            tracking_error=ahead.index_select(0, start + window).unflatten(1, (horizon, 3)),
        )

    def statistics(self, fields: Sequence[str]) -> tuple[Float[Tensor, " F"], Float[Tensor, " F"]]:
        """Compute mean and standard deviation of the columns of ``fields``."""
        values = torch.cat([getattr(self, name) for name in fields], 1).double()
        spread, center = torch.std_mean(values, 0, correction=0)
        return center, spread

    def normalise(self, scale: Scale) -> None:
        """Normalise the inputs in place."""
        self.inputs.sub_(scale.center).div_(scale.spread)


def features(columns: Mapping[str, Float[Tensor, " rows"]]) -> Float[Tensor, "rows F"]:
    """Compute ``FEATURES`` from the columns of a log with ``RATE`` rows per second.

    Columns are named as in ``uavlab.telemetry.logs.columns``. Features of a row depend on it and on earlier rows.
    """

    def stack(*names: str) -> Tensor:
        return torch.stack([columns[name] for name in names], -1)

    attitude, force = stack("qw", "qx", "qy", "qz"), stack("ax", "ay", "az")
    down = torch.zeros_like(force)
    down[:, 2] = 1
    gyro, motors, power = stack("p", "q", "r"), stack(*MOTORS), stack("voltage", "current")
    lift = motors.square()
    parts = [
        stack("x", "y", "z") - stack("ref_x", "ref_y", "ref_z"),
        stack("vx", "vy", "vz"),
        stack("ref_vx", "ref_vy", "ref_vz"),
        rotate(attitude, force),
        force[:, 2:],
        gyro,
        rotate(attitude, down),
        motors,
        power,
        torch.diff(gyro, dim=0, prepend=gyro[:1]) * RATE,
        lift @ lift.new_tensor([[-right, ahead, turn] for ahead, right, turn in LAYOUT]),
        power - recent_mean(power),
    ]
    return torch.cat(parts, -1)


def recent_mean(values: Float[Tensor, "rows F"]) -> Float[Tensor, "rows F"]:
    """Average the last ``RECENT`` rows up to each row, or all rows where there are fewer."""
    total = torch.cat([torch.zeros_like(values[:1]), values.double().cumsum(0)])
    row = torch.arange(1, len(values) + 1, device=values.device)
    first = (row - RECENT).clamp_min(0)
    return ((total[row] - total[first]) / (row - first)[:, None]).to(values.dtype)


def concatenate(flights: Sequence[Mapping[str, Tensor]]) -> FlightDataset:
    """Concatenate flights; unknown truth is NaN."""
    parts = []
    for columns in flights:
        unknown = torch.full_like(columns["x"], torch.nan)
        truth = torch.stack([columns.get(name, unknown) for name in HIDDEN], -1)
        place = [columns.get(f"true_{axis}", columns[axis]) - columns[f"ref_{axis}"] for axis in "xyz"]
        parts.append((features(columns), truth, torch.stack(place, -1)))
    inputs, truth, error = (torch.cat(part) for part in zip(*parts, strict=True))
    bounds = torch.tensor([0, *(len(part[0]) for part in parts)]).cumsum(0)
    return FlightDataset(inputs, truth, error, bounds)


def split(count: int, shares: tuple[float, float], seed: int) -> tuple[list[int], list[int], list[int]]:
    """Split flights at random by the shares of training and validation; each of the three groups has one at least."""
    if count < 3:
        raise FileError(f"flights: {count} cannot be split into training, validation and test; expected 3 or more.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    first = min(max(1, round(shares[0] * count)), count - 2)
    second = min(max(1, round(shares[1] * count)), count - first - 1)
    return order[:first], order[first : first + second], order[first + second :]


def window_starts(
    bounds: Int[Tensor, " bounds"], rows: int, stride: int
) -> tuple[Int[Tensor, " M"], Int[Tensor, " M"]]:
    """List the first rows of all windows of ``rows`` rows within a flight, ``stride`` apart, and their flights."""
    starts = [
        torch.arange(a, b - rows + 1, stride) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    flight = torch.arange(len(starts)).repeat_interleave(torch.tensor([len(rows) for rows in starts]))
    return torch.cat(starts), flight


def make_scale(center: Tensor, spread: Tensor, names: Sequence[str]) -> Scale:
    """Return measured means and standard deviations as a scale; refuse a feature that never varies, or is not known."""
    for n, value in enumerate(spread.tolist()):
        if not value > 1e-9:
            what = "has zero variance" if value == value else "is not known of every row"
            raise FileError(
                f"flights: feature {n} ({names[n]}) {what}; nothing can be learned of it. Leave such logs out."
            )
    return Scale(center.float(), spread.float())
