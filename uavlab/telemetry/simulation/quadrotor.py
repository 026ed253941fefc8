"""Equations of motion of a quadrotor in wind, with the hidden quantities as arguments.

World axes point north, east and down, body axes forward, right and down. Motors are numbered as in PX4's "quad x":
front right, rear left, front left, rear right; the first two turn counter-clockwise seen from above.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.types import tensors
from uavlab.ops.geometry import constant, integrate, rotate, rotate_inverse

GRAVITY = 9.81  # m/s^2
LAYOUT = ((1.0, 1.0, 1.0), (-1.0, -1.0, 1.0), (1.0, -1.0, -1.0), (-1.0, 1.0, -1.0))
"""Signs of each motor: position forward, position to the right, direction in which its drag turns the body (yaw)."""


@tensors
class Hidden:
    """Quantities that are not in a flight log."""

    wind: Float[Tensor, "*lead 2"]  # north, east (m/s)
    payload: Float[Tensor, "*lead"]  # kg
    drag: Float[Tensor, "*lead"]  # of the rotors (kg/s)
    lag: Float[Tensor, "*lead"]  # time constant of the motors (s)
    resistance: Float[Tensor, "*lead"]  # of the battery (ohm)


@tensors
class Body:
    """State of vehicles."""

    pos: Float[Tensor, "*lead 3"]  # m; north, east, down
    vel: Float[Tensor, "*lead 3"]  # m/s
    attitude: Float[Tensor, "*lead 4"]  # unit quaternion, body to world
    rate: Float[Tensor, "*lead 3"]  # rad/s
    motor: Float[Tensor, "*lead 4"]  # speed, as a share of the largest at nominal voltage
    charge: Float[Tensor, "*lead"]  # share of a full battery


@dataclass(frozen=True)
class Quadrotor:
    """Constants of a vehicle."""

    mass: float = 1.2  # without payload (kg)
    arm: float = 0.16  # distance of the motors from either axis of the body (m)
    inertia: tuple[float, float, float] = (0.012, 0.012, 0.022)  # about the body's axes (kg m^2)
    thrust: float = 9.0  # of one motor at full speed (N)
    turning: float = 0.016  # torque about the down axis per thrust (m)
    nominal: float = 15.2  # voltage at which motors reach full speed (V)
    empty: float = 14.0  # voltage of an empty battery at rest (V)
    full: float = 16.8  # voltage of a full battery at rest (V)
    capacity: float = 10_000.0  # charge of a full battery (A s)
    current: float = 80.0  # of all four motors at full speed (A)

    def motor_current(self, motor: Float[Tensor, "*lead 4"]) -> Float[Tensor, "*lead"]:
        """Compute the current of all motors (A), proportional to the cube of their speeds."""
        return self.current / 4 * motor.pow(3).sum(-1)

    def rest_voltage(self, charge: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        """Compute the battery's voltage (V) without load."""
        return self.empty + (self.full - self.empty) * charge

    def lift(self, motor: Float[Tensor, "*lead 4"]) -> Float[Tensor, "*lead 4"]:
        """Compute each motor's thrust (N).

        Source:
            Mahony, Kumar and Corke 2012, "Multirotor Aerial Vehicles", eq. 3.
        """
        return self.thrust * motor.square()

    def torque(self, lift: Float[Tensor, "*lead 4"]) -> Float[Tensor, "*lead 3"]:
        """Compute the torque (N m) of four thrusts about the body's axes."""
        rows = tuple((-self.arm * y, self.arm * x, self.turning * t) for x, y, t in LAYOUT)
        return lift @ constant(rows, lift.device, lift.dtype)

    def mix(self, total: Float[Tensor, "*lead"], torque: Float[Tensor, "*lead 3"]) -> Float[Tensor, "*lead 4"]:
        """Distribute a thrust (N) and a torque (N m) over the motors: the inverse of the sum and ``torque``."""
        rows = tuple((-y / (4 * self.arm), x / (4 * self.arm), t / (4 * self.turning)) for x, y, t in LAYOUT)
        return total[..., None] / 4 + torque @ constant(rows, torque.device, torque.dtype).T

    def force(
        self, lift: Float[Tensor, "*lead"], air: Float[Tensor, "*lead 3"], mass: Tensor, drag: Tensor
    ) -> Float[Tensor, "*lead 3"]:
        """Compute the specific force (m/s^2, body axes) that an accelerometer measures: thrust, and drag of the rotors.

        Args:
            lift: Thrust of all motors (N).
            air: Velocity relative to the air, in body axes (m/s).
            mass: Mass with payload (kg).
            drag: Drag coefficient of the rotors (kg/s); drag acts in their plane alone.

        Source:
            Faessler, Franchi and Scaramuzza 2018, "Differential Flatness of Quadrotor Dynamics Subject to Rotor
            Drag", eq. 2 and 3, with equal drag along both axes of the rotors' plane.
        """
        return torch.stack([-drag * air[..., 0], -drag * air[..., 1], -lift], -1) / mass[..., None]

    def step(
        self, body: Body, throttle: Float[Tensor, "*lead 4"], hidden: Hidden, dt: float
    ) -> tuple[Body, Float[Tensor, "*lead 3"]]:
        """Advance the state by ``dt`` (s); also return the specific force during the step (m/s^2, body axes).

        Motors follow their commands with a first-order lag; their speed is proportional to the loaded voltage.
        """
        voltage = self.rest_voltage(body.charge) - hidden.resistance * self.motor_current(body.motor)
        aim = throttle * (voltage / self.nominal)[..., None]
        motor = body.motor + (aim - body.motor) * (1 - torch.exp(-dt / hidden.lag))[..., None]
        lift = self.lift(motor)
        wind = torch.cat([hidden.wind, torch.zeros_like(hidden.wind[..., :1])], -1)
        air = rotate_inverse(body.attitude, body.vel - wind)
        force = self.force(lift.sum(-1), air, self.mass + hidden.payload, hidden.drag)
        vel = body.vel + dt * (rotate(body.attitude, force) + constant((0.0, 0.0, GRAVITY), force.device, force.dtype))
        inertia = constant(tuple(self.inertia), force.device, force.dtype)
        spin = torch.linalg.cross(body.rate, inertia * body.rate)
        rate = body.rate + dt * (self.torque(lift) - spin) / inertia
        after = Body(
            pos=body.pos + dt * vel,
            vel=vel,
            attitude=integrate(body.attitude, rate, dt),
            rate=rate,
            motor=motor,
            charge=(body.charge - dt * self.motor_current(motor) / self.capacity).clamp_min(0),
        )
        return after, force
