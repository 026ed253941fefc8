"""Residuals of the equations of flight in windows, and rotations about the vertical, which leave them unchanged."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.types import Scale
from uavlab.ops.geometry import constant
from uavlab.telemetry.dataset import AXES, FEATURES, HIDDEN, MOTORS, PHYSICS_ROWS, TURNS, Windows
from uavlab.telemetry.simulation.flights import ACCELEROMETER, CURRENT, GYROSCOPE, RATE, VOLTAGE
from uavlab.telemetry.simulation.quadrotor import Quadrotor

ROWS = 20  # rows at the end of a window in which residuals are computed
MEMORY = PHYSICS_ROWS - ROWS  # rows of commands from which a motor's speed is computed
LEAST_LAG, LEAST_MASS = 0.005, 0.3  # s, kg: lower limits, because a network may predict impossible values
NORTH = [n for n, name in enumerate(FEATURES) if name.endswith("_north")]
EAST = [n for n, name in enumerate(FEATURES) if name.endswith("_east")]


def _matrix(entries: dict[tuple[int, int], float]) -> tuple[tuple[float, ...], ...]:
    """Return a matrix of features with these entries, as nested tuples."""
    numbers = range(len(FEATURES))
    return tuple(tuple(entries.get((row, column), 0.0) for column in numbers) for row in numbers)


LEVEL = {*NORTH, *EAST}
FIXED = _matrix({(n, n): 1.0 for n in range(len(FEATURES)) if n not in LEVEL})
COSINE = _matrix({(n, n): 1.0 for n in LEVEL})
SINE = _matrix({pair: sign for n, e in zip(NORTH, EAST, strict=True) for pair, sign in (((n, e), 1.0), ((e, n), -1.0))})
"""A rotation of features about the vertical is FIXED + cos COSINE + sin SINE."""


def residuals(inputs: Float[Tensor, "*lead T F"], hidden: Float[Tensor, "*lead K"]) -> dict[str, Tensor]:
    """Compute the residuals of the equations of ``simulation.quadrotor`` in the last rows of windows.

    Args:
        inputs: ``FEATURES`` in physical units, at least ``PHYSICS_ROWS`` rows.
        hidden: Predicted ``HIDDEN`` in physical units, taken as constant over the last ``ROWS`` rows.

    Returns:
        ``force`` (Newton's law for the measured specific force), ``spin`` (Euler's equation for the turn rates) and
        ``charge`` (Ohm's law: the battery's voltage without load is constant over so few rows), all in standard
        deviations of the sensors' noise.
    """
    vehicle = Quadrotor()
    wind_north, wind_east, payload, drag, lag, sag = hidden.unbind(-1)  # HIDDEN
    last = inputs[..., -ROWS:, :]
    voltage, current = _columns(last, ["voltage"])[..., 0], _columns(last, ["current"])[..., 0]
    lift = vehicle.lift(motor_speeds(inputs, lag, vehicle.nominal))
    mass = (vehicle.mass + payload).clamp_min(LEAST_MASS)[..., None, None]
    down, velocity, measured = (
        _columns(last, [f"{name}_{axis}" for axis in AXES]) for name in ("lean", "velocity", "force")
    )
    air = velocity - torch.stack([wind_north, wind_east, torch.zeros_like(drag)], -1)[..., None, :]
    across = air - (air * down).sum(-1, keepdim=True) * down  # in the plane of the rotors
    force = -(lift.sum(-1, keepdim=True) * down + drag[..., None, None] * across) / mass
    rate = _columns(last, [f"rate_{axis}" for axis in TURNS])
    inertia = constant(tuple(vehicle.inertia), rate.device, rate.dtype)
    torque = vehicle.torque(lift) - torch.linalg.cross(rate, inertia * rate)
    change = (rate[..., 1:, :] - rate[..., :-1, :]) * RATE
    rest = voltage + (sag / current[..., -1].clamp_min(1.0))[..., None] * current
    return {
        "force": (measured - force) / ACCELEROMETER,
        "spin": (change - (torque / inertia)[..., :-1, :]) / (GYROSCOPE * RATE * 2**0.5),
        "charge": (rest - rest.mean(-1, keepdim=True)) / (VOLTAGE**2 + (0.03 * CURRENT) ** 2) ** 0.5,
    }


def motor_speeds(
    inputs: Float[Tensor, "*lead T F"], lag: Float[Tensor, "*lead"], nominal: float
) -> Float[Tensor, "*lead M 4"]:
    """Estimate the motors' speeds in the last ``ROWS`` rows: commands x voltage, low-pass filtered with the lag (s)."""
    recent = inputs[..., -(ROWS + MEMORY - 1) :, :]
    aim = _columns(recent, MOTORS) * _columns(recent, ["voltage"]) / nominal
    decay = torch.exp(-1 / (RATE * lag.clamp_min(LEAST_LAG)))[..., None]
    weight = (1 - decay) * decay ** torch.arange(MEMORY - 1, -1, -1, device=lag.device)
    weight = weight / weight.sum(-1, keepdim=True)
    return torch.einsum("...rmk,...k->...rm", aim.unfold(-2, MEMORY, 1), weight)


def _columns(inputs: Tensor, names: Sequence[str]) -> Tensor:
    first = FEATURES.index(names[0])  # they are adjacent
    return inputs[..., first : first + len(names)]


def rotate_windows(rows: Windows, share: Float[Tensor, "*lead"], scale: Scale) -> Windows:
    """Rotate each window about the vertical.

    Args:
        rows: Windows with inputs normalised by ``scale`` and targets in physical units.
        share: Angle from north to east as a share of a full turn, in [0, 1).
        scale: Scale of the inputs.
    """
    angle = 2 * math.pi * share
    cos, sin = angle.cos()[..., None], angle.sin()[..., None]
    matrix = feature_rotation(cos, sin)
    inner = matrix * scale.spread[:, None] / scale.spread  # of normalised features
    shift = (scale.center @ matrix - scale.center) / scale.spread
    wind, rest = rows.truth.split([2, len(HIDDEN) - 2], -1)
    error = rows.tracking_error
    return Windows(
        inputs=rows.inputs @ inner + shift[..., None, :],
        truth=torch.cat([_rotate(wind, cos[..., 0], sin[..., 0]), rest], -1),
        tracking_error=torch.cat([_rotate(error[..., :2], cos, sin), error[..., 2:]], -1),
    )


def feature_rotation(cos: Float[Tensor, "*lead 1"], sin: Float[Tensor, "*lead 1"]) -> Float[Tensor, "*lead F F"]:
    """Return the matrices that rotate features when multiplied from the right."""
    same, flat, other = (constant(matrix, cos.device, cos.dtype) for matrix in (FIXED, COSINE, SINE))
    return same + cos[..., None] * flat + sin[..., None] * other


def _rotate(pair: Float[Tensor, "*lead 2"], cos: Tensor, sin: Tensor) -> Float[Tensor, "*lead 2"]:
    north, east = pair.unbind(-1)
    return torch.stack([cos * north - sin * east, sin * north + cos * east], -1)
