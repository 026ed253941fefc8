"""Features by hand, windows within their flights, each equal to a plain slice, splits and scales."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.fixtures_telemetry import input_scale, random_dataset, random_flight
from uavlab.core.errors import FileError
from uavlab.core.types import leaves
from uavlab.telemetry import flights as fleet
from uavlab.telemetry.flights import (
    FEATURES,
    HIDDEN,
    FlightDataset,
    features,
    make_scale,
    recent_mean,
    split,
    window_starts,
)
from uavlab.telemetry.logs.columns import INPUTS

HALF = math.sqrt(0.5)
LOGGED = {
    **{"x": [1, 2], "y": [0, 5], "z": [-3, -4], "ref_x": [0.5, 2.5], "ref_y": [1, 5], "ref_z": [-3, -2]},
    **{"vx": [1, 2], "vy": [3, 4], "vz": [5, 6], "ref_vx": [7, 8], "ref_vy": [9, 10], "ref_vz": [11, 12]},
    **{"ax": [1, 1], "ay": [2, 2], "az": [-9, -9], "p": [0.1, 0.3], "q": [0, -0.1], "r": [1, 1.5]},
    **{"qw": [1, HALF], "qx": [0, HALF], "qy": [0, 0], "qz": [0, 0]},  # level; rolled by a quarter turn to the right
    **{"motor_1": [0.5, 0.6], "motor_2": [0.5, 0.5], "motor_3": [0.5, 0.4], "motor_4": [0.5, 0.3]},
    **{"voltage": [16, 15], "current": [20, 30]},
}
BY_HAND = {
    **{"tracking_error_north": [0.5, -0.5], "tracking_error_east": [-1, 0], "tracking_error_down": [0, -2]},
    **{"velocity_north": [1, 2], "velocity_east": [3, 4], "velocity_down": [5, 6]},
    **{"commanded_velocity_north": [7, 8], "commanded_velocity_east": [9, 10], "commanded_velocity_down": [11, 12]},
    # rolled, what is right of the body is down, and what is below it is west
    **{"force_north": [1, 1], "force_east": [2, 9], "force_down": [-9, 2], "thrust": [-9, -9]},
    **{"rate_roll": [0.1, 0.3], "rate_pitch": [0, -0.1], "rate_yaw": [1, 1.5]},
    **{"lean_north": [0, 0], "lean_east": [0, -1], "lean_down": [1, 0]},
    **{name: LOGGED[name] for name in ("motor_1", "motor_2", "motor_3", "motor_4", "voltage", "current")},
    **{"spin_roll": [0, 20], "spin_pitch": [0, -10], "spin_yaw": [0, 50]},
    # squares 0.36 (front right), 0.25 (rear left), 0.16 (front left), 0.09 (rear right)
    "command_roll": [0, -0.36 + 0.25 + 0.16 - 0.09],  # left minus right
    "command_pitch": [0, 0.36 - 0.25 + 0.16 - 0.09],  # front minus rear
    "command_yaw": [0, 0.36 + 0.25 - 0.16 - 0.09],  # those that turn counter-clockwise minus the others
    **{"voltage_swing": [0, -0.5], "current_swing": [0, 5]},
}


def test_features_of_two_rows_by_hand() -> None:
    assert set(LOGGED) == set(INPUTS)
    rows = features({name: torch.tensor(values, dtype=torch.float64) for name, values in LOGGED.items()})
    assert tuple(BY_HAND) == FEATURES
    for column, (name, values) in zip(rows.T, BY_HAND.items(), strict=True):
        assert column.tolist() == pytest.approx(values, abs=1e-9), name


def test_features_see_no_later_row() -> None:
    flight = random_flight(250, 0)
    before = features(flight)
    for row in (1, 120, 249):
        changed = {name: torch.cat([values[:row], 2 * values[row:]]) for name, values in flight.items()}
        after = features(changed)
        assert torch.equal(after[:row], before[:row])
        assert not torch.equal(after[row:], before[row:])


def test_recent_means_equal_a_plain_loop() -> None:
    values = 15 + torch.randn(250, 2, generator=torch.Generator().manual_seed(0))
    means = recent_mean(values)
    assert means.dtype == torch.float32
    for row in range(250):
        some = values[max(0, row - 99) : row + 1].numpy().astype(np.float64)
        assert means[row].tolist() == pytest.approx(some.mean(0).tolist(), rel=1e-6)


def test_flights_are_put_end_to_end() -> None:
    flights = [random_flight(rows, rows) for rows in (5, 3, 4)]
    for name in HIDDEN:
        del flights[1][name]
    del flights[1]["true_x"], flights[2]["true_z"]
    together = fleet.concatenate(flights)
    assert together.bounds.tolist() == [0, 5, 8, 12]
    for flight, first in zip(flights, together.bounds.tolist(), strict=False):
        rows = slice(first, first + len(flight["x"]))
        assert torch.equal(together.inputs[rows], features(flight))
        for n, name in enumerate(HIDDEN):
            truth = together.truth[rows, n]
            assert torch.equal(truth, flight[name]) if name in flight else truth.isnan().all()
        for n, axis in enumerate("xyz"):  # where the truth is not known, as far as the vehicle knows
            place = flight.get(f"true_{axis}", flight[axis])
            assert torch.equal(together.tracking_error[rows, n], place - flight[f"ref_{axis}"])


def test_starts_by_hand() -> None:
    """Of flights with rows 0 to 9, 10 to 12 and 13 to 19, the second is too short for 4."""
    start, flight = window_starts(torch.tensor([0, 10, 13, 20]), 4, 3)
    assert start.tolist() == [0, 3, 6, 13, 16]
    assert flight.tolist() == [0, 0, 0, 2, 2]


def numbered(*rows: int) -> FlightDataset:
    """Flights whose columns hold the number of the flight, of the row, and its negative."""
    bounds = torch.tensor([0, *rows]).cumsum(0)
    flight = torch.arange(len(rows)).repeat_interleave(torch.tensor(rows))
    row = torch.arange(sum(rows))
    numbers = torch.stack([flight, row, -row], 1).float()
    inputs = numbers.repeat(1, 12)[:, : len(FEATURES)].contiguous()
    return FlightDataset(inputs, numbers.repeat(1, 2), numbers.clone(), bounds)


WINDOW, HORIZON = 7, 3
ROWS = (30, 10, 11, 25)

Starts = Callable[[Tensor, int, int], tuple[Tensor, Tensor]]


def check_windows(find: Starts, stride: int) -> None:
    """Check that each window is one flight's, that its rows follow one another, and that none is missing."""
    flights = numbered(*ROWS)
    start, flight = find(flights.bounds, WINDOW + HORIZON, stride)
    windows = flights.gather(start, WINDOW, HORIZON)
    seen = torch.cat([windows.inputs[..., :3], windows.tracking_error], 1)
    assert (seen[..., 0] == flight[:, None]).all(), "two flights in a window"
    row = start[:, None] + torch.arange(WINDOW + HORIZON)
    assert (seen[..., 1] == row).all(), "rows out of order"
    assert (windows.truth[:, 1] == start + WINDOW - 1).all(), "truth of another row"
    fit = [(rows - WINDOW - HORIZON) // stride + 1 for rows in ROWS]
    assert flight.bincount(minlength=len(ROWS)).tolist() == fit, "not all windows"
    assert start.unique().numel() == sum(fit)


@pytest.mark.parametrize("stride", [1, 2, 5])
def test_windows_never_cross_a_flight(stride: int) -> None:
    check_windows(window_starts, stride)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (lambda bounds, rows, stride: window_starts(bounds, rows - HORIZON, stride), "two flights in a window"),
        (lambda bounds, rows, stride: window_starts(bounds[[0, -1]], rows, stride), "two flights in a window"),
        (lambda bounds, rows, stride: window_starts(bounds, rows + 1, stride), "not all windows"),
        (lambda bounds, rows, stride: window_starts(bounds, rows, 2 * stride), "not all windows"),
    ],
    ids=["no horizon", "no bounds", "one too few", "stride"],
)
def test_wrong_starts_are_caught(mutant: Starts, message: str) -> None:
    def padded(bounds: Tensor, rows: int, stride: int) -> tuple[Tensor, Tensor]:
        start, flight = mutant(bounds, rows, stride)
        within = start + WINDOW + HORIZON <= bounds[-1]  # what is beyond the end would be refused
        return start[within], flight[within]

    with pytest.raises(AssertionError, match=message):
        check_windows(padded, 1)


def test_windows_are_slices() -> None:
    flights = random_dataset(60, 45)
    start, _ = window_starts(flights.bounds, 20 + 5, 1)
    windows = flights.gather(start, 20, 5)
    assert windows.inputs.shape == (36 + 21, 20, len(FEATURES))
    for n, first in enumerate(start.tolist()):
        assert torch.equal(windows.inputs[n], flights.inputs[first : first + 20])
        assert torch.equal(windows.truth[n], flights.truth[first + 19])
        assert torch.equal(windows.tracking_error[n], flights.tracking_error[first + 20 : first + 25])


def test_windows_are_copies() -> None:
    flights = random_dataset(30)
    windows = flights.gather(torch.tensor([3]), 4, 2)
    before = [leaf.clone() for _, leaf in leaves(windows)]
    for part in (flights.inputs, flights.truth, flights.tracking_error):
        part.zero_()
    for (_, leaf), old in zip(leaves(windows), before, strict=True):
        assert torch.equal(leaf, old)


@pytest.mark.parametrize(
    ("count", "shares", "sizes"),
    [
        (60, (0.7, 0.15), (42, 9, 9)),
        (10, (0.7, 0.15), (7, 2, 1)),
        (3, (0.7, 0.15), (1, 1, 1)),
        (4, (0.98, 0.01), (2, 1, 1)),
        (5, (0.01, 0.98), (1, 3, 1)),
    ],
)
def test_flights_are_split(count: int, shares: tuple[float, float], sizes: tuple[int, int, int]) -> None:
    groups = split(count, shares, 0)
    assert tuple(map(len, groups)) == sizes
    assert sorted(n for group in groups for n in group) == list(range(count))


def test_a_split_goes_by_its_seed() -> None:
    assert split(60, (0.7, 0.15), 3) == split(60, (0.7, 0.15), 3)
    assert split(60, (0.7, 0.15), 3)[2] != split(60, (0.7, 0.15), 4)[2]


@pytest.mark.parametrize("count", [0, 2])
def test_too_few_flights_are_refused(count: int) -> None:
    with pytest.raises(FileError) as refusal:
        split(count, (0.7, 0.15), 0)
    assert str(refusal.value) == (
        f"flights: {count} cannot be split into training, validation and test; expected 3 or more."
    )


def fit(values: Tensor, names: tuple[str, ...]) -> fleet.Scale:
    flights = FlightDataset(values, values[:, :0], values[:, :0], torch.tensor([0, len(values)]))
    return make_scale(*flights.statistics(["inputs"]), names)


def test_scales_by_hand() -> None:
    scale = fit(torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, 13.0]]), ("a", "b"))
    assert scale.center.tolist() == [3, 11]
    assert scale.spread.tolist() == pytest.approx([math.sqrt(8 / 3), math.sqrt(2)])


def test_a_scale_of_large_numbers_keeps_its_digits() -> None:
    values = 1e5 + torch.randn(10_000, 1, generator=torch.Generator().manual_seed(0))
    exact = values.double().numpy()
    scale = fit(values, ("a",))
    assert scale.center.item() == pytest.approx(exact.mean(), rel=1e-7)
    assert scale.spread.item() == pytest.approx(exact.std(), rel=1e-6)


@pytest.mark.parametrize(
    ("value", "reason"),
    [(2.0, "has zero variance"), (math.nan, "is not known of every row")],
    ids=["constant", "unknown"],
)
def test_a_feature_without_variance_is_refused(value: float, reason: str) -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, value]])
    with pytest.raises(FileError) as refusal:
        fit(values, ("left", "right"))
    expected = f"flights: feature 1 (right) {reason}; nothing can be learned of it. Leave such logs out."
    assert str(refusal.value) == expected


def test_inputs_are_normalised_in_their_place() -> None:
    flights = random_dataset(100, 80)
    before = flights.inputs.clone()
    scale, after = input_scale(flights), flights.inputs
    flights.normalise(scale)
    assert after.mean(0).abs().max() < 1e-5
    torch.testing.assert_close(after.std(0, correction=0), torch.ones(len(FEATURES)), rtol=1e-5, atol=0)
    torch.testing.assert_close(after * scale.spread + scale.center, before, rtol=1e-5, atol=1e-5)
