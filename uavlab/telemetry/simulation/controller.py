"""What quadrotors are told to fly, and the autopilot that makes them do it without knowing what is hidden."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from uavlab.core.types import tensors, where_world
from uavlab.ops.quaternions import rotate, rotate_inverse
from uavlab.telemetry.simulation.quadrotor import GRAVITY, Body, Quadrotor

LEGS = 64  # way-points of a flight at most
MOST = 10 / 3**0.5  # largest acceleration of least jerk, in lengths per square of the time
LEG_NOISE, WAVE_NOISE = 4 * LEGS, 3 * 3 * 2
WAVES = ((0.1, 0.2), (0.2, 0.3), (0.3, 0.4))  # Hz, of an aggressive flight


@tensors
class Reference:
    """Where vehicles are to be, how fast, and with what acceleration; north, east, down."""

    pos: Float[Tensor, "*lead 3"]
    vel: Float[Tensor, "*lead 3"]
    acc: Float[Tensor, "*lead 3"]


def way_points(noise: Float[Tensor, "B K"], time: Float[Tensor, " T"]) -> Reference:
    """Fly from point to point within 30 x 30 x 6 m, with 4 to 7 m/s^2 at most, at rest at every point.

    Source:
        Flash and Hogan 1985, "The Coordination of Arm Movements", eq. A4: the polynomial of least jerk.
    """
    noise = noise.view(len(noise), LEGS, 4)
    point = (noise[..., 1:] - 0.5) * noise.new_tensor([30.0, 30.0, 6.0])
    length = torch.linalg.vector_norm(point.roll(-1, 1) - point, dim=-1)
    lasting = (MOST * length / (4 + 3 * noise[..., 0])).sqrt().clamp_min(1)
    start = lasting.cumsum(1) - lasting
    leg = (torch.searchsorted(start, time.expand(len(noise), -1).contiguous(), right=True) - 1).clamp(0, LEGS - 2)

    def of_leg(values: Tensor, step: int = 0) -> Tensor:
        index = (leg + step).view(*leg.shape, *[1] * (values.dim() - 2))
        return values.gather(1, index.expand(*leg.shape, *values.shape[2:]))

    whole = of_leg(lasting)[..., None]
    share = ((time - of_leg(start))[..., None] / whole).clamp(0, 1)
    origin, way = of_leg(point), of_leg(point, 1) - of_leg(point)
    return Reference(
        pos=origin + way * (10 * share**3 - 15 * share**4 + 6 * share**5),
        vel=way * (30 * share**2 - 60 * share**3 + 30 * share**4) / whole,
        acc=way * (60 * share - 180 * share**2 + 120 * share**3) / whole**2,
    )


def aggressive(noise: Float[Tensor, "B K"], time: Float[Tensor, " T"]) -> Reference:
    """Swing along three axes with three waves each, up to 7 m/s^2 sideways and 2 m/s^2 up and down."""
    amount, phase = noise.view(len(noise), 3, 3, 2).unbind(-1)  # axis, wave
    low, high = noise.new_tensor(WAVES).unbind(-1)
    speed = 2 * math.pi * (low + (high - low) * amount)
    most = noise.new_tensor([7.0, 7.0, 2.0])[:, None] / 3
    angle = speed[..., None] * time + 2 * math.pi * phase[..., None]  # B 3 3 T
    reach = (most * (0.4 + 0.6 * phase) / speed**2)[..., None]  # m
    speed = speed[..., None]

    def summed(values: Tensor) -> Tensor:
        return values.sum(2).transpose(1, 2)

    return Reference(
        pos=summed(reach * angle.sin()),
        vel=summed(reach * speed * angle.cos()),
        acc=summed(-reach * speed**2 * angle.sin()),
    )


def chosen(wild: Bool[Tensor, " B"], calm: Reference, rough: Reference) -> Reference:
    """Take the rough flights where ``wild``."""
    pick = [where_world(wild, getattr(rough, name), getattr(calm, name)) for name in ("pos", "vel", "acc")]
    return Reference(*pick)


@dataclass(frozen=True)
class Autopilot:
    """A cascade of controllers, tuned for a vehicle without payload.

    Attributes:
        vehicle: The constants that it believes in.
        position: Speed per distance from the reference (1/s).
        velocity: Acceleration per speed (1/s).
        integral: Acceleration per distance flown astray (1/s^2).
        attitude: Rate per angle (1/s).
        rate: Angular acceleration per rate (1/s).
    """

    vehicle: Quadrotor
    position: float = 1.2
    velocity: float = 2.5
    integral: float = 0.6
    attitude: float = 7.0
    rate: float = 16.0

    def throttle(
        self,
        body: Body,
        astray: Float[Tensor, "*lead 3"],
        aim: Reference,
        ahead: Float[Tensor, "*lead 3"],
        gyro: Float[Tensor, "*lead 3"],
        dt: float,
    ) -> tuple[Float[Tensor, "*lead 4"], Float[Tensor, "*lead 3"]]:
        """Command the motors, each from 0 to 1, and keep account of how far the vehicle went astray.

        Args:
            body: What it takes for true of the vehicle.
            astray: The integral so far (m).
            aim: Where to be.
            ahead: Where to look, a horizontal direction.
            gyro: The rates that it measures.
            dt: Time since it was last asked (s).

        Source:
            Lee, Leok and McClamroch 2010, "Geometric Tracking Control of a Quadrotor UAV on SE(3)", eq. 12 (the
            direction of thrust), with a cascade of proportional loops in place of its attitude law.
        """
        model = self.vehicle
        slow = aim.vel + self.position * (aim.pos - body.pos) - body.vel
        astray = (astray + dt * slow).clamp(-4, 4)
        wanted = aim.acc + self.velocity * slow + self.integral * self.velocity * astray
        wanted = wanted.clamp(-9, 9) - wanted.new_tensor([0.0, 0.0, GRAVITY])
        down = rotate(body.attitude, torch.zeros_like(wanted) + wanted.new_tensor([0.0, 0.0, 1.0]))
        lean = rotate_inverse(body.attitude, torch.linalg.cross(down, -normalize(wanted, dim=-1)))
        beside = rotate_inverse(body.attitude, ahead)[..., 1:2]  # of the nose
        off = torch.cat([lean[..., :2], 0.3 * beside], -1)
        torque = wanted.new_tensor(model.inertia) * self.rate * (self.attitude * off - gyro)
        total = model.mass * (-wanted * down).sum(-1).clamp_min(2.0)
        return (model.mixed(total, torque).clamp(0, model.thrust) / model.thrust).sqrt(), astray
