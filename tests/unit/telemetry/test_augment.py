"""Rotated windows: a quarter turn by hand, whole turns change nothing, and the equations of flight still hold."""

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_telemetry import input_scale, simulated_flights
from uavlab.core.types import Scale, leaves, tree_map
from uavlab.telemetry import augment
from uavlab.telemetry.augment import EAST, NORTH, feature_rotation, rotate_windows
from uavlab.telemetry.dataset import FEATURES, HIDDEN, FlightDataset, Windows, concatenate
from uavlab.telemetry.physics_loss import residuals

ROWS, AHEAD = 60, 4
PLAIN = Scale(torch.zeros(len(FEATURES)).double(), torch.ones(len(FEATURES)).double())


def flights() -> FlightDataset:
    return concatenate(list(simulated_flights().values()))


def windows() -> Windows:
    """Windows of simulated flights, in their own units."""
    return tree_map(torch.Tensor.double, flights().gather(torch.tensor([10, 120, 240, 400, 700]), ROWS, AHEAD))


def scale() -> Scale:
    return tree_map(torch.Tensor.double, input_scale(flights()))


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


ROTATE = augment._rotate


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
    monkeypatch.setattr(augment, name, broken)
    with pytest.raises(AssertionError):
        check_physics(0.1)


def test_leading_axes_may_be_several() -> None:
    rows, used = normal(windows(), scale()), scale()
    both = tree_map(lambda leaf: torch.stack([leaf, leaf.flip(0)]), rows)
    angles = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5], [0.6, 0.7, 0.8, 0.9, 0.0]], dtype=torch.float64)
    result = rotate_windows(both, angles, used)
    for r in range(2):
        one = rotate_windows(tree_map(lambda leaf, r=r: leaf[r], both), angles[r], used)
        assert_close(one, tree_map(lambda leaf, r=r: leaf[r], result))
