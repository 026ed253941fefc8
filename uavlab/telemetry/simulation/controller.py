"""Reference trajectories, and an autopilot that tracks them without the hidden quantities."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from uavlab.core.types import tensors
from uavlab.ops.geometry import rotate, rotate_inverse
from uavlab.telemetry.simulation.quadrotor import GRAVITY, Body, Quadrotor

LEGS = 64  # most way-points of a flight
PEAK = 10 / 3**0.5  # largest acceleration of a minimum-jerk leg, in lengths per square of the time
LEG_NOISE, WAVE_NOISE = 4 * LEGS, 3 * 3 * 2
WAVES = ((0.1, 0.2), (0.2, 0.3), (0.3, 0.4))  # Hz: frequencies of an aggressive flight


@tensors
class Reference:
    """Desired position (m), velocity (m/s) and acceleration (m/s^2); north, east, down."""

    pos: Float[Tensor, "*lead 3"]
    vel: Float[Tensor, "*lead 3"]
    acc: Float[Tensor, "*lead 3"]


def way_points(noise: Float[Tensor, "B K"], time: Float[Tensor, " T"]) -> Reference:
    """Return flights between random points in 30 x 30 x 6 m, with peaks of 4 to 7 m/s^2 at most and stops at points.

    Source:
        Flash and Hogan 1985, "The Coordination of Arm Movements", eq. A4: the polynomial of minimum jerk.
    """
    noise = noise.view(len(noise), LEGS, 4)
    point = (noise[..., 1:] - 0.5) * noise.new_tensor([30.0, 30.0, 6.0])
    length = torch.linalg.vector_norm(point.roll(-1, 1) - point, dim=-1)
    duration = (PEAK * length / (4 + 3 * noise[..., 0])).sqrt().clamp_min(1)
    start = duration.cumsum(1) - duration
    leg = (torch.searchsorted(start, time.expand(len(noise), -1).contiguous(), right=True) - 1).clamp(0, LEGS - 2)

    def of_leg(values: Tensor, step: int = 0) -> Tensor:
        index = (leg + step).view(*leg.shape, *[1] * (values.dim() - 2))
        return values.gather(1, index.expand(*leg.shape, *values.shape[2:]))

    whole = of_leg(duration)[..., None]
    share = ((time - of_leg(start))[..., None] / whole).clamp(0, 1)
    origin, way = of_leg(point), of_leg(point, 1) - of_leg(point)
    return Reference(
        pos=origin + way * (10 * share**3 - 15 * share**4 + 6 * share**5),
        vel=way * (30 * share**2 - 60 * share**3 + 30 * share**4) / whole,
        acc=way * (60 * share - 180 * share**2 + 120 * share**3) / whole**2,
    )


def aggressive(noise: Float[Tensor, "B K"], time: Float[Tensor, " T"]) -> Reference:
    """Return sums of three waves per axis, with up to 7 m/s^2 along each horizontal axis and 2 m/s^2 vertically."""
    amount, phase = noise.view(len(noise), 3, 3, 2).unbind(-1)  # axis, wave
    low, high = noise.new_tensor(WAVES).unbind(-1)
    speed = 2 * math.pi * (low + (high - low) * amount)
    most = noise.new_tensor([7.0, 7.0, 2.0])[:, None] / 3
    angle = speed[..., None] * time + 2 * math.pi * phase[..., None]  # B 3 3 T
    reach = (most * (0.4 + 0.6 * phase) / speed**2)[..., None]  # m
    speed = speed[..., None]

    def sum_waves(values: Tensor) -> Tensor:
        return values.sum(2).transpose(1, 2)

    return Reference(
        pos=sum_waves(reach * angle.sin()),
        vel=sum_waves(reach * speed * angle.cos()),
        acc=sum_waves(-reach * speed**2 * angle.sin()),
    )


@dataclass(frozen=True)
class Autopilot:
    """A cascade of controllers, tuned for a vehicle without payload."""

    vehicle: Quadrotor  # assumed constants of the vehicle
    position: float = 1.2  # speed per position error (1/s)
    velocity: float = 2.5  # acceleration per speed (1/s)
    integral: float = 0.6  # speed per integrated speed error (1/s)
    attitude: float = 7.0  # rate per angle (1/s)
    rate: float = 16.0  # angular acceleration per rate (1/s)

    def throttle(
        self,
        body: Body,
        error: Float[Tensor, "*lead 3"],
        aim: Reference,
        heading: Float[Tensor, "*lead 3"],
        gyro: Float[Tensor, "*lead 3"],
        dt: float,
    ) -> tuple[Float[Tensor, "*lead 4"], Float[Tensor, "*lead 3"]]:
        """Command the motors, each from 0 to 1, and integrate the error.

        Args:
            body: State of the vehicle as estimated.
            error: Integrated speed error so far (m).
            aim: Reference to track.
            heading: Desired direction of the nose, horizontal.
            gyro: Measured turn rates (rad/s).
            dt: Time since the last command (s).

        Source:
            Lee, Leok and McClamroch 2010, "Geometric Tracking Control of a Quadrotor UAV on SE(3)", eq. 12 (the
            direction of thrust), with a cascade of proportional loops in place of its attitude law.
        """
        model = self.vehicle
        slow = aim.vel + self.position * (aim.pos - body.pos) - body.vel
        error = (error + dt * slow).clamp(-4, 4)
        force = aim.acc + self.velocity * slow + self.integral * self.velocity * error
        force = force.clamp(-9, 9) - force.new_tensor([0.0, 0.0, GRAVITY])
        down = rotate(body.attitude, torch.zeros_like(force) + force.new_tensor([0.0, 0.0, 1.0]))
        tilt = rotate_inverse(body.attitude, torch.linalg.cross(down, -normalize(force, dim=-1)))
        yaw = rotate_inverse(body.attitude, heading)[..., 1:2]
        angle = torch.cat([tilt[..., :2], 0.3 * yaw], -1)
        torque = force.new_tensor(model.inertia) * self.rate * (self.attitude * angle - gyro)
        total = model.mass * (-force * down).sum(-1).clamp_min(2.0)
        return (model.mix(total, torque).clamp(0, model.thrust) / model.thrust).sqrt(), error
