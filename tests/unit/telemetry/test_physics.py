"""Equations of flight: residuals vanish at the truth, are large at anything else, and do not know where north is."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_telemetry import input_scale, simulated_flights
from uavlab.core.rng import Streams
from uavlab.core.types import Scale, leaves, tree_map
from uavlab.telemetry import forecaster, simulation
from uavlab.telemetry.flights import FEATURES, HIDDEN, MOTORS, FlightDataset, Windows, concatenate
from uavlab.telemetry.forecaster import (
    EAST,
    LEAST_LAG,
    MEMORY,
    NORTH,
    ROWS,
    feature_rotation,
    motor_speeds,
    residuals,
    rotate_windows,
)
from uavlab.telemetry.simulation import WAVE_NOISE, Hidden, Quadrotor, aggressive

NOISE = ("ACCELEROMETER", "GYROSCOPE", "VELOCITY", "VOLTAGE", "POSITION", "ATTITUDE", "CURRENT")
RUNS, COUNT, WINDOW = 3, 260, 60
ENDS = (100, 150, 200, 250)
EQUATION = {
    **{"wind_north": "force", "wind_east": "force", "payload": "force", "drag": "force"},
    **{"motor_lag": "spin", "battery_sag": "charge"},
}


@pytest.fixture(scope="module")
def noiseless() -> tuple[Tensor, Tensor]:
    """Windows of flights without any noise whose truth never changes, and that truth; references jump now and then."""
    with pytest.MonkeyPatch.context() as patch:
        for name in NOISE:
            patch.setattr(simulation, name, 0.0)
        patch.setattr(simulation, "HOLD", 1)
        rng = Streams(range(RUNS), dtype=torch.float64)
        time = torch.arange(COUNT, dtype=torch.float64) / simulation.RATE
        once = rng.uniform("once", simulation.ONCE)
        once[:, 6:9] = 0.5  # an accelerometer without bias
        aim = aggressive(rng.uniform("waves", WAVE_NOISE), time)
        jumps = rng.normal("jumps", COUNT // 10, 3).repeat_interleave(10, 1)
        one = torch.ones(RUNS, COUNT, dtype=torch.float64)
        truth = Hidden(torch.stack([3 * one, -2 * one], -1), 0.3 * one, 0.5 * one, 0.04 * one, 0.04 * one)
        aim = replace(aim, pos=aim.pos + 0.3 * jumps)
        columns = simulation.fly(rng, Quadrotor(), aim, truth, once)
        logs = [{name: column[run] for name, column in columns.items()} for run in range(RUNS)]
    dataset = concatenate(logs)
    starts = [run * COUNT + end - WINDOW for run in range(RUNS) for end in ENDS]
    inputs = torch.stack([dataset.inputs[start : start + WINDOW] for start in starts])
    return inputs, torch.stack([dataset.truth[start + WINDOW - 1] for start in starts])


def root_mean_squares(inputs: Tensor, hidden: Tensor) -> dict[str, Tensor]:
    """Return root mean squares of the residuals, window by window."""
    return {name: part.flatten(1).square().mean(1).sqrt() for name, part in residuals(inputs, hidden).items()}


def test_residuals_vanish_at_the_truth(noiseless: tuple[Tensor, Tensor]) -> None:
    parts = residuals(*noiseless)
    count = RUNS * len(ENDS)
    shapes = {"force": (count, ROWS, 3), "spin": (count, ROWS - 1, 3), "charge": (count, ROWS)}
    assert {name: tuple(value.shape) for name, value in parts.items()} == shapes
    for value in root_mean_squares(*noiseless).values():
        assert value.max() < 0.03  # standard deviations of the noise


@pytest.mark.parametrize("factor", [0.7, 1.3])
@pytest.mark.parametrize("name", HIDDEN)
def test_a_wrong_quantity_is_noticed(noiseless: tuple[Tensor, Tensor], name: str, factor: float) -> None:
    inputs, truth = noiseless
    wrong = truth.clone()
    wrong[:, HIDDEN.index(name)] *= factor
    right, off = root_mean_squares(inputs, truth), root_mean_squares(inputs, wrong)
    kind = EQUATION[name]
    assert (off[kind] > 5 * right[kind]).all()
    assert off[kind].min() > 0.1
    if name not in ("motor_lag", "payload"):
        for other in {"spin", "charge"} - {kind}:
            assert torch.equal(off[other], right[other])


def test_force_by_hand() -> None:
    """A hovering vehicle of 1.5 kg in a wind of 4 m/s from the south, with a drag of 0.3 kg/s.

    Motors at 0.6 lift 4 * 9 * 0.36 = 12.96 N, so -8.64 m/s^2 upwards is felt, and 0.3 * 4 / 1.5 = 0.8 northwards.
    """
    inputs = still()
    inputs[..., FEATURES.index("force_down")] = -8.64 - 0.15
    inputs[..., FEATURES.index("force_north")] = 0.8 + 0.3
    force = residuals(inputs, torch.tensor([4.0, 0.0, 0.3, 0.3, 0.05, 0.6], dtype=torch.float64))["force"]
    assert force.shape == (ROWS, 3)
    for row in force.tolist():
        assert row == pytest.approx([2, 0, -1])  # in units of 0.15 m/s^2


def test_spin_by_hand() -> None:
    """Rates that grow by 0.01 rad/s from row to row, without any torque, are 1 rad/s^2 too many."""
    inputs = still()
    inputs[..., FEATURES.index("rate_pitch")] = 0.01 * torch.arange(WINDOW).double()
    spin = residuals(inputs, torch.tensor([0.0, 0.0, 0.3, 0.3, 0.05, 0.6], dtype=torch.float64))["spin"]
    for row in spin.tolist():  # 0.005 rad/s twice, a hundred times a second, are 0.7071 rad/s^2
        assert row == pytest.approx([0, 1 / 0.5**0.5, 0])


def test_charge_by_hand() -> None:
    """0.6 V at 20 A are 0.03 ohm; where the voltage stays while the current grows by 2 A, 0.06 V are missing."""
    inputs = still()
    inputs[..., -10:, FEATURES.index("current")] = 20.0
    inputs[..., :-10, FEATURES.index("current")] = 18.0
    charge = residuals(inputs, torch.tensor([0.0, 0.0, 0.3, 0.3, 0.05, 0.6], dtype=torch.float64))["charge"]
    noise = (0.05**2 + (0.03 * 0.2) ** 2) ** 0.5
    assert charge.tolist() == pytest.approx([-0.03 / noise] * 10 + [0.03 / noise] * 10)


def still() -> Tensor:
    """A window of a level vehicle that hovers at the nominal voltage."""
    inputs = torch.zeros(WINDOW, len(FEATURES), dtype=torch.float64)
    for name in MOTORS:
        inputs[:, FEATURES.index(name)] = 0.6
    inputs[:, FEATURES.index("lean_down")] = 1
    inputs[:, FEATURES.index("voltage")] = 15.2
    inputs[:, FEATURES.index("current")] = 20
    return inputs


def test_every_quantity_is_learned_of(noiseless: tuple[Tensor, Tensor]) -> None:
    inputs, truth = noiseless
    hidden = (1.1 * truth).requires_grad_()
    total = torch.stack([part.square().mean() for part in residuals(inputs, hidden).values()]).sum()
    (gradient,) = torch.autograd.grad(total, hidden)
    assert gradient.isfinite().all()
    assert (gradient.abs() > 1e-6).all()


def test_what_is_impossible_is_survived(noiseless: tuple[Tensor, Tensor]) -> None:
    inputs, truth = noiseless
    hidden = (0 * truth - 5).requires_grad_()
    parts = residuals(inputs, hidden)
    (gradient,) = torch.autograd.grad(torch.stack([part.square().mean() for part in parts.values()]).sum(), hidden)
    assert gradient.isfinite().all()
    assert all(part.isfinite().all() for part in parts.values())


def recursion(commands: Tensor, voltage: Tensor, lag: float, nominal: float) -> Tensor:
    """Compute the motors' speeds row by row, as the vehicle does."""
    decay = torch.exp(torch.tensor(-0.01 / lag, dtype=torch.float64))
    speed, speeds = commands[0] * voltage[0] / nominal, []
    for command, volts in zip(commands, voltage, strict=True):
        speed = decay * speed + (1 - decay) * command * volts / nominal
        speeds.append(speed)
    return torch.stack(speeds)


@pytest.mark.parametrize("lag", [0.02, 0.05, 0.07])
def test_motors_equal_the_recursion(lag: float) -> None:
    inputs = still()
    dice = torch.Generator().manual_seed(0)
    first = FEATURES.index("motor_1")
    inputs[:, first : first + 4] = torch.rand(WINDOW, 4, generator=dice, dtype=torch.float64)
    inputs[:, FEATURES.index("voltage")] += torch.rand(WINDOW, generator=dice, dtype=torch.float64)
    expected = recursion(inputs[:, first : first + 4], inputs[:, FEATURES.index("voltage")], lag, 15.2)[-ROWS:]
    forgotten = torch.exp(torch.tensor(-MEMORY / (100 * lag))).item()
    off = (motor_speeds(inputs, torch.tensor(lag, dtype=torch.float64), 15.2) - expected).abs().max().item()
    assert off < 1.2 * forgotten  # speeds differ by 1.1 at most
    slower = motor_speeds(inputs, torch.tensor(1.3 * lag, dtype=torch.float64), 15.2)
    assert (slower - expected).abs().max() > 0.02


def test_motors_have_a_least_lag() -> None:
    inputs = still()
    inputs[::2, FEATURES.index("motor_1")] = 0.2
    least = motor_speeds(inputs, torch.tensor(LEAST_LAG, dtype=torch.float64), 15.2)
    for lag in (0.0, -1.0):
        assert torch.equal(motor_speeds(inputs, torch.tensor(lag, dtype=torch.float64), 15.2), least)
    assert least.isfinite().all()


def test_leading_axes_may_be_several(noiseless: tuple[Tensor, Tensor]) -> None:
    inputs, truth = noiseless
    several = residuals(inputs.unflatten(0, (RUNS, -1)), truth.unflatten(0, (RUNS, -1)))
    for name, part in residuals(inputs, truth).items():
        assert torch.equal(several[name].flatten(0, 1), part)


AHEAD = 4
PLAIN = Scale(torch.zeros(len(FEATURES)).double(), torch.ones(len(FEATURES)).double())


def simulated() -> FlightDataset:
    return concatenate(list(simulated_flights().values()))


def windows() -> Windows:
    """Windows of simulated flights, in their own units."""
    return tree_map(torch.Tensor.double, simulated().gather(torch.tensor([10, 120, 240, 400, 700]), WINDOW, AHEAD))


def scale() -> Scale:
    return tree_map(torch.Tensor.double, input_scale(simulated()))


def normal(rows: Windows, by: Scale) -> Windows:
    return Windows((rows.inputs - by.center) / by.spread, rows.truth, rows.tracking_error)


def assert_close(a: Windows, b: Windows, atol: float = 1e-9) -> None:
    for (name, x), (_, y) in zip(leaves(a), leaves(b), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def share(value: float, count: int = 5) -> Tensor:
    return torch.full((count,), value, dtype=torch.float64)


def test_a_quarter_turn_by_hand() -> None:
    """What pointed north points east, and what pointed east points south."""
    inputs = torch.arange(1.0, len(FEATURES) + 1, dtype=torch.float64)[None, None]
    truth = torch.tensor([[3.0, 4.0, 0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    error = torch.tensor([[[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]]], dtype=torch.float64)
    result = rotate_windows(Windows(inputs, truth, error), share(0.25, 1), PLAIN)
    assert result.truth[0].tolist() == pytest.approx([-4, 3, 0.1, 0.2, 0.3, 0.4])
    assert result.tracking_error[0].tolist() == [pytest.approx([-2, 1, 3]), pytest.approx([-6, 5, 7])]
    before = dict(zip(FEATURES, inputs[0, 0].tolist(), strict=True))
    expected = dict(before)
    for name in ("tracking_error", "velocity", "commanded_velocity", "force", "lean"):
        expected[f"{name}_north"] = -before[f"{name}_east"]
        expected[f"{name}_east"] = before[f"{name}_north"]
    assert dict(zip(FEATURES, result.inputs[0, 0].tolist(), strict=True)) == pytest.approx(expected)


def test_every_horizontal_feature_has_its_partner() -> None:
    assert len(NORTH) == len(EAST) == 5
    for north, east in zip(NORTH, EAST, strict=True):
        assert FEATURES[north].removesuffix("_north") == FEATURES[east].removesuffix("_east")
    assert HIDDEN[:2] == ("wind_north", "wind_east")


@pytest.mark.parametrize("by", ["own units", "normalised"])
def test_no_turn_and_four_quarters_are_the_identity(by: str) -> None:
    used = PLAIN if by == "own units" else scale()
    rows = normal(windows(), used)
    assert_close(rotate_windows(rows, share(0.0), used), rows)
    often = rows
    for _ in range(4):
        often = rotate_windows(often, share(0.25), used)
    assert_close(often, rows)
    with pytest.raises(AssertionError):
        assert_close(rotate_windows(rows, share(0.25), used), rows)


def test_turns_add_up_and_each_window_has_its_own() -> None:
    rows, used = normal(windows(), scale()), scale()
    first, then = ([0.05, 0.3, 0.35, 0.2, 0.0], [0.05, 0.6, 0.0, 0.3, 0.75])
    first, then = (torch.tensor(each, dtype=torch.float64) for each in (first, then))
    once = rotate_windows(rows, first + then, used)
    twice = rotate_windows(rotate_windows(rows, first, used), then, used)
    assert_close(once, twice)
    for n, part in enumerate(first + then):
        one = rotate_windows(tree_map(lambda leaf, n=n: leaf[n : n + 1], rows), part[None], used)
        assert_close(one, tree_map(lambda leaf, n=n: leaf[n : n + 1], once))


def test_turned_before_or_after_normalising() -> None:
    rows, used, angles = windows(), scale(), torch.tensor([0.1, 0.9, 0.35, 0.5, 0.7], dtype=torch.float64)
    assert_close(rotate_windows(normal(rows, used), angles, used), normal(rotate_windows(rows, angles, PLAIN), used))


def test_lengths_stay_and_so_does_all_that_is_not_horizontal() -> None:
    rows = windows()
    result = rotate_windows(rows, share(0.3), PLAIN)
    torch.testing.assert_close(result.truth[:, :2].norm(dim=-1), rows.truth[:, :2].norm(dim=-1))
    torch.testing.assert_close(result.tracking_error.norm(dim=-1), rows.tracking_error.norm(dim=-1))
    rest = [n for n in range(len(FEATURES)) if n not in {*NORTH, *EAST}]
    torch.testing.assert_close(result.inputs[..., rest], rows.inputs[..., rest], rtol=1e-12, atol=1e-12)
    assert torch.equal(result.truth[:, 2:], rows.truth[:, 2:])
    assert torch.equal(result.tracking_error[..., 2], rows.tracking_error[..., 2])


ROTATE = forecaster._rotate


def check_physics(share_of_turn: float) -> None:
    """Check that the residuals of the equations of flight are the same under another heading."""
    rows = windows()
    result = rotate_windows(rows, share(share_of_turn), PLAIN)
    before, after = residuals(rows.inputs, rows.truth), residuals(result.inputs, result.truth)
    for name in ("spin", "charge"):
        torch.testing.assert_close(after[name], before[name], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(after["force"].norm(dim=-1), before["force"].norm(dim=-1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("part", [0.1, 0.25, 0.6])
def test_physics_does_not_know_where_north_is(part: float) -> None:
    check_physics(part)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("feature_rotation", lambda cos, sin: feature_rotation(cos, -sin)),
        ("_rotate", lambda pair, cos, sin: ROTATE(pair, cos, -sin)),
        ("_rotate", lambda pair, cos, sin: pair),
    ],
    ids=["features the other way", "wind the other way", "wind not at all"],
)
def test_a_wrong_turn_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, broken: object) -> None:
    monkeypatch.setattr(forecaster, name, broken)
    with pytest.raises(AssertionError):
        check_physics(0.1)


def test_turned_windows_may_have_several_leading_axes() -> None:
    rows, used = normal(windows(), scale()), scale()
    both = tree_map(lambda leaf: torch.stack([leaf, leaf.flip(0)]), rows)
    angles = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5], [0.6, 0.7, 0.8, 0.9, 0.0]], dtype=torch.float64)
    result = rotate_windows(both, angles, used)
    for r in range(2):
        one = rotate_windows(tree_map(lambda leaf, r=r: leaf[r], both), angles[r], used)
        assert_close(one, tree_map(lambda leaf, r=r: leaf[r], result))
