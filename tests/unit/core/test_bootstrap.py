"""Intervals have the width that theory gives, and fast ones agree with those of the plain loop."""

import math

import numpy as np
import pytest

from uavlab.core.statistics import DRAWS, ENDS, beta_quantile, ends_text, interval, share, student
from uavlab_lab.intervals import nested_bands, way


def nested_interval(table: np.ndarray) -> tuple[float, float, float]:
    """Draw runs and, in each, its episodes, sample by sample: the slow twin of ``nested_bands``."""
    runs, count = table.shape
    rng, means = np.random.default_rng(0), np.empty(DRAWS)
    for i in range(DRAWS):
        rows = rng.integers(runs, size=(runs, 1))
        means[i] = table[rows, rng.integers(count, size=(runs, count))].mean()
    low, high = np.quantile(means, ENDS)
    return float(table.mean()), float(low), float(high)


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
    assert nested_interval(table[:1]) == interval(table[0])
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


def test_memory_does_not_grow_with_the_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).random(50)
    whole = interval(values)
    monkeypatch.setattr("uavlab.core.statistics.AT_ONCE", 3 * 50)
    assert interval(values) == whole


class TestStudent:
    def test_five_differences(self) -> None:
        """Mean 3, standard deviation sqrt(2.5), t of four degrees of freedom 2.7764: 3 +- 2.7764 sqrt(2.5 / 5)."""
        assert student([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((3, 1.03676, 4.96324), abs=1e-5)
        _, low, high = interval([1.0, 2.0, 3.0, 4.0, 5.0])
        assert high - low < 0.7 * 3.92648  # a percentile bootstrap of five is far too narrow

    @pytest.mark.parametrize(("count", "t"), [(2, 12.70620), (3, 4.30265), (10, 2.26216), (1001, 1.96234)])
    def test_tables_of_t(self, count: int, t: float) -> None:
        values = np.arange(count, dtype=float)
        mean, low, high = student(values)
        assert (high - low) / 2 == pytest.approx(t * values.std(ddof=1) / np.sqrt(count), rel=1e-5)
        assert (low + high) / 2 == pytest.approx(mean)

    def test_one_value_has_no_width(self) -> None:
        assert student([0.25]) == (0.25, 0.25, 0.25)


class TestWay:
    def test_symmetric_intervals_are_those_of_fieller(self) -> None:
        """The roots of (0.9 - t)^2 = 0.2^2 + (1 - t)^2 0.1^2 + t^2 0.3^2, multiplied out."""
        share, low, high = way((0.9, 0.7, 1.1), (0.0, -0.1, 0.1), (1.0, 0.7, 1.3))
        roots = np.roots([1 - 0.09 - 0.01, -1.8 + 0.02, 0.81 - 0.04 - 0.01])
        assert (low, share, high) == pytest.approx((min(roots), 0.9, max(roots)))

    def test_sides_of_intervals_count(self) -> None:
        """Below, the score counts downwards, random actions and plan, both with negative weights, upwards."""
        _, low, _ = way((0.5, 0.4, 0.9), (0.0, -0.9, 0.0), (1.0, 0.1, 1.0))
        assert low == pytest.approx(0.4)

    def test_nineteen_of_twenty_hold_the_truth(self) -> None:
        """Of five seeds, and of random actions and a plan whose errors count as much; taken as exact, they do not."""
        rng, times, whole, exact = np.random.default_rng(0), 1000, 0, 0
        for _ in range(times):
            start, end = (truth + rng.normal(0, 0.1) for truth in (0.0, 1.0))
            value = student(rng.normal(0.8, 0.15, 5))
            ends = [(mean, mean - 0.196, mean + 0.196) for mean in (start, end)]
            low, high = way(value, *ends)[1:]
            whole += low <= 0.8 <= high
            low, high = way(value, (start,) * 3, (end,) * 3)[1:]
            exact += low <= 0.8 <= high
        assert 0.94 <= whole / times <= 0.98
        assert exact / times < 0.93


class TestShare:
    @pytest.mark.parametrize(
        ("count", "total", "low", "high"),
        [(199, 200, 0.9725, 0.9999), (49, 50, 0.8935, 0.9995), (1, 2, 0.0126, 0.9874), (5, 10, 0.1871, 0.8129)],
    )
    def test_textbook(self, count: int, total: int, low: float, high: float) -> None:
        assert share(count, total) == pytest.approx((count / total, low, high), abs=6e-5)

    @pytest.mark.parametrize("total", [1, 3, 200, 100_000])
    def test_all_alike(self, total: int) -> None:
        """A share p gives n equal outcomes with chance p^n = 2.5 %."""
        least = 0.025 ** (1 / total)
        assert share(total, total) == pytest.approx((1, least, 1), abs=1e-6)
        assert share(0, total) == pytest.approx((0, 0, 1 - least), abs=1e-6)

    def test_the_ends_have_the_chances_that_define_them(self) -> None:
        """At the low end, 7 or more of 9 happen with 2.5 %; at the high end, 7 or fewer."""
        _, low, high = share(7, 9)

        def chance(p: float, counts: range) -> float:
            return sum(math.comb(9, k) * p**k * (1 - p) ** (9 - k) for k in counts)

        assert chance(low, range(7, 10)) == pytest.approx(0.025, rel=1e-5)
        assert chance(high, range(8)) == pytest.approx(0.025, rel=1e-5)

    @pytest.mark.parametrize("count", [1, 2, 30, 1_000, 100_000, 10_000_000])
    @pytest.mark.parametrize("chance", [0.025, 0.3, 0.975])
    def test_quantiles_with_a_closed_form(self, count: int, chance: float) -> None:
        """The smallest and the largest of n uniform variates, at any n; an arcsine variate."""
        smallest = -math.expm1(math.log1p(-chance) / count)
        assert beta_quantile(1, count, chance) == pytest.approx(smallest, rel=1e-7)
        assert beta_quantile(count, 1, chance) == pytest.approx(chance ** (1 / count), rel=1e-7)
        assert beta_quantile(0.5, 0.5, chance) == pytest.approx(math.sin(math.pi * chance / 2) ** 2, rel=1e-7)

    @pytest.mark.parametrize(("count", "total"), [(500, 1_000), (3, 100_000), (5_000, 100_000)])
    def test_quantiles_of_many_have_their_chance(self, count: int, total: int) -> None:
        """A beta variate with parameters k and n - k + 1 lies below p with the chance of k or more of n."""
        low = beta_quantile(count, total - count + 1, 0.025)
        logs = (math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) for k in range(count))
        less = math.fsum(
            math.exp(choose + k * math.log(low) + (total - k) * math.log1p(-low)) for k, choose in enumerate(logs)
        )
        assert 1 - less == pytest.approx(0.025, rel=1e-6)


@pytest.mark.parametrize(
    ("ends", "sign", "expected"),
    [
        ((1.0, 0.5, 1.5), "", "1.000 [0.500, 1.500]"),
        ((1.0, -0.5, 1.5), "+", "+1.000 [-0.500, +1.500]"),
        ((2.0, 2.0, 2.0), "", "2.000"),
        (None, "", "-"),
    ],
)
def test_ends_as_text(ends: tuple[float, float, float] | None, sign: str, expected: str) -> None:
    assert ends_text(ends, sign) == expected
