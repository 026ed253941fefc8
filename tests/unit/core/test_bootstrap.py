"""Bootstrap intervals have the width that theory gives, and fast ones agree with those of the plain loop."""

import numpy as np
import pytest

from uavlab.core.bootstrap import DRAWS, interval, nested_bands, nested_interval


def test_interval_of_a_mean() -> None:
    assert interval([0.0, 0.0, 1.0, 1.0]) == (0.5, 0.0, 1.0)  # each end has a chance of 1 / 16
    _, low, high = interval([float(n % 2) for n in range(100)])
    assert (low, high) == pytest.approx((0.4, 0.6), abs=0.02)  # 1.96 x 0.5 / sqrt(100)
    assert interval([0.25]) == (0.25, 0.25, 0.25)


def test_interval_of_a_median() -> None:
    median, low, high = interval([1.0, 2.0, 3.0, 4.0, 50.0], np.median)
    assert (median, low, high) == (3.0, 1.0, 50.0)  # all three upper ranks: chance (2/5)^3 and more, above 2.5 %


def test_numbers_do_not_depend_on_the_version() -> None:
    """Published intervals can be drawn again: the generator and the order of its draws stay as they are."""
    table = np.random.default_rng(0).random((3, 5))
    assert DRAWS == 2000
    assert interval(table[0]) == pytest.approx((0.3555039599500642, 0.07695780653866358, 0.6693118237372284))
    assert nested_interval(table) == pytest.approx((0.5296228321098047, 0.2792577699280433, 0.7500102172647541))
    low, mean, high = nested_bands(table[..., None])[:, 0]
    assert (low, mean, high) == pytest.approx((0.28165898859638805, 0.5296228321098047, 0.7530280314275324))


@pytest.mark.parametrize("shape", [(1, 30), (4, 8)])
def test_bands_are_the_intervals_of_the_loop(shape: tuple[int, int]) -> None:
    table = np.random.default_rng(1).normal(size=shape) + np.arange(shape[0])[:, None]
    mean, *ends = nested_interval(table)
    low, middle, high = nested_bands(table[..., None])[:, 0]
    width = ends[1] - ends[0]
    assert middle == pytest.approx(mean)
    assert (low, high) == pytest.approx(tuple(ends), abs=0.06 * width)
    pooled = nested_bands(table.reshape(1, -1, 1))[:, 0]
    assert shape[0] == 1 or pooled[2] - pooled[0] < 0.8 * width  # runs that differ widen it
