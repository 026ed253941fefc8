"""What the equations of flight say of the last rows of a window, given what a network says of its hidden quantities.

The residuals are in units of the noise that logs have, so that they may be added up.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.telemetry.dataset import FEATURES, HIDDEN, LOOKED_AT
from uavlab.telemetry.simulation.flights import ACCELEROMETER, CURRENT, GYROSCOPE, RATE, VOLTAGE
from uavlab.telemetry.simulation.quadrotor import Quadrotor

ROWS = 20  # at the end of a window that are looked at
MEMORY = LOOKED_AT - ROWS  # rows for which motors remember their commands
LEAST_LAG, LEAST_MASS = 0.005, 0.3  # s, kg: what a network says may be impossible


def residuals(inputs: Float[Tensor, "*lead T F"], hidden: Float[Tensor, "*lead K"]) -> dict[str, Tensor]:
    """Compare logs with the equations of motion of ``uavlab.telemetry.simulation.quadrotor``.

    Args:
        inputs: ``FEATURES`` in their own units, at least ``ROWS`` + ``MEMORY`` rows.
        hidden: ``HIDDEN`` in their own units, taken to hold for the last ``ROWS`` rows.

    Returns:
        ``force`` (Newton's second law: what the accelerometer felt), ``spin`` (Euler's: how rates changed) and
        ``charge`` (Ohm's law: that a battery at rest keeps its voltage for so short a time).
    """
    vehicle = Quadrotor()
    told = dict(zip(HIDDEN, hidden.unbind(-1), strict=True))
    last = inputs[..., -ROWS:, :]
    voltage, current = _of(last, ["voltage"])[..., 0], _of(last, ["current"])[..., 0]
    lift = vehicle.lift(motors(inputs, told["motor_lag"], vehicle.nominal))
    mass = (vehicle.mass + told["payload"]).clamp_min(LEAST_MASS)[..., None, None]
    down = _of(last, ["lean_north", "lean_east", "lean_down"])
    air = _of(last, ["velocity_north", "velocity_east", "velocity_down"]).clone()
    air = (
        air - torch.stack([told["wind_north"], told["wind_east"], torch.zeros_like(mass[..., 0, 0])], -1)[..., None, :]
    )
    beside = air - (air * down).sum(-1, keepdim=True) * down  # in the plane of the rotors
    force = -(lift.sum(-1, keepdim=True) * down + told["drag"][..., None, None] * beside) / mass
    felt = _of(last, ["force_north", "force_east", "force_down"])
    rate = _of(last, ["rate_roll", "rate_pitch", "rate_yaw"])
    inertia = rate.new_tensor(vehicle.inertia)
    torque = vehicle.torque(lift) - torch.linalg.cross(rate, inertia * rate)
    spun = (rate[..., 1:, :] - rate[..., :-1, :]) * RATE
    drop = (told["battery_sag"] / current[..., -1].clamp_min(1.0))[..., None] * current
    rest = voltage + drop
    return {
        "force": (felt - force) / ACCELEROMETER,
        "spin": (spun - (torque / inertia)[..., :-1, :]) / (GYROSCOPE * RATE * 2**0.5),
        "charge": (rest - rest.mean(-1, keepdim=True)) / (VOLTAGE**2 + (0.03 * CURRENT) ** 2) ** 0.5,
    }


def motors(
    inputs: Float[Tensor, "*lead T F"], lag: Float[Tensor, "*lead"], nominal: float
) -> Float[Tensor, "*lead M 4"]:
    """Tell the motors' speeds in the last ``ROWS`` rows: their commands, by voltage, behind by the lag."""
    recent = inputs[..., -(ROWS + MEMORY - 1) :, :]
    aim = _of(recent, [f"motor_{n}" for n in (1, 2, 3, 4)]) * _of(recent, ["voltage"]) / nominal
    keep = torch.exp(-1 / (RATE * lag.clamp_min(LEAST_LAG)))[..., None]
    weight = (1 - keep) * keep ** torch.arange(MEMORY - 1, -1, -1, device=lag.device)
    weight = weight / weight.sum(-1, keepdim=True)
    return torch.einsum("...rmk,...k->...rm", aim.unfold(-2, MEMORY, 1), weight)


def _of(inputs: Tensor, names: Sequence[str]) -> Tensor:
    first = FEATURES.index(names[0])  # they lie side by side
    return inputs[..., first : first + len(names)]
