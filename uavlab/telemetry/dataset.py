"""Flights end to end in one tensor per quantity, and windows of them: gathered by index, never kept.

A window never crosses from one flight into the next, and what is told of it comes from rows that it cannot see: the
hidden quantities of its last row, and how far the vehicle is from its reference in the rows after.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.errors import FileError
from uavlab.core.types import tensors
from uavlab.ops.quaternions import rotate

AXES, TURNS = ("north", "east", "down"), ("roll", "pitch", "yaw")
AHEAD, RIGHT, CLOCKWISE = (1, -1, 1, -1), (1, -1, -1, 1), (1, 1, -1, -1)  # motors, as PX4 numbers those of "quad x"
RECENT = 100  # rows of a recent mean
LOOKED_AT = 50  # last rows of a window, by the equations of flight
ASTRAY = tuple(f"astray_{axis}" for axis in AXES)
FEATURES = (
    *ASTRAY,
    *(f"velocity_{axis}" for axis in AXES),
    *(f"wanted_velocity_{axis}" for axis in AXES),
    *(f"force_{axis}" for axis in AXES),
    "thrust",
    *(f"rate_{axis}" for axis in TURNS),
    *(f"lean_{axis}" for axis in AXES),
    *(f"motor_{number}" for number in (1, 2, 3, 4)),
    "voltage",
    "current",
    *(f"spin_{axis}" for axis in TURNS),
    *(f"command_{axis}" for axis in TURNS),
    "voltage_swing",
    "current_swing",
)
"""What a network sees of a row: positions and velocities by themselves say little, their differences do.

``spin`` is how rates change, ``command`` what the motors are told to do about it; ``swing`` is by how much a number
differs from its recent mean.
"""

MOTORS = tuple(zip(AHEAD, RIGHT, CLOCKWISE, strict=True))
HIDDEN = ("wind_north", "wind_east", "payload", "drag", "motor_lag", "battery_sag")
ROW = 4 * (len(FEATURES) + len(HIDDEN) + len(ASTRAY))  # bytes


@tensors
class Series:
    """Flights end to end.

    Attributes:
        inputs: ``FEATURES`` of each row.
        truth: ``HIDDEN`` of each row.
        astray: How far the vehicle truly is from its reference (m; north, east, down).
        bounds: First row of each flight, and the end of the last.
    """

    inputs: Float[Tensor, "rows F"]
    truth: Float[Tensor, "rows K"]
    astray: Float[Tensor, "rows 3"]
    bounds: Int[Tensor, " bounds"]

    def gathered(self, start: Int[Tensor, " N"], window: int, horizon: int) -> "Windows":
        """Take windows out by their first rows.

        Windows overlap in memory: each is a row of a view whose rows are one feature vector apart.
        """
        inputs, rows = self.inputs, len(self.inputs)
        width = inputs.shape[1]
        overlapping = inputs.as_strided((rows - window + 1, window * width), (width, 1))
        after = self.astray.as_strided((rows - horizon + 1, horizon * 3), (3, 1))
        return Windows(
            inputs=overlapping.index_select(0, start).unflatten(1, (window, width)),
            truth=self.truth.index_select(0, start + (window - 1)),
            astray=after.index_select(0, start + window).unflatten(1, (horizon, 3)),
        )


@tensors
class Windows:
    """Windows of T rows with what is to be told of them; ``astray`` is that of the H rows after."""

    inputs: Float[Tensor, "*lead T F"]
    truth: Float[Tensor, "*lead K"]
    astray: Float[Tensor, "*lead H 3"]


@tensors
class Scale:
    """Where numbers lie and how much they vary."""

    center: Float[Tensor, " F"]
    spread: Float[Tensor, " F"]


def features(columns: Mapping[str, Float[Tensor, " rows"]], rate: float = 100) -> Float[Tensor, "rows F"]:
    """Turn a log's columns, at ``rate`` rows a second, into ``FEATURES``.

    Columns are named as in ``uavlab.telemetry.logs.columns``. A row's features come from it and from those before.
    """

    def several(*names: str) -> Tensor:
        return torch.stack([columns[name] for name in names], -1)

    attitude, force = several("qw", "qx", "qy", "qz"), several("ax", "ay", "az")
    down = torch.zeros_like(force)
    down[:, 2] = 1
    turning, lift = several("p", "q", "r"), several("motor_1", "motor_2", "motor_3", "motor_4").square()
    power = several("voltage", "current")
    made = [
        several("x", "y", "z") - several("ref_x", "ref_y", "ref_z"),
        several("vx", "vy", "vz"),
        several("ref_vx", "ref_vy", "ref_vz"),
        rotate(attitude, force),
        force[:, 2:],
        turning,
        rotate(attitude, down),
        several("motor_1", "motor_2", "motor_3", "motor_4"),
        power,
        torch.diff(turning, dim=0, prepend=turning[:1]) * rate,
        lift @ lift.new_tensor([[-right, ahead, turn] for ahead, right, turn in MOTORS]),
        power - recent(power),
    ]
    return torch.cat(made, -1)


def recent(values: Float[Tensor, "rows F"]) -> Float[Tensor, "rows F"]:
    """Average each row with those of the last ``RECENT`` rows that there are."""
    total = torch.cat([torch.zeros_like(values[:1]), values.double().cumsum(0)])
    row = torch.arange(1, len(values) + 1, device=values.device)
    first = (row - RECENT).clamp_min(0)
    return ((total[row] - total[first]) / (row - first)[:, None]).to(values.dtype)


def series(flights: Sequence[Mapping[str, Tensor]]) -> Series:
    """Put flights end to end; where the truth is not known it is NaN."""
    parts = []
    for columns in flights:
        unknown = torch.full_like(columns["x"], torch.nan)
        truth = torch.stack([columns.get(name, unknown) for name in HIDDEN], -1)
        place = [columns.get(f"true_{axis}", columns[axis]) - columns[f"ref_{axis}"] for axis in "xyz"]
        parts.append((features(columns), truth, torch.stack(place, -1)))
    inputs, truth, astray = (torch.cat(each) for each in zip(*parts, strict=True))
    bounds = torch.tensor([0, *(len(part[0]) for part in parts)]).cumsum(0)
    return Series(inputs, truth, astray, bounds)


def split(count: int, shares: tuple[float, float], seed: int) -> tuple[list[int], list[int], list[int]]:
    """Share flights out, by chance, for training, for choosing between models, and for the last word.

    Raises:
        FileError: There are fewer than three.
    """
    if count < 3:
        raise FileError(f"flights: {count} cannot be split into training, validation and test; expected 3 or more.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    first = min(max(1, round(shares[0] * count)), count - 2)
    second = min(max(1, round(shares[1] * count)), count - first - 1)
    return order[:first], order[first : first + second], order[first + second :]


def starts(bounds: Int[Tensor, " bounds"], rows: int, stride: int) -> tuple[Int[Tensor, " M"], Int[Tensor, " M"]]:
    """List the first rows of all stretches of ``rows`` rows within a flight, ``stride`` apart, and their flights."""
    found = [
        torch.arange(a, b - rows + 1, stride) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    flight = torch.arange(len(found)).repeat_interleave(torch.tensor([len(each) for each in found]))
    return torch.cat(found), flight


def fitted(values: Float[Tensor, "rows F"], names: Sequence[str]) -> Scale:
    """Measure where each feature lies, and how much it varies.

    Raises:
        FileError: One never varies.
    """
    spread, center = torch.std_mean(values.double(), 0, correction=0)
    return named(center, spread, names)


def named(center: Tensor, spread: Tensor, names: Sequence[str]) -> Scale:
    """Make a scale of what was measured.

    Raises:
        FileError: A feature never varies, or was not known of some row.
    """
    for n, value in enumerate(spread.tolist()):
        if not value > 1e-9:
            what = "has zero variance" if value == value else "is not known of every row"
            raise FileError(
                f"flights: feature {n} ({names[n]}) {what}; nothing can be learned of it. Leave such logs out."
            )
    return Scale(center.float(), spread.float())


def normalised(flights: Series, scale: Scale) -> Series:
    """Normalise the inputs of whole flights, once and in place."""
    flights.inputs.sub_(scale.center).div_(scale.spread)
    return flights
