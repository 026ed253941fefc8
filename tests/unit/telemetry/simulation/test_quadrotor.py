"""A quadrotor's equations by hand, and whole flights of it against plain floats and rotation matrices."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from uavlab.telemetry.simulation import GRAVITY, Body, Hidden, Quadrotor

VEHICLE = Quadrotor()
HOVER = math.sqrt(1.2 * 9.81 / 4 / 9.0)  # 2.943 N per motor, of 9 N at most
NOMINAL = (15.2 - 14.0) / (16.8 - 14.0)  # charge at which a battery at rest gives the nominal voltage
DT = 0.01


def of(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


STILL = Body(of(0, 0, 0), of(0, 0, 0), of(1, 0, 0, 0), of(0, 0, 0), of(*[HOVER] * 4), number(NOMINAL))
NOTHING = Hidden(of(0, 0), number(0), number(0), number(0.05), number(0))


def test_hover_needs_a_quarter_of_the_weight_of_each_motor() -> None:
    shares = VEHICLE.mix(number(1.2 * GRAVITY), of(0, 0, 0))
    assert shares.tolist() == pytest.approx([2.943] * 4)
    assert VEHICLE.lift(of(*[HOVER] * 4)).tolist() == pytest.approx([2.943] * 4)
    after, force = VEHICLE.step(STILL, of(*[HOVER] * 4), NOTHING, DT)
    assert force.tolist() == pytest.approx([0, 0, -9.81])
    assert after.vel.tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    assert after.rate.tolist() == pytest.approx([0, 0, 0], abs=1e-12)


def test_a_payload_needs_more() -> None:
    """1.2 kg of thrust for 1.5 kg: a fifth of gravity is left."""
    after, force = VEHICLE.step(STILL, of(*[HOVER] * 4), replace(NOTHING, payload=number(0.3)), DT)
    assert force.tolist() == pytest.approx([0, 0, -9.81 * 0.8])
    assert after.vel.tolist() == pytest.approx([0, 0, 0.01 * 9.81 * 0.2])


def test_a_free_fall() -> None:
    """After n steps the speed is g n dt and the depth g dt^2 (1 + 2 + ... + n); an accelerometer feels nothing."""
    body = replace(STILL, motor=of(0, 0, 0, 0))
    for _ in range(100):
        body, force = VEHICLE.step(body, of(0, 0, 0, 0), NOTHING, DT)
        assert force.tolist() == [0, 0, 0]
    assert body.vel.tolist() == pytest.approx([0, 0, 9.81])
    assert body.pos.tolist() == pytest.approx([0, 0, 9.81 * 1e-4 * 5050])


@pytest.mark.parametrize(
    ("motor", "torque"),
    [
        (0, [-0.16, 0.16, 0.016]),  # front right: to the left, nose up; it turns the body clockwise
        (1, [0.16, -0.16, 0.016]),  # rear left
        (2, [0.16, 0.16, -0.016]),  # front left
        (3, [-0.16, -0.16, -0.016]),  # rear right
    ],
)
def test_torque_of_one_newton_by_hand(motor: int, torque: list[float]) -> None:
    assert VEHICLE.torque(torch.eye(4, dtype=torch.float64)[motor]).tolist() == pytest.approx(torque)


def test_the_mixer_undoes_torque_and_sum() -> None:
    dice = torch.Generator().manual_seed(0)
    total, torque = (torch.randn(*shape, generator=dice, dtype=torch.float64) for shape in ((2, 5), (2, 5, 3)))
    shares = VEHICLE.mix(total, torque)
    torch.testing.assert_close(shares.sum(-1), total)
    torch.testing.assert_close(VEHICLE.torque(shares), torque)
    thrusts = torch.rand(6, 4, generator=dice, dtype=torch.float64)
    torch.testing.assert_close(VEHICLE.mix(thrusts.sum(-1), VEHICLE.torque(thrusts)), thrusts)


def test_drag_by_hand() -> None:
    """12 N for 1.5 kg, and 0.3 kg/s against 2 m/s forwards and 1 m/s to the left; none along the rotors' axes."""
    force = VEHICLE.force(number(12.0), of(2, -1, 5), number(1.5), number(0.3))
    assert force.tolist() == pytest.approx([-0.4, 0.2, -8])


def test_wind_pushes_and_flying_with_it_does_not() -> None:
    hidden = replace(NOTHING, wind=of(4, -2), drag=number(0.3))
    after, force = VEHICLE.step(STILL, of(*[HOVER] * 4), hidden, DT)
    assert force.tolist() == pytest.approx([1, -0.5, -9.81])
    assert after.vel.tolist() == pytest.approx([0.01, -0.005, 0])
    _, force = VEHICLE.step(replace(STILL, vel=of(4, -2, 3)), of(*[HOVER] * 4), hidden, DT)
    assert force.tolist() == pytest.approx([0, 0, -9.81])
    east = replace(STILL, attitude=of(math.sqrt(0.5), 0, 0, math.sqrt(0.5)))  # nose to the east
    _, force = VEHICLE.step(east, of(*[HOVER] * 4), hidden, DT)
    assert force.tolist() == pytest.approx([-0.5, -1, -9.81])


def test_motors_lag() -> None:
    """After one time constant times log 2, half the way is left."""
    hidden = replace(NOTHING, lag=number(DT / math.log(2)))
    after, _ = VEHICLE.step(replace(STILL, motor=of(0.2, 0.4, 0, 1)), of(0.6, 0.4, 1, 0), hidden, DT)
    assert after.motor.tolist() == pytest.approx([0.4, 0.4, 0.5, 0.5])


def test_voltage_sags_and_motors_with_it() -> None:
    """At full speed 80 A flow; 0.05 ohm take 4 of 16.8 V, so motors aim at 12.8 / 15.2 of their commands."""
    assert VEHICLE.motor_current(of(1, 1, 1, 1)).item() == 80
    assert VEHICLE.motor_current(of(0.5, 0.5, 0.5, 0.5)).item() == 10
    assert [VEHICLE.rest_voltage(number(share)).item() for share in (0, 0.5, 1)] == pytest.approx([14, 15.4, 16.8])
    full = replace(STILL, motor=of(1, 1, 1, 1), charge=number(1))
    hidden = replace(NOTHING, resistance=number(0.05), lag=number(1e-6))
    after, _ = VEHICLE.step(full, of(1, 0.5, 0.25, 0), hidden, DT)
    assert after.motor.tolist() == pytest.approx([share * 12.8 / 15.2 for share in (1, 0.5, 0.25, 0)])


def test_charge_is_used_up() -> None:
    """80 A for 10 ms are 0.8 of 10,000 A s."""
    full = replace(STILL, motor=of(1, 1, 1, 1))
    fast = of(1, 1, 1, 1)
    after, _ = VEHICLE.step(full, fast, NOTHING, DT)
    assert (full.charge - after.charge).item() == pytest.approx(8e-5)
    after, _ = VEHICLE.step(replace(full, charge=number(4e-5)), fast, NOTHING, DT)
    assert after.charge.item() == 0


def test_spins_turn_into_one_another() -> None:
    """Of rates 1 (roll) and 2 (yaw), rate x inertia * rate is 2 * 0.012 - 0.022 * 2 = -0.02 N m about pitch."""
    after, _ = VEHICLE.step(replace(STILL, rate=of(1, 0, 2)), of(*[HOVER] * 4), NOTHING, DT)
    assert after.rate.tolist() == pytest.approx([1, 0.01 * 0.02 / 0.012, 2])


def test_torque_changes_rates() -> None:
    """0.1 N more on the right and 0.1 N less on the left: 4 * 0.1 * 0.16 N m to the left, over 0.012 kg m^2."""
    lift = of(2.943 + 0.1, 2.943 - 0.1, 2.943 - 0.1, 2.943 + 0.1)
    speed = (lift / 9).sqrt()
    after, _ = VEHICLE.step(replace(STILL, motor=speed), speed, NOTHING, DT)
    assert after.rate.tolist() == pytest.approx([-0.01 * 0.064 / 0.012, 0, 0])
    assert after.attitude[1].item() == pytest.approx(-0.01 * 0.01 * 0.064 / 0.012 / 2)


def matrix_of(attitude: list[float]) -> np.ndarray:
    w, x, y, z = attitude
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


class Twin:
    """One vehicle, plain floats, its attitude a matrix."""

    def __init__(self, body: Body) -> None:
        self.pos, self.vel, self.rate = (np.array(each.tolist()) for each in (body.pos, body.vel, body.rate))
        self.matrix, self.motor, self.charge = (
            matrix_of(body.attitude.tolist()),
            body.motor.tolist(),
            float(body.charge),
        )

    def step(
        self, throttle: list[float], wind: list[float], payload: float, drag: float, lag: float, ohm: float
    ) -> None:
        volts = 14 + 2.8 * self.charge - ohm * sum(20 * speed**3 for speed in self.motor)
        pairs = zip(self.motor, throttle, strict=True)
        self.motor = [old + (new * volts / 15.2 - old) * (1 - math.exp(-DT / lag)) for old, new in pairs]
        f1, f2, f3, f4 = (9 * speed**2 for speed in self.motor)
        air = self.matrix.T @ (self.vel - np.array([*wind, 0]))
        self.force = np.array([-drag * air[0], -drag * air[1], -(f1 + f2 + f3 + f4)]) / (1.2 + payload)
        self.vel = self.vel + DT * (self.matrix @ self.force + np.array([0, 0, 9.81]))
        self.pos = self.pos + DT * self.vel
        inertia = np.array([0.012, 0.012, 0.022])
        torque = [0.16 * (f2 + f3 - f1 - f4), 0.16 * (f1 + f3 - f2 - f4), 0.016 * (f1 + f2 - f3 - f4)]
        self.rate = self.rate + DT * (np.array(torque) - np.cross(self.rate, inertia * self.rate)) / inertia
        angle = np.linalg.norm(self.rate) * DT
        p, q, r = self.rate * DT / angle
        cross = np.array([[0, -r, q], [r, 0, -p], [-q, p, 0]])
        rotation = np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross  # Rodrigues
        self.matrix = self.matrix @ rotation
        self.charge -= DT * sum(20 * speed**3 for speed in self.motor) / 10_000


def test_flights_equal_the_twin() -> None:
    dice = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.rand(3, *shape, generator=dice, dtype=torch.float64)

    attitude = torch.nn.functional.normalize(draw(4) - 0.5, dim=-1)
    body = Body(draw(3), 9 * draw(3), attitude, 2 * draw(3) - 1, draw(4), draw())
    hidden = Hidden(10 * draw(2) - 5, draw(), draw(), 0.02 + 0.1 * draw(), 0.06 * draw())
    twins = [
        Twin(Body(*(getattr(body, name)[n] for name in ("pos", "vel", "attitude", "rate", "motor", "charge"))))
        for n in range(3)
    ]
    for _ in range(60):
        throttle = 0.4 + 0.4 * draw(4)
        body, force = VEHICLE.step(body, throttle, hidden, DT)
        for n, twin in enumerate(twins):
            rest = (float(each[n]) for each in (hidden.payload, hidden.drag, hidden.lag, hidden.resistance))
            twin.step(throttle[n].tolist(), hidden.wind[n].tolist(), *rest)
            assert body.pos[n].tolist() == pytest.approx(twin.pos.tolist(), rel=1e-9, abs=1e-9)
            assert body.vel[n].tolist() == pytest.approx(twin.vel.tolist(), rel=1e-9, abs=1e-9)
            assert body.rate[n].tolist() == pytest.approx(twin.rate.tolist(), rel=1e-9, abs=1e-9)
            assert force[n].tolist() == pytest.approx(twin.force.tolist(), rel=1e-9, abs=1e-9)
            assert body.motor[n].tolist() == pytest.approx(twin.motor, rel=1e-9)
            assert float(body.charge[n]) == pytest.approx(twin.charge, rel=1e-9)
            matrix = matrix_of(body.attitude[n].tolist())
            np.testing.assert_allclose(matrix, twin.matrix, rtol=1e-9, atol=1e-9)
