"""Figures over seeds and tasks equal those computed by hand, and their intervals hold what they promise."""

from itertools import product

import numpy as np
import pytest
import scipy.special
import scipy.stats
from scipy.stats import trim_mean

from uavlab.core import statistics
from uavlab.core.statistics import (
    DRAWS,
    ENDS,
    MEAN,
    MIDDLE,
    Strata,
    aggregate,
    compare,
    difference,
    interquartile_mean,
    method,
    resample,
    rescale,
    summarize,
)
from uavlab_lab.intervals import profile


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([5.0], 5.0),
        ([1.0, 3.0], 2.0),
        ([1.0, 2.0, 6.0], 3.0),  # a quarter of three is less than one
        ([100.0, 1.0, 2.0, 3.0], 2.5),  # without 1 and 100
        ([4.0, 0.0, 9.0, 2.0, 3.0], 3.0),
        ([7.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3.5),  # without 0, 1 and 6, 7
    ],
)
def test_the_middle_half_counts(scores: list[float], mean: float) -> None:
    assert float(interquartile_mean(np.array(scores))) == mean
    assert float(interquartile_mean(np.array([scores, scores]))[1]) == mean
    assert trim_mean(scores, 0.25) == pytest.approx(mean)  # by which its authors define it


def test_the_mean_is_over_all_scores_of_all_tasks() -> None:
    mean, low, high = aggregate([[1.0, 3.0], [100.0, 2.0]])
    assert mean == 2.5
    assert low < mean < high


def exact(strata: Strata, statistic=np.mean) -> dict[float, float]:
    """Return the chance of each value in a stratified bootstrap, from all samples."""
    samples = [
        statistic(np.concatenate(each))
        for each in product(*(product(own, repeat=len(own)) for own in map(list, strata)))
    ]
    values, counts = np.unique(samples, return_counts=True)
    return dict(zip(values.tolist(), (counts / counts.sum()).tolist(), strict=True))


def drawn(strata: Strata, statistic=np.mean) -> dict[float, float]:
    samples = np.concatenate([statistic(rows, axis=1) for rows in resample(strata)])
    values, counts = np.unique(samples, return_counts=True)
    assert counts.sum() == DRAWS
    return dict(zip(values.tolist(), (counts / counts.sum()).tolist(), strict=True))


def pooled(strata: Strata, seed: int = 0):
    """Broken: seeds are drawn from all tasks together."""
    return resample([[score for own in strata for score in own]], seed)


def close(one: dict[float, float], other: dict[float, float]) -> bool:
    return one.keys() <= other.keys() and all(abs(one.get(value, 0) - p) < 0.05 for value, p in other.items())


STRATA = [[0.0, 1.0], [4.0, 8.0]]


def test_samples_have_the_chances_of_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exact(STRATA)[2.0] == 1 / 16  # 0, 0, 4, 4
    assert close(drawn(STRATA), exact(STRATA))
    monkeypatch.setattr(statistics, "AT_ONCE", 4 * 7)  # in many blocks
    assert close(drawn(STRATA), exact(STRATA))


def test_samples_across_tasks_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert aggregate([[0.0, 0.0], [10.0, 10.0]], lambda rows: rows.mean(-1)) == (5.0, 5.0, 5.0)
    monkeypatch.setattr(statistics, "resample", pooled)
    assert aggregate([[0.0, 0.0], [10.0, 10.0]], lambda rows: rows.mean(-1)) != (5.0, 5.0, 5.0)


def test_the_ends_are_those_of_all_samples() -> None:
    chances = exact(STRATA)  # each end has a chance of 1 / 16, more than 2.5 %
    assert aggregate(STRATA, lambda rows: rows.mean(-1)) == (3.25, min(chances), max(chances))


def test_figures_are_those_of_the_library_of_the_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rliable 1.2.0 with 20,000 samples; here 2,000 are drawn."""
    scores, thresholds = np.random.default_rng(0).random((2, 6)).tolist(), [0.0, 0.25, 0.5, 0.75, 1.0]
    monkeypatch.setattr(statistics, "FEW", 6)
    mean, *ends = summarize(scores)
    assert mean == pytest.approx(0.59996266)
    assert ends == pytest.approx([0.26358882, 0.78663734], abs=0.01)
    low, share, high = profile(scores, thresholds)
    assert share == pytest.approx([1, 0.75, 0.66666667, 0.33333333, 0])
    assert low == pytest.approx([1, 0.5, 0.41666667, 0.08333333, 0])
    assert high == pytest.approx([1, 1, 0.91666667, 0.58333333, 0], abs=1 / 12 + 1e-6)  # one score of 12


def test_figures_do_not_depend_on_the_version() -> None:
    scores = np.random.default_rng(0).random((2, 6)).tolist()
    assert aggregate(scores) == pytest.approx((0.5999626614170331, 0.2645443285445153, 0.7862067847686011))
    assert aggregate(scores, seed=1) != aggregate(scores)


def coverage(draw, truth: float, times: int = 300) -> float:
    rng = np.random.default_rng(3)
    ends = [aggregate(draw(rng))[1:] for _ in range(times)]
    return sum(low <= truth <= high for low, high in ends) / times


def test_nineteen_of_twenty_intervals_hold_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two tasks with ten seeds each; the percentile bootstrap is known to be a little too narrow."""
    monkeypatch.setattr(statistics, "DRAWS", 400)

    def draw(rng: np.random.Generator) -> list[list[float]]:
        return [rng.normal(-1, 1, 10).tolist(), rng.normal(1, 1, 10).tolist()]

    assert 0.88 <= coverage(draw, 0.0) <= 0.985
    monkeypatch.setattr(statistics, "ENDS", (0.25, 0.75))
    assert coverage(draw, 0.0) < 0.7


def test_few_scores_have_intervals_that_are_too_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "DRAWS", 400)
    assert coverage(lambda rng: [rng.normal(0, 1, 3).tolist()], 0.0) < 0.88


def test_a_difference_is_of_independent_scores() -> None:
    mean, low, high = difference([[1.0, 1.0]], [[0.0, 4.0]])
    assert (mean, low, high) == (-1.0, -3.0, 1.0)  # of 0, 2 and 4, each end with a chance of a quarter
    assert difference([[2.0]], [[0.5]]) == (1.5, 1.5, 1.5)


PROFILED = [[0.2, 0.6], [0.4, 0.8]]


def test_a_profile_is_the_share_above_each_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "FEW", 2)
    low, share, high = profile(PROFILED, [0.0, 0.5, 0.6, 0.8])
    assert share.tolist() == [1.0, 0.5, 0.25, 0.0]  # a score is not above itself
    assert (low.tolist(), high.tolist()) == ([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.5, 0.0])


def test_a_profile_agrees_with_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "FEW", 5)
    rng, thresholds = np.random.default_rng(1), [0.1, 0.3, 0.5, 0.9]
    strata = [rng.random(8).tolist(), rng.random(5).tolist()]
    samples = np.array([[(row > t).mean() for t in thresholds] for rows in resample(strata) for row in rows])
    low, share, high = profile(strata, thresholds)
    every = np.array([score for own in strata for score in own])
    assert share.tolist() == [(every > t).mean() for t in thresholds]
    assert np.abs(np.quantile(samples, ENDS, axis=0) - (low, high)).max() <= 1 / 13 + 1e-9  # one score of 13


def test_a_profile_of_few_seeds_has_exact_intervals() -> None:
    """Of 4 of 4, 2 of 4 and 0 of 4: the ends of Clopper and Pearson, such as 0.025 ** (1 / 4)."""
    low, share, high = profile(PROFILED, [0.0, 0.5, 0.8])
    assert share.tolist() == [1.0, 0.5, 0.0]
    assert low == pytest.approx([0.3976, 0.0676, 0.0], abs=1e-4)
    assert high == pytest.approx([1.0, 0.9324, 0.6024], abs=1e-4)


def test_few_seeds_are_summarized_by_their_mean() -> None:
    """Of 1, 2, 3, 6: mean 3, variance 14 / 3, t of three degrees of freedom 3.18245."""
    few, many = [[1.0, 2.0, 3.0, 6.0]], [[*map(float, range(10))]]
    assert (method(few), method(many), method(many, few), method([many[0], few[0]])) == (MEAN, MIDDLE, MEAN, MEAN)
    reach = 3.18245 * (14 / 12) ** 0.5
    assert summarize(few) == pytest.approx((3.0, 3 - reach, 3 + reach), abs=1e-5)
    assert summarize(many) == aggregate(many)
    assert compare(many, many) == difference(many, many)
    assert summarize([[1.0, 3.0], [5.0]]) == (3.0, 3.0, 3.0)  # a variance is not known


def test_tasks_and_settings_have_a_variance_of_their_own() -> None:
    """Means 1.5 and 13, variances 3 and 12 of four values each: by Welch, as in scipy."""
    one, other = [0.0, 0.0, 3.0, 3.0], [10.0, 10.0, 16.0, 16.0]
    parts = 3 / 4, 12 / 4
    free = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 3)
    reach = float(scipy.stats.t.ppf(0.975, free)) * sum(parts) ** 0.5
    assert compare([other], [one]) == pytest.approx((11.5, 11.5 - reach, 11.5 + reach), rel=1e-6)
    assert compare([other], [one])[1:] == pytest.approx(
        scipy.stats.ttest_ind(other, one, equal_var=False).confidence_interval(0.95), rel=1e-6
    )
    assert summarize([one, other]) == pytest.approx((7.25, 7.25 - reach / 2, 7.25 + reach / 2), rel=1e-6)
    assert summarize([[1.0, 1.0], [2.0, 2.0]]) == (1.5, 1.5, 1.5)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_nineteen_of_twenty_intervals_of_few_seeds_hold_the_truth(seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a mean and of a difference of equal settings, which a bootstrap of three called different in 19 % of cases."""
    quantile = scipy.special.betaincinv  # as ``beta_quantile``, but fast for ever new degrees of freedom
    monkeypatch.setattr(statistics, "beta_quantile", lambda a, b, chance: float(quantile(a, b, chance)))
    rng, times = np.random.default_rng(seeds), 1000
    draws = rng.normal(0, 1, (times, 2, seeds)).tolist()
    assert 0.93 <= sum(low <= 0 <= high for _, low, high in (summarize([one]) for one, _ in draws)) / times <= 0.97
    apart = [compare([one], [other]) for one, other in draws]
    assert sum(low <= 0 <= high for _, low, high in apart) / times >= 0.94  # Welch's may be a little too wide


def test_a_scale_maps_its_ends_to_0_and_1() -> None:
    assert rescale([2.0, 4.0, 8.0], 2.0, 6.0) == [0.0, 0.5, 1.5]
    assert rescale([3.0, 3.0], 3.0, 3.0) == [1.0, 1.0]
