"""Flights concatenated into one tensor per quantity, and windows of them, gathered by index.

A window lies within one flight. Its targets are the hidden quantities of its last row and the tracking error of the
rows after it.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.errors import FileError
from uavlab.core.types import Scale, tensors
from uavlab.ops.geometry import rotate
from uavlab.telemetry.simulation import LAYOUT, RATE

AXES, TURNS = ("north", "east", "down"), ("roll", "pitch", "yaw")
RECENT = 100  # rows of ``recent_mean``
PHYSICS_ROWS = 50  # last rows of a window that the physics loss needs
TRACKING_ERROR = tuple(f"tracking_error_{axis}" for axis in AXES)
MOTORS = tuple(f"motor_{number}" for number in (1, 2, 3, 4))
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
