"""References by hand, their derivatives, and which motors an autopilot speeds up when."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from uavlab.telemetry.simulation import (
    LEGS,
    PEAK,
    Autopilot,
    Body,
    Quadrotor,
    Reference,
    aggressive,
    way_points,
)

VEHICLE = Quadrotor()
PILOT = Autopilot(VEHICLE)
HOVER = math.sqrt(1.2 * 9.81 / 4 / 9.0)
BOX = torch.tensor([30.0, 30.0, 6.0], dtype=torch.float64)


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def noise_of(points: list[list[float]], strength: float) -> Tensor:
    """Way-points in metres, the last of them for ever, as the uniform numbers that they are drawn from."""
    every = torch.tensor(points + [points[-1]] * (LEGS - len(points)), dtype=torch.float64)
    units = torch.cat([torch.full((LEGS, 1), strength, dtype=torch.float64), every / BOX + 0.5], 1)
    return units.view(1, -1)


def times(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_least_jerk_begins_and_ends_at_rest() -> None:
    """A leg of 5 m with 4 m/s^2 at most takes sqrt(10 / sqrt(3) * 5 / 4) = 2.686 s."""
    duration = math.sqrt(10 / math.sqrt(3) * 5 / 4)
    noise = noise_of([[0, 0, 0], [3, 4, 0], [3, 4, 0]], 0.0)
    aim = way_points(noise, times(0, duration / 2, duration, duration + 0.5))
    assert aim.pos[0].tolist() == [
        pytest.approx(row, abs=1e-9) for row in ([0, 0, 0], [1.5, 2, 0], [3, 4, 0], [3, 4, 0])
    ]
    fastest = 15 / 8 * 5 / duration  # half-way
    expected = ([0, 0, 0], [0.6 * fastest, 0.8 * fastest, 0], [0, 0, 0], [0, 0, 0])
    assert aim.vel[0].tolist() == [pytest.approx(row, abs=1e-9) for row in expected]
    assert aim.acc[0].tolist() == [pytest.approx([0, 0, 0], abs=1e-9)] * 4


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_least_jerk_accelerates_as_much_as_it_may(strength: float) -> None:
    """10 / sqrt(3) L / T^2, that is 4 to 7 m/s^2 by what was drawn, (3 - sqrt(3)) / 6 of the way in time."""
    most, length = 4 + 3 * strength, 13.0
    duration = math.sqrt(PEAK * length / most)
    when = (3 - math.sqrt(3)) / 6 * duration
    noise = noise_of([[0, 0, 0], [12, 5, 0]], strength)
    aim = way_points(noise, torch.linspace(0, duration, 5001, dtype=torch.float64))
    along = aim.acc[0, :, :2] @ times(12 / 13, 5 / 13)
    assert along.max().item() == pytest.approx(10 / math.sqrt(3) * length / duration**2, rel=1e-6)
    assert along.max().item() == pytest.approx(most, rel=1e-6)
    assert along.min().item() == pytest.approx(-most, rel=1e-6)
    (at_most,) = way_points(noise, times(when)).acc[0]
    assert at_most.norm().item() == pytest.approx(most)


def test_short_legs_take_a_second() -> None:
    noise = noise_of([[0, 0, 0], [0.1, 0, 0], [0.1, 0, 0.2]], 0.5)
    aim = way_points(noise, times(0.999999, 1, 1.000001, 2, 3))
    assert aim.pos[0, 1:4].tolist() == [
        pytest.approx(row, abs=1e-6) for row in ([0.1, 0, 0], [0.1, 0, 0], [0.1, 0, 0.2])
    ]
    assert aim.vel[0].abs().max() < 1e-5


def test_way_points_are_where_they_were_drawn_and_time_ends_at_the_last() -> None:
    noise = uniform(2, 4 * LEGS)
    numbers = noise.view(2, LEGS, 4)
    points = (numbers[..., 1:] - 0.5) * BOX
    length = (points[:, 1:] - points[:, :-1]).norm(dim=-1)
    duration = (PEAK * length / (4 + 3 * numbers[:, :-1, 0])).sqrt().clamp_min(1)
    for flight in range(2):
        ends = duration[flight].cumsum(0)
        aim = way_points(noise, torch.cat([times(0), ends, ends[-1:] + 100]))
        expected = torch.cat([points[flight], points[flight, -1:]])
        torch.testing.assert_close(aim.pos[flight], expected, rtol=1e-6, atol=1e-6)
        assert aim.vel[flight].abs().max() < 1e-5
        assert (aim.pos.abs() <= BOX / 2 + 1e-9).all()


def check_derivatives(aim: Reference, step: float, close: float) -> None:
    """Compare with differences, around a row."""
    for value, slope in ((aim.pos, aim.vel), (aim.vel, aim.acc)):
        difference = (value[:, 2:] - value[:, :-2]) / (2 * step)
        assert (difference - slope[:, 1:-1]).abs().max() < close


def test_velocities_and_accelerations_are_those_of_positions() -> None:
    time = torch.arange(30_000, dtype=torch.float64) / 1000
    check_derivatives(way_points(uniform(3, 4 * LEGS), time), 1e-3, 0.04)  # jerk jumps at way-points
    check_derivatives(aggressive(uniform(3, 18), time), 1e-3, 1e-4)


def test_aggressive_flights_stay_within_their_limits() -> None:
    dice = torch.Generator().manual_seed(0)
    aim = aggressive(torch.rand(200, 18, generator=dice), torch.arange(1000) / 20)
    most = aim.acc.abs().amax((0, 1))
    assert (most <= torch.tensor([7.0, 7.0, 2.0])).all()
    assert (most > torch.tensor([4.0, 4.0, 1.2])).all()


def test_an_aggressive_flight_by_hand() -> None:
    """All phases 0.5, all speeds the slowest: waves of 0.1, 0.2 and 0.3 Hz, 0.7 of a third of the limit each."""
    noise = torch.tensor([0.0, 0.5], dtype=torch.float64).repeat(9)[None]
    aim = aggressive(noise, times(0, 2.5))
    for axis, most in enumerate((7.0, 7.0, 2.0)):
        acceleration = 0.7 * most / 3
        speeds = [2 * math.pi * rate for rate in (0.1, 0.2, 0.3)]
        starting = sum(-acceleration / speed for speed in speeds)  # cos(pi) = -1
        assert aim.pos[0, 0, axis].item() == pytest.approx(0, abs=1e-9)
        assert aim.vel[0, 0, axis].item() == pytest.approx(starting)
        assert aim.acc[0, 0, axis].item() == pytest.approx(0, abs=1e-9)
        # a quarter, a half and three quarters of a turn later sin is -1, 0 and 1
        assert aim.acc[0, 1, axis].item() == pytest.approx(acceleration - acceleration, abs=1e-9)
        swung = acceleration * (-1 / speeds[0] ** 2 + 1 / speeds[2] ** 2)
        assert aim.pos[0, 1, axis].item() == pytest.approx(swung)


STILL = Body(
    times(0, 0, 0), times(0, 0, 0), times(1, 0, 0, 0), times(0, 0, 0), times(*[HOVER] * 4), times(1.0).squeeze()
)
NORTH, EAST, NOWHERE = times(1, 0, 0), times(0, 1, 0), times(0, 0, 0)
HERE = Reference(NOWHERE, NOWHERE, NOWHERE)


def command(
    body: Body = STILL, aim: Reference = HERE, heading: Tensor = NORTH, error: Tensor = NOWHERE, gyro: Tensor = NOWHERE
) -> tuple[list[float], list[float]]:
    throttle, error = PILOT.throttle(body, error, aim, heading, gyro, 0.01)
    return throttle.tolist(), error.tolist()


def test_without_an_error_it_hovers() -> None:
    throttle, error = command()
    assert throttle == pytest.approx([HOVER] * 4)
    assert error == [0, 0, 0]


MORE = {  # which motors turn faster: front right, rear left, front left, rear right
    "north": ({"aim": replace(HERE, pos=0.1 * NORTH)}, [-1, 1, -1, 1]),  # nose down
    "east": ({"aim": replace(HERE, pos=0.1 * EAST)}, [-1, 1, 1, -1]),  # to the right
    "faster": ({"aim": replace(HERE, vel=0.1 * NORTH)}, [-1, 1, -1, 1]),
    "sooner": ({"aim": replace(HERE, acc=0.1 * NORTH)}, [-1, 1, -1, 1]),
    "brake": ({"body": replace(STILL, vel=0.1 * NORTH)}, [1, -1, 1, -1]),
    "often too far south": ({"error": 0.1 * NORTH}, [-1, 1, -1, 1]),
    "nose to the east": ({"heading": times(0.9, 0.1, 0)}, [1, 1, -1, -1]),  # clockwise
    "rolling to the right": ({"gyro": times(0.1, 0, 0)}, [1, -1, -1, 1]),
    "pitching up": ({"gyro": times(0, 0.1, 0)}, [-1, 1, -1, 1]),
    "climb": ({"aim": replace(HERE, pos=times(0, 0, -0.1))}, [1, 1, 1, 1]),
    "sink": ({"aim": replace(HERE, pos=times(0, 0, 0.1))}, [-1, -1, -1, -1]),
}


@pytest.mark.parametrize("name", MORE)
def test_motors_answer(name: str) -> None:
    change, signs = MORE[name]
    throttle, _ = command(**change)  # type: ignore[arg-type]
    more = [speed - HOVER for speed in throttle]
    assert [math.copysign(1, each) for each in more] == signs
    assert min(map(abs, more)) > 1e-3


def test_a_command_by_hand() -> None:
    """0.5 m too low: 0.6 m/s are wanted, 0.006 m of integral, so 2.5 * 0.6 + 1.5 * 0.006 = 1.509 m/s^2 upwards."""
    throttle, error = command(aim=replace(HERE, pos=times(0, 0, -0.5)))
    assert error == pytest.approx([0, 0, -0.006])
    assert throttle == pytest.approx([math.sqrt(1.2 * (9.81 + 1.509) / 4 / 9)] * 4)


def test_damping_by_hand() -> None:
    """Yawing by 0.1 rad/s asks for 0.022 * 16 * 0.1 = 0.0352 N m the other way: 0.0352 / (4 * 0.016) = 0.55 N each."""
    throttle, _ = command(gyro=times(0, 0, 0.1))
    less, more = (math.sqrt((2.943 + sign * 0.55) / 9) for sign in (-1, 1))
    assert throttle == pytest.approx([less, less, more, more])


def test_the_integral_and_the_commands_are_bounded() -> None:
    far = replace(HERE, pos=times(1000, -1000, -1000))
    throttle, error = command(aim=far, error=times(3.9, -3.9, -3.9), gyro=times(30, -30, 30))
    assert error == [4, -4, -4]
    assert min(throttle) == 0
    assert max(throttle) == 1
