"""Hidden quantities against plain loops and by hand; flights alone and together; noise against the truth."""

import math
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

from uavlab.core.rng import Streams
from uavlab.ops.geometry import conjugate, multiply, rotate
from uavlab.telemetry import simulation
from uavlab.telemetry.logs.columns import COLUMNS, INPUTS, TRUTH
from uavlab.telemetry.simulation import (
    HOLD,
    ONCE,
    RATE,
    Columns,
    Fleet,
    Hidden,
    Quadrotor,
    Reference,
    drift,
    fly,
    gusts,
    levels,
)

FLEET = Fleet(300, 360)
UNSEEN = ("ACCELEROMETER", "VOLTAGE", "CURRENT", "ATTITUDE")  # noise that the autopilot does not see


def simulate(seeds: Sequence[int], fleet: Fleet = FLEET) -> list[Columns]:
    return fleet.fly(Streams(seeds), Quadrotor())


@cache
def several() -> list[Columns]:
    """Simulate enough flights to measure standard deviations."""
    return simulate(range(24))


@cache
def without_noise() -> list[Columns]:
    """Simulate these flights without the noise that the autopilot never sees."""
    with pytest.MonkeyPatch.context() as patch:
        for name in UNSEEN:
            patch.setattr(simulation, name, 0.0)
        return simulate(range(24))


def stack(flights: list[Columns], *names: str) -> Tensor:
    """Stack columns of the rows that all flights have: flights, rows, columns."""
    return torch.stack([torch.stack([flight[name][: FLEET.least] for name in names], -1) for flight in flights])


POS, VEL, TRUE = ("x", "y", "z"), ("vx", "vy", "vz"), ("true_x", "true_y", "true_z")
FORCE, GYRO, ATTITUDE = ("ax", "ay", "az"), ("p", "q", "r"), ("qw", "qx", "qy", "qz")
MOTORS = ("motor_1", "motor_2", "motor_3", "motor_4")


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("rows", [1, 2, 3, 63, 64, 65, 200])
def test_drift_equals_a_plain_loop(rows: int) -> None:
    noise = normal(2, rows, 3)
    decay = math.exp(-1 / (RATE * 0.5))
    x, expected = noise[:, 0], [noise[:, 0]]
    for t in range(1, rows):
        x = decay * x + math.sqrt(1 - decay**2) * noise[:, t]
        expected.append(x)
    torch.testing.assert_close(drift(noise, 0.5, 2.0), 2 * torch.stack(expected, 1), rtol=1e-11, atol=1e-12)


def test_drift_has_its_spread_and_time_constant() -> None:
    """Numbers a time constant apart are correlated by 1 / e."""
    x = drift(normal(2000, 300), 1.0, 0.3)
    spread = x.square().mean(0).sqrt()
    assert spread[0].item() == pytest.approx(0.3, rel=0.05)
    assert spread.mean().item() == pytest.approx(0.3, rel=0.02)
    assert spread[-1].item() == pytest.approx(0.3, rel=0.05)
    for apart in (50, 100, 200):
        correlation = (x[:, :-apart] * x[:, apart:]).mean() / 0.09
        assert correlation.item() == pytest.approx(math.exp(-apart / 100), abs=0.03)


def test_levels_by_hand() -> None:
    """Four levels, the first for 5 s, the second for 15, the third for 25, the last for ever."""
    noise = torch.tensor([[[0.2, 0.0], [0.8, 0.5], [0.5, 1.0], [0.9, 0.3]]])
    time = torch.tensor([0.0, 4.99, 5.0, 19.99, 20.0, 44.99, 45.0, 500.0])
    assert levels(noise, time)[0].tolist() == pytest.approx([0.2, 0.2, 0.8, 0.8, 0.5, 0.5, 0.9, 0.9])


def test_a_gust_by_hand() -> None:
    """Of 10 s, from 2 s on, for 3 + 7 * 0.5 = 6.5 s, half of 5 m/s, towards the east; the others have no strength."""
    noise = torch.zeros(1, 3, 4)
    noise[0, 1] = torch.tensor([0.2, 0.5, 0.5, 0.25])
    time = torch.tensor([0, 1.99, 2.125, 2.25, 2.5, 8, 8.5, 8.75, 9, 10])
    eighth = 2.5 * (1 - math.cos(math.pi / 4)) / 2
    strength = [0, 0, eighth, 1.25, 2.5, 2.5, 2.5, 1.25, 0, 0]
    wind = gusts(noise, time)
    assert wind[0, :, 1].tolist() == pytest.approx(strength, abs=1e-5)
    assert wind[0, :, 0].tolist() == pytest.approx([0] * 10, abs=1e-5)
    noise[0, 2] = torch.tensor([0.2, 0.5, 1.0, 0.75])  # twice as strong, towards the west
    assert gusts(noise, time)[0, :, 1].tolist() == pytest.approx([-value for value in strength], abs=1e-5)


def hidden(fleet: Fleet, count: int = 200, rows: int = 4000) -> Hidden:
    rng = Streams(range(count))
    return fleet.hidden(rng, rng.uniform("flights.once", ONCE), torch.arange(rows) / RATE)


def jumps(values: Tensor, least: float) -> Tensor:
    """Count changes by more than ``least`` from row to row, flight by flight."""
    return (values.diff(dim=1).abs() > least).sum(1)


def test_the_truth_changes_in_steps_within_flights() -> None:
    """Levels last for 5 to 25 s, so a flight of 40 s has at least one step, and three at most."""
    truth = hidden(FLEET)
    for name, least in (("resistance", 1e-5), ("drag", 1e-4), ("payload", 1e-6)):
        steps = jumps(getattr(truth, name), least)
        assert steps.max() >= 3, name
        assert (steps > 0).double().mean() > 0.8, name
    assert jumps(truth.resistance, 0).max() == 3
    assert jumps(truth.resistance, 0).min() >= 1
    assert (jumps(truth.lag, 0) > 3900).all()  # drifts
    assert jumps(truth.lag, 0.01).max() == 0
    assert (truth.lag.amax(1) - truth.lag.amin(1)).mean() > 0.01


def test_the_truth_stays_within_its_limits() -> None:
    truth = hidden(Fleet(300, 360, wind=6.0, payload=0.4))
    limits = {"payload": (0, 0.4), "drag": (0.15, 0.83), "lag": (0.02, 0.07), "resistance": (0.01, 0.06)}
    for name, (low, high) in limits.items():
        values = getattr(truth, name)
        assert low <= values.min(), name
        assert values.max() <= high, name
        assert values.max() - values.min() > 0.9 * (high - low), name
    assert 0.1 < (truth.payload == 0).double().mean() < 0.5  # below 0.3 of its levels there is none
    mean = truth.wind.mean(1).norm(dim=-1)
    assert mean.max() < 6 + 4
    assert (mean > 3).double().mean() > 0.5  # strengths are even over a disk
    calm = hidden(Fleet(300, 360, wind=0.0, payload=0.0))
    assert calm.payload.abs().max() == 0
    assert calm.wind.mean(1).norm(dim=-1).mean() < 1.5


def test_a_flight_is_the_same_in_any_company() -> None:
    """Equal up to their last digits, which vary with how many are simulated at once."""
    two, five, last = (simulate(seeds) for seeds in ((0, 1), (3, 0, 4, 1, 2), (1,)))
    for alone, other in ((two[0], five[1]), (two[1], five[3]), (two[1], last[0])):
        assert len(alone["x"]) == len(other["x"])
        for name, values in alone.items():
            torch.testing.assert_close(values, other[name], rtol=1e-5, atol=1e-4, msg=lambda text, n=name: n + text)
    assert len(two[0]["x"]) != len(two[1]["x"])
    assert not torch.allclose(two[0]["wind_north"][:300], two[1]["wind_north"][:300])


def test_rows_lie_between_the_least_and_the_most() -> None:
    rows = [len(flight["x"]) for flight in several()]
    assert min(rows) >= 300
    assert max(rows) <= 360
    assert max(rows) - min(rows) > 40
    assert {len(each["x"]) for each in simulate((0, 1, 2), Fleet(40, 40))} == {40}


def test_columns_are_those_of_logs() -> None:
    for flight in several():
        assert set(flight) == {*INPUTS, *TRUTH}
        for name, values in flight.items():
            assert len(values) == len(flight["x"])
            assert values.isfinite().all()
            assert COLUMNS[name].low <= values.min(), name
            assert values.max() <= COLUMNS[name].high, name


def test_the_truth_is_what_was_drawn() -> None:
    rng = Streams(range(24))
    truth = FLEET.hidden(rng, rng.uniform("flights.once", ONCE), torch.arange(FLEET.most) / RATE)
    rows = slice(0, FLEET.least)
    assert torch.equal(stack(several(), "wind_north", "wind_east"), truth.wind[:, rows])
    for name, values in {"payload": truth.payload, "drag": truth.drag, "motor_lag": truth.lag}.items():
        assert torch.equal(stack(several(), name)[..., 0], values[:, rows]), name
    current, sag = stack(without_noise(), "current", "battery_sag").unbind(-1)
    torch.testing.assert_close(sag, truth.resistance[:, rows] * current)


def spread(values: Tensor) -> float:
    return values.square().mean().sqrt().item()


def test_every_logged_column_is_as_noisy_as_its_constant_says() -> None:
    """True rates and velocities are differences of true attitudes and positions."""

    def noise(*names: str) -> Tensor:
        return stack(several(), *names) - stack(without_noise(), *names)

    true_pos, true_attitude = stack(several(), *TRUE), stack(without_noise(), *ATTITUDE)
    assert torch.equal(true_pos, stack(without_noise(), *TRUE))
    new = slice(0, None, HOLD)
    bias = noise(*FORCE).mean(1, keepdim=True)
    assert spread(noise(*FORCE) - bias) == pytest.approx(simulation.ACCELEROMETER, rel=0.05)
    assert spread(noise("voltage")) == pytest.approx(simulation.VOLTAGE, rel=0.05)
    assert spread(noise("current")) == pytest.approx(simulation.CURRENT, rel=0.05)
    wrong = 2 * multiply(stack(several(), *ATTITUDE), conjugate(true_attitude))[..., 1:]  # small angles
    assert spread(wrong) == pytest.approx(simulation.ATTITUDE, rel=0.25)  # drifts for 5 s: few independent numbers
    assert spread((stack(several(), *POS) - true_pos)[:, new]) == pytest.approx(simulation.POSITION, rel=0.1)
    velocity = true_pos.double().diff(dim=1) * RATE
    error = (stack(several(), *VEL)[:, 1:] - velocity)[:, HOLD - 1 :: HOLD]
    assert spread(error) == pytest.approx(simulation.VELOCITY, rel=0.1)
    change = multiply(conjugate(true_attitude[:, :-1]), true_attitude[:, 1:]).double()
    rate = 2 * change[..., 1:] / change[..., :1] * RATE
    assert spread(stack(several(), *GYRO)[:, 1:] - rate) == pytest.approx(simulation.GYROSCOPE, rel=0.1)


def test_accelerometers_are_biased_by_a_little() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "ACCELEROMETER", 0.0)
        seeds = range(3)
        biased = simulate(seeds)
        patch.setattr(Streams, "uniform", unbiased(Streams.uniform))
        level = simulate(seeds)
    bias = stack(biased, *FORCE) - stack(level, *FORCE)
    assert (bias.amax(1) - bias.amin(1)).max() < 1e-4  # the same in all rows
    once = Streams(seeds).uniform("flights.once", ONCE)
    torch.testing.assert_close(bias[:, 0], 0.05 * (2 * once[:, 6:9] - 1), rtol=0, atol=1e-5)


def unbiased(uniform):
    def draw(rng: Streams, name: str, *shape: int) -> Tensor:
        numbers = uniform(rng, name, *shape)
        if name == "flights.once":
            numbers[:, 6:9] = 0.5
        return numbers

    return draw


def test_positions_and_velocities_are_held() -> None:
    for values in (stack(several(), *POS), stack(several(), *VEL)):
        rows = values[:, : values.shape[1] // HOLD * HOLD].unflatten(1, (-1, HOLD))
        assert torch.equal(rows, rows[:, :, :1].expand_as(rows))
        assert (rows[:, 1:, 0] != rows[:, :-1, 0]).all()


def test_voltage_and_current_belong_together() -> None:
    """The voltage without load is between 14 and 16.8 V."""
    rest = stack(without_noise(), "voltage", "battery_sag").sum(-1)
    assert rest.min() > 14
    assert rest.max() < 16.8
    assert (rest.diff(dim=1) < 1e-5).all()  # it only empties


def test_vehicles_track_their_references() -> None:
    """In wind, with payloads that their autopilots do not know."""
    away = (stack(several(), *TRUE) - stack(several(), "ref_x", "ref_y", "ref_z")).norm(dim=-1)
    assert away[:, 0].max() == 0
    assert away.mean() < 1.5
    assert away.max() < 6
    throttle = stack(several(), *MOTORS)
    assert ((throttle > 0) & (throttle < 1)).double().mean() > 0.99


def test_in_still_air_the_assumed_vehicle_hovers() -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in (*UNSEEN, "GYROSCOPE", "VELOCITY", "POSITION"):
            patch.setattr(simulation, name, 0.0)
        rng = Streams([0])
        once = torch.full((1, ONCE), 0.5)
        once[:, 5] = 0.25  # nose to the east
        once[:, 9] = (1.2 / 2.8 - 0.4) / 0.6  # a charge that gives the nominal voltage
        nothing, still = torch.zeros(1, 100), torch.zeros(1, 100, 3)
        calm = Hidden(torch.zeros(1, 100, 2), nothing, nothing, nothing + 0.05, nothing)
        columns = fly(rng, Quadrotor(), Reference(still, still, still), calm, once)
    pos, force, attitude, throttle = (
        torch.stack([columns[name] for name in names], -1) for names in (TRUE, FORCE, ATTITUDE, MOTORS)
    )
    assert pos.abs().max() < 1e-3  # the battery empties, ever so slightly
    torch.testing.assert_close(force, torch.tensor([0.0, 0.0, -9.81]).expand(1, 100, 3), rtol=0, atol=1e-2)
    nose = rotate(attitude, torch.tensor([1.0, 0.0, 0.0]).expand(1, 100, 3))
    torch.testing.assert_close(nose, torch.tensor([0.0, 1.0, 0.0]).expand(1, 100, 3), rtol=0, atol=1e-4)
    assert throttle[0, 0].tolist() == pytest.approx([math.sqrt(1.2 * 9.81 / 36)] * 4)


def test_half_of_the_flights_are_aggressive() -> None:
    once = Streams(range(24)).uniform("flights.once", ONCE)
    start = stack(several(), "ref_vx", "ref_vy", "ref_vz")[:, 0].norm(dim=-1)
    assert ((start == 0) == (once[:, 1] >= 0.5)).all()  # others begin at rest
    assert 6 < int((start == 0).sum()) < 18


def test_all_is_finite_and_in_single_precision() -> None:
    for flight in several():
        for name, values in flight.items():
            assert values.dtype == torch.float32, name
            assert values.isfinite().all(), name
