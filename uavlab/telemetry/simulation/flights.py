"""Simulated quadrotor flights: sensor readings as in a log, and the truth that logs lack."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from uavlab.core.rng import Streams
from uavlab.core.types import select, tensors, tree_map
from uavlab.ops.geometry import from_rotation_vector, multiply, rotate, rotate_inverse
from uavlab.telemetry.logs.columns import INPUTS, TRUTH
from uavlab.telemetry.simulation.quadrotor import GRAVITY, Body, Hidden, Quadrotor

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


RATE = 100  # rows per second
HOLD = 10  # rows between updates of logged positions and velocities
ONCE = 16  # uniform numbers that a flight draws once
CHANGES = 3  # gusts per flight, and steps of each piecewise constant quantity

ACCELEROMETER, GYROSCOPE, VELOCITY, VOLTAGE = 0.15, 0.005, 0.1, 0.05
POSITION, ATTITUDE, CURRENT = 0.05, 0.01, 0.2
"""Standard deviations of sensor noise: m/s^2, rad/s, m/s, V; m, rad, A."""


Columns = dict[str, Tensor]
"""Columns of logs by name, the truth included."""


@dataclass(frozen=True)
class Fleet:
    """Distribution of flights."""

    least: int = 2000  # rows of the shortest
    most: int = 5000  # rows of the longest
    wind: float = 8.0  # strongest mean wind (m/s)
    payload: float = 0.5  # heaviest payload (kg)

    def fly(self, rng: Streams, vehicle: Quadrotor) -> list[Columns]:
        """Simulate one flight per seed of ``rng``; a flight does not depend on the other seeds."""
        once = rng.uniform("flights.once", ONCE)
        rows = (self.least + once[:, 0] * (self.most - self.least + 1)).long().tolist()
        time = torch.arange(self.most, device=rng.device) / RATE  # one length, because the drawn noise depends on it
        legs, waves = rng.uniform("flights.legs", LEG_NOISE), rng.uniform("flights.waves", WAVE_NOISE)
        aim = select(once[:, 1] < 0.5, aggressive(waves, time), way_points(legs, time))
        columns = fly(rng, vehicle, aim, self.hidden(rng, once, time), once)
        return [{name: column[n, :count] for name, column in columns.items()} for n, count in enumerate(rows)]

    def hidden(self, rng: Streams, once: Float[Tensor, "B K"], time: Float[Tensor, " T"]) -> Hidden:
        """Draw the hidden quantities over time, with drifts, gusts and steps."""
        angle, strength = 2 * torch.pi * once[:, 2], self.wind * once[:, 3].sqrt()
        mean = torch.stack([angle.cos(), angle.sin()], -1) * strength[:, None]
        turbulence = drift(rng.normal("flights.turbulence", len(time), 2), 1.0, 0.2)
        breeze = drift(rng.normal("flights.breeze", len(time), 2), 40.0, 0.8)
        wind = mean[:, None] + turbulence + breeze + gusts(rng.uniform("flights.gusts", CHANGES, 4), time)

        def steps(name: str) -> Float[Tensor, "B T"]:
            return levels(rng.uniform(f"flights.{name}", CHANGES + 1, 2), time)

        payload = self.payload * steps("payload").sub(0.3).clamp_min(0) / 0.7
        drag = 0.15 + 0.6 * steps("drag") + 0.2 * payload
        wear = 2.5 * (once[:, 4:5] * 2 - 1) + drift(rng.normal("flights.lag", len(time)), 10.0, 0.8)
        return Hidden(wind, payload, drag, 0.02 + 0.05 * torch.sigmoid(wear), 0.01 + 0.05 * steps("resistance"))


def levels(noise: Float[Tensor, "B K 2"], time: Float[Tensor, " T"]) -> Float[Tensor, "B T"]:
    """Return piecewise constant levels in [0, 1] that change at random times, 5 to 25 s apart."""
    value, wait = noise.unbind(-1)
    start = (5 + 20 * wait).cumsum(1) - (5 + 20 * wait)
    return value.gather(1, (time >= start[..., None]).sum(1) - 1)


def gusts(noise: Float[Tensor, "B K 4"], time: Float[Tensor, " T"]) -> Float[Tensor, "B T 2"]:
    """Sum gusts of up to 5 m/s that rise within half a second and fall as fast 3 to 10 s later.

    Source:
        14 CFR 25.341 (a): the shape of a discrete gust, 1 - cos.
    """
    begin, wait, size, way = noise.unbind(-1)
    start = (time[-1] * begin)[..., None]

    def rise(since: Tensor) -> Tensor:
        return (1 - torch.cos(torch.pi * (since / 0.5).clamp(0, 1))) / 2

    amount = 5 * size[..., None] * (rise(time - start) - rise(time - start - (3 + 7 * wait)[..., None]))
    angle = (2 * torch.pi * way)[..., None]
    return torch.stack([(amount * angle.cos()).sum(1), (amount * angle.sin()).sum(1)], -1)


def drift(noise: Float[Tensor, "B T ..."], seconds: float, spread: float) -> Float[Tensor, "B T ..."]:
    """Simulate an Ornstein-Uhlenbeck process with time constant ``seconds`` and standard deviation ``spread``.

    Source:
        Uhlenbeck and Ornstein 1930, "On the Theory of the Brownian Motion", eq. 4, in steps of 1 / RATE.
    """
    decay = math.exp(-1 / (RATE * seconds))
    x = torch.cat([noise[:, :1], noise[:, 1:] * (1 - decay**2) ** 0.5], 1)
    step = 1
    while step < x.shape[1]:  # x_t = decay x_{t-1} + noise_t, by doubling
        x = torch.cat([x[:, :step], x[:, step:] + decay**step * x[:, :-step]], 1)
        step *= 2
    return spread * x


def fly(rng: Streams, vehicle: Quadrotor, aim: Reference, truth: Hidden, once: Float[Tensor, "B K"]) -> Columns:
    """Track B references of T rows and record every row (B T) with sensor noise.

    The autopilot reads noisy positions, velocities and turn rates, and the true attitude. Noise of positions and
    velocities jumps every ``HOLD`` rows, which excites the motors and makes their lag observable.
    """
    count, dt = aim.pos.shape[1], 1 / RATE
    pilot, yaw = Autopilot(vehicle), 2 * torch.pi * once[:, 5]
    heading = torch.stack([yaw.cos(), yaw.sin(), torch.zeros_like(yaw)], -1)
    gyro_noise = GYROSCOPE * rng.normal("flights.gyro", count, 3)
    hold = torch.arange(count, device=rng.device) // HOLD * HOLD
    pos_noise = POSITION * rng.normal("flights.pos", count, 3)[:, hold]
    vel_noise = VELOCITY * rng.normal("flights.vel", count, 3)[:, hold]
    attitude_noise = from_rotation_vector(drift(rng.normal("flights.attitude", count, 3), 5.0, ATTITUDE))
    body, error, steps = _start(aim, yaw, once, vehicle), torch.zeros_like(aim.pos[:, 0]), []
    for t in range(count):
        now, goal = tree_map(lambda leaf, t=t: leaf[:, t], truth), tree_map(lambda leaf, t=t: leaf[:, t], aim)
        pos, vel = body.pos + pos_noise[:, t], body.vel + vel_noise[:, t]
        estimate = Body(pos, vel, body.attitude, body.rate, body.motor, body.charge)
        gyro = body.rate + gyro_noise[:, t]
        throttle, error = pilot.throttle(estimate, error, goal, heading, gyro, dt)
        before = body
        body, force = vehicle.step(body, throttle, now, dt)
        steps.append((before.pos, before.vel, force, gyro, before.attitude, throttle, before.motor, before.charge))
    pos, vel, force, gyro, attitude, throttle, motor, charge = (
        torch.stack(each, 1) for each in zip(*steps, strict=True)
    )
    current = vehicle.motor_current(motor)
    sag = truth.resistance * current

    def add_noise(values: Tensor, name: str, spread: float) -> Tensor:
        return values + spread * rng.normal(f"flights.{name}", *values.shape[1:])

    bias = 0.05 * (2 * once[:, 6:9] - 1)[:, None]
    voltage = add_noise(vehicle.rest_voltage(charge) - sag, "voltage", VOLTAGE)
    groups = [
        *(aim.pos, aim.vel, pos[:, hold] + pos_noise, vel[:, hold] + vel_noise),
        *(add_noise(force, "force", ACCELEROMETER) + bias, gyro, multiply(attitude_noise, attitude), throttle),
        torch.stack([voltage, add_noise(current, "current", CURRENT)], -1),
        *(truth.wind, torch.stack([truth.payload, truth.drag, truth.lag, sag], -1), pos),
    ]
    columns = (column for group in groups for column in group.unbind(-1))
    return dict(zip((*INPUTS, *TRUTH), columns, strict=True))


def _start(aim: Reference, yaw: Tensor, once: Tensor, vehicle: Quadrotor) -> Body:
    up = torch.zeros_like(aim.pos[:, 0]) + aim.pos.new_tensor([0.0, 0.0, 1.0])
    hover = (9.81 * vehicle.mass / 4 / vehicle.thrust) ** 0.5
    return Body(
        pos=aim.pos[:, 0],
        vel=aim.vel[:, 0],
        attitude=from_rotation_vector(up * yaw[:, None]),
        rate=torch.zeros_like(up),
        motor=torch.full_like(aim.pos[:, 0, :1], hover).expand(-1, 4),
        charge=0.4 + 0.6 * once[:, 9],
    )
