"""Flights of quadrotors as logs show them, with the truth that logs do not show."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.rng import Streams
from uavlab.core.types import tensors, tree_map
from uavlab.ops.quaternions import from_rotation_vector, multiply
from uavlab.telemetry.simulation.controller import (
    LEG_NOISE,
    WAVE_NOISE,
    Autopilot,
    Reference,
    aggressive,
    chosen,
    way_points,
)
from uavlab.telemetry.simulation.quadrotor import Body, Hidden, Quadrotor

RATE = 100  # rows per second
HELD = 10  # rows for which a position and a velocity stay as they were
ONCE = 16  # uniform numbers that a flight takes once
CHANGES = 3  # steps of each hidden quantity that makes any

ACCELEROMETER, GYROSCOPE, VELOCITY, VOLTAGE = 0.15, 0.005, 0.1, 0.05
POSITION, ATTITUDE, CURRENT = 0.05, 0.01, 0.2
"""Standard deviations of what is logged: m/s^2, rad/s, m/s, V; m, rad, A."""


@tensors
class Recording:
    """Flights of up to T rows; those beyond a flight's own length are to be ignored."""

    rows: Int[Tensor, " B"]
    reference: Reference  # B T 3
    pos: Float[Tensor, "B T 3"]
    vel: Float[Tensor, "B T 3"]
    force: Float[Tensor, "B T 3"]
    gyro: Float[Tensor, "B T 3"]
    attitude: Float[Tensor, "B T 4"]
    throttle: Float[Tensor, "B T 4"]
    voltage: Float[Tensor, "B T"]
    current: Float[Tensor, "B T"]
    truth: Hidden  # B T
    sag: Float[Tensor, "B T"]
    true_pos: Float[Tensor, "B T 3"]


@dataclass(frozen=True)
class Fleet:
    """How flights are drawn.

    Attributes:
        least: Rows of the shortest flight.
        most: Rows of the longest.
        wind: Strongest mean wind (m/s).
        payload: Heaviest payload (kg).
    """

    least: int = 2000
    most: int = 5000
    wind: float = 8.0
    payload: float = 0.5

    def recorded(self, rng: Streams, vehicle: Quadrotor) -> Recording:
        """Fly one flight per seed of ``rng``, each the same whatever others are flown."""
        once = rng.uniform("flights.once", ONCE)
        rows = (self.least + once[:, 0] * (self.most - self.least + 1)).long()
        time = torch.arange(self.most, device=rng.device) / RATE  # noise of another length would be other noise
        calm, rough = (
            rng.uniform(f"flights.{name}", size) for name, size in (("legs", LEG_NOISE), ("waves", WAVE_NOISE))
        )
        aim = chosen(once[:, 1] < 0.5, way_points(calm, time), aggressive(rough, time))
        truth = self.hidden(rng, once, time)
        return flown(rng, vehicle, rows, aim, truth, once)

    def hidden(self, rng: Streams, once: Float[Tensor, "B K"], time: Float[Tensor, " T"]) -> Hidden:
        """Draw what no sensor shows: it drifts, and changes in steps."""
        angle, strength = 2 * torch.pi * once[:, 2], self.wind * once[:, 3].sqrt()
        mean = torch.stack([angle.cos(), angle.sin()], -1) * strength[:, None]
        flutter = drifting(rng.normal("flights.turbulence", len(time), 2), 1.0, 0.2)
        breeze = drifting(rng.normal("flights.breeze", len(time), 2), 40.0, 0.8)
        gusts = fronts(rng.uniform("flights.gusts", CHANGES, 4), time)
        payload = (
            self.payload * levels(rng.uniform("flights.payload", CHANGES + 1, 2), time).sub(0.3).clamp_min(0) / 0.7
        )
        drag = 0.15 + 0.6 * levels(rng.uniform("flights.drag", CHANGES + 1, 2), time) + 0.2 * payload
        lag = 0.02 + 0.05 * torch.sigmoid(
            2.5 * (once[:, 4:5] * 2 - 1) + drifting(rng.normal("flights.lag", len(time)), 10.0, 0.8)
        )
        resistance = 0.01 + 0.05 * levels(rng.uniform("flights.resistance", CHANGES + 1, 2), time)
        return Hidden(mean[:, None] + flutter + breeze + gusts, payload, drag, lag, resistance)


def levels(noise: Float[Tensor, "B K 2"], time: Float[Tensor, " T"]) -> Float[Tensor, "B T"]:
    """Step between levels in [0, 1] at random times, 5 to 25 s apart."""
    value, lasting = noise.unbind(-1)
    start = (5 + 20 * lasting).cumsum(1) - (5 + 20 * lasting)
    stage = (time >= start[..., None]).sum(1) - 1
    return value.gather(1, stage)


def fronts(noise: Float[Tensor, "B K 4"], time: Float[Tensor, " T"]) -> Float[Tensor, "B T 2"]:
    """Let gusts of up to 5 m/s rise within half a second, and end as fast 3 to 10 s later.

    Source:
        14 CFR 25.341 (a): the shape of a discrete gust, 1 - cos.
    """
    begin, lasting, size, way = noise.unbind(-1)
    start = (time[-1] * begin)[..., None]

    def risen(since: Tensor) -> Tensor:
        return (1 - torch.cos(torch.pi * (since / 0.5).clamp(0, 1))) / 2

    amount = 5 * size[..., None] * (risen(time - start) - risen(time - start - (3 + 7 * lasting)[..., None]))
    angle = (2 * torch.pi * way)[..., None]
    return torch.stack([(amount * angle.cos()).sum(1), (amount * angle.sin()).sum(1)], -1)


def drifting(noise: Float[Tensor, "B T ..."], seconds: float, spread: float) -> Float[Tensor, "B T ..."]:
    """Let numbers drift around 0: normally distributed with standard deviation ``spread``, forgotten over ``seconds``.

    Source:
        Uhlenbeck and Ornstein 1930, "On the Theory of the Brownian Motion", eq. 4, in steps of 1 / RATE.
    """
    keep = math.exp(-1 / (RATE * seconds))
    x = torch.cat([noise[:, :1], noise[:, 1:] * (1 - keep**2) ** 0.5], 1)
    step = 1
    while step < x.shape[1]:  # x_t = keep x_{t-1} + noise_t, by doubling
        x = torch.cat([x[:, :step], x[:, step:] + keep**step * x[:, :-step]], 1)
        step *= 2
    return spread * x


def flown(
    rng: Streams, vehicle: Quadrotor, rows: Int[Tensor, " B"], aim: Reference, truth: Hidden, once: Float[Tensor, "B K"]
) -> Recording:
    """Fly along references and log every row, noise of the sensors and all.

    The autopilot flies by what its sensors say: their jumps, ten times a second, are what shows how motors respond.
    """
    count, dt = aim.pos.shape[1], 1 / RATE
    pilot, heading = Autopilot(vehicle), 2 * torch.pi * once[:, 5]
    ahead = torch.stack([heading.cos(), heading.sin(), torch.zeros_like(heading)], -1)
    gyro_noise = GYROSCOPE * rng.normal("flights.gyro", count, 3)
    held = torch.arange(count, device=rng.device) // HELD * HELD
    off_pos = POSITION * rng.normal("flights.pos", count, 3)[:, held]
    off_vel = VELOCITY * rng.normal("flights.vel", count, 3)[:, held]
    wrong_att = from_rotation_vector(drifting(rng.normal("flights.attitude", count, 3), 5.0, ATTITUDE))
    body, astray, logged = _start(aim, heading, once, vehicle), torch.zeros_like(aim.pos[:, 0]), []
    for t in range(count):
        now = tree_map(lambda leaf, t=t: leaf[:, t], truth)
        pos, vel = body.pos + off_pos[:, t], body.vel + off_vel[:, t]
        believed = Body(pos, vel, body.attitude, body.rate, body.motor, body.charge)
        gyro = body.rate + gyro_noise[:, t]
        throttle, astray = pilot.throttle(
            believed, astray, tree_map(lambda leaf, t=t: leaf[:, t], aim), ahead, gyro, dt
        )
        before = body
        body, force = vehicle.step(body, throttle, now, dt)
        logged.append((before.pos, before.vel, force, gyro, before.attitude, throttle, before.motor, before.charge))
    pos, vel, force, gyro, attitude, throttle, motor, charge = (
        torch.stack(each, 1) for each in zip(*logged, strict=True)
    )
    current = vehicle.drawn(motor)
    sag = truth.resistance * current

    def noisy(values: Tensor, name: str, spread: float) -> Tensor:
        return values + spread * rng.normal(f"flights.{name}", *values.shape[1:])

    bias = 0.05 * (2 * once[:, 6:9] - 1)[:, None]
    return Recording(
        rows=rows,
        reference=aim,
        pos=pos[:, held] + off_pos,
        vel=vel[:, held] + off_vel,
        force=noisy(force, "force", ACCELEROMETER) + bias,
        gyro=gyro,
        attitude=multiply(wrong_att, attitude),
        throttle=throttle,
        voltage=noisy(vehicle.resting(charge) - sag, "voltage", VOLTAGE),
        current=noisy(current, "current", CURRENT),
        truth=truth,
        sag=sag,
        true_pos=pos,
    )


def _start(aim: Reference, heading: Tensor, once: Tensor, vehicle: Quadrotor) -> Body:
    up = torch.zeros_like(aim.pos[:, 0]) + aim.pos.new_tensor([0.0, 0.0, 1.0])
    hover = (9.81 * vehicle.mass / 4 / vehicle.thrust) ** 0.5
    return Body(
        pos=aim.pos[:, 0],
        vel=aim.vel[:, 0],
        attitude=from_rotation_vector(up * heading[:, None]),
        rate=torch.zeros_like(up),
        motor=torch.full_like(aim.pos[:, 0, :1], hover).expand(-1, 4),
        charge=0.4 + 0.6 * once[:, 9],
    )


def columns(flights: Recording) -> list[dict[str, Tensor]]:
    """Give each flight as a log would: columns by name, and the truth beside them."""
    told = {
        **{f"ref_{axis}": flights.reference.pos[..., n] for n, axis in enumerate("xyz")},
        **{f"ref_v{axis}": flights.reference.vel[..., n] for n, axis in enumerate("xyz")},
        **{axis: flights.pos[..., n] for n, axis in enumerate("xyz")},
        **{f"v{axis}": flights.vel[..., n] for n, axis in enumerate("xyz")},
        **{f"a{axis}": flights.force[..., n] for n, axis in enumerate("xyz")},
        **{name: flights.gyro[..., n] for n, name in enumerate("pqr")},
        **{f"q{name}": flights.attitude[..., n] for n, name in enumerate("wxyz")},
        **{f"motor_{n + 1}": flights.throttle[..., n] for n in range(4)},
        **{"voltage": flights.voltage, "current": flights.current},
        **{f"wind_{name}": flights.truth.wind[..., n] for n, name in enumerate(("north", "east"))},
        **{"payload": flights.truth.payload, "drag": flights.truth.drag, "motor_lag": flights.truth.lag},
        "battery_sag": flights.sag,
        **{f"true_{axis}": flights.true_pos[..., n] for n, axis in enumerate("xyz")},
    }
    return [{name: values[n, :rows] for name, values in told.items()} for n, rows in enumerate(flights.rows.tolist())]
