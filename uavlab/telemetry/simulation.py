"""Simulated quadrotor flights: equations of motion in wind, sensor readings as in a log, and the truth that logs lack.

World axes point north, east and down, body axes forward, right and down. Motors are numbered as in PX4's "quad x":
front right, rear left, front left, rear right; the first two turn counter-clockwise seen from above.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from uavlab.core.rng import Streams
from uavlab.core.types import select, tensors, tree_map
from uavlab.ops.geometry import constant, from_rotation_vector, integrate, multiply, rotate, rotate_inverse
from uavlab.telemetry.logs.columns import INPUTS, TRUTH

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

        ``air`` is the velocity relative to the air in body axes (m/s); drag (kg/s) acts in the plane of the rotors.

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
        """Command the motors, each from 0 to 1, and integrate the speed error (m); ``heading`` is that of the nose.

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
        torch.stack(values, 1) for values in zip(*steps, strict=True)
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
