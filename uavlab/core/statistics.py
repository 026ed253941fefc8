"""Means and their 95 % intervals: by bootstrap, Student's t, or exact ones of shares; and several tasks as one.

Equal values give equal intervals. Scores of several seeds on several tasks come as strata, one for each task, with a
score for each seed. They must be on one scale (``rescale``). Ten seeds of each task and more have their interquartile
mean with a stratified bootstrap, fewer their plain mean with Student's interval.

Source:
    Davison and Hinkley 1997, "Bootstrap Methods and their Application": chapter 5 (percentile intervals) and section
    3.8 (resampling at both levels); Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
    Precipice", sections 4.1 to 4.3 (several tasks).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from jaxtyping import Float

DRAWS = 2000  # bootstrap samples of an interval
ENDS = (0.025, 0.975)
AT_ONCE = 2**20  # values in memory of bootstrap samples
ANGLES = 100_000  # steps of the integrals below: relative errors of quantiles of up to 1e9 outcomes stay under 1e-7

FEW = 10  # seeds of a task: of fewer, a bootstrap over seeds is too narrow (of 3, about 74 % hold the truth)
MEAN, MIDDLE = "mean, Student", "interquartile mean, bootstrap"
Strata = Sequence[Sequence[float] | np.ndarray]
Statistic = Callable[[np.ndarray], np.ndarray]
"""A function of scores (... N) that returns a number for each row (...)."""

Ends = tuple[float, float, float]


def interval(values: Sequence[float] | np.ndarray, statistic: Callable[..., np.ndarray] = np.mean) -> Ends:
    """Return a statistic of independent ``values`` and its bootstrap interval, too narrow of fewer than about ten."""
    return aggregate([values], partial(statistic, axis=-1))


def student(values: Sequence[float] | np.ndarray) -> Ends:
    """Return the mean of a few independent ``values``, and the ends of its interval; one value has no width.

    Source:
        Student 1908, "The Probable Error of a Mean".
    """
    return weighted([(1.0, values)])


def weighted(samples: Sequence[tuple[float, Sequence[float] | np.ndarray]]) -> Ends:
    """Return the sum of weight times mean over independent samples, and the ends of its interval.

    Variances of samples may differ. Where a sample has one value its variance is not known, and there is no width.

    Source:
        Welch 1938, "The Significance of the Difference Between Two Means when the Population Variances are Unequal";
        Satterthwaite 1946, "An Approximate Distribution of Estimates of Variance Components".
    """
    mean = float(sum(weight * np.mean(values) for weight, values in samples))
    known = all(len(values) > 1 for _, values in samples)
    parts = [weight**2 * np.var(values, ddof=1) / len(values) for weight, values in samples if known]
    if not (variance := sum(parts)):
        return mean, mean, mean
    free = variance**2 / sum(part**2 / (len(values) - 1) for part, (_, values) in zip(parts, samples, strict=True))
    part = beta_quantile(0.5, round(float(free), 9) / 2, 0.95)  # t^2 / (free + t^2) is distributed so
    reach = math.sqrt(free * part / (1 - part) * variance)
    return mean, mean - reach, mean + reach


def of_runs(figures: Float[np.ndarray, "R E"]) -> Ends:
    """Return the mean of figures by run and episode, and its interval over runs, or over the episodes of one run."""
    return student(figures.mean(1)) if len(figures) > 1 else interval(figures[0])


def share(count: int, total: int) -> Ends:
    """Return the share of ``count`` among ``total`` outcomes, and the ends of its exact interval.

    Source:
        Clopper and Pearson 1934, "The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial".
    """
    low = beta_quantile(count, total - count + 1, ENDS[0]) if count else 0.0
    high = beta_quantile(count + 1, total - count, ENDS[1]) if count < total else 1.0
    return count / total, low, high


def ends_text(ends: Ends | None, sign: str = "") -> str:
    """Return ``mean [low, high]``, the mean alone where it has no width, a dash for None; ``sign`` may be ``+``."""
    if ends is None:
        return "-"
    mean, low, high = (f"{end:{sign}.3f}" for end in ends)
    return mean if low == high else f"{mean} [{low}, {high}]"


def named(ends: Ends | None) -> dict[str, Any]:
    """Return a mean and the ends of its interval by name; all are None without them."""
    return dict(zip(("mean", "low", "high"), ends or (None, None, None), strict=True))


def named_text(figure: Mapping[str, float]) -> str:
    return "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**figure)


@lru_cache
def beta_quantile(a: float, b: float, chance: float) -> float:
    """Return the value below which a beta variate with parameters ``a, b`` of at least 1/2 lies with this chance.

    The density is integrated over the angle whose squared sine is the variate, where it has no pole: first over all
    angles, then over those that hold all but 2e-12 of the mass, which are few if the parameters are large.
    """
    least, most = 0.0, math.pi / 2
    for _ in range(2):
        width = (most - least) / ANGLES
        edge = np.linspace(least, most, ANGLES + 1)
        angle = edge[1:] - width / 2
        density = (2 * a - 1) * np.log(np.sin(angle)) + (2 * b - 1) * np.log(np.cos(angle))
        mass = np.exp(density - density.max()).cumsum()
        mass = np.concatenate([[0.0], mass / mass[-1]])
        first, last = np.searchsorted(mass, (1e-12, 1 - 1e-12))
        least, most = edge[max(first - 1, 0)], edge[last]
    return float(np.sin(np.interp(chance, mass, edge)) ** 2)


def interquartile_mean(scores: Float[np.ndarray, "... N"]) -> Float[np.ndarray, "..."]:
    """Return the mean without the lowest and the highest quarter of the scores, each rounded down: of 7, one each."""
    count = scores.shape[-1]
    return np.sort(scores, axis=-1)[..., count // 4 : count - count // 4].mean(-1)


def method(*several: Strata) -> str:
    """Return by what scores are summarized: ``MIDDLE`` where every task has at least ``FEW`` seeds, else ``MEAN``."""
    return MIDDLE if all(len(scores) >= FEW for strata in several for scores in strata) else MEAN


def summarize(strata: Strata) -> Ends:
    """Return the mean or interquartile mean of all scores, as ``method`` says, and the ends of its 95 % interval."""
    return aggregate(strata) if method(strata) == MIDDLE else weighted(_means(strata))


def compare(one: Strata, other: Strata) -> Ends:
    """Return how much higher ``one`` is than ``other``, which are independent, by the ``method`` of both."""
    if method(one, other) == MIDDLE:
        return difference(one, other)
    return weighted([*_means(one), *((-weight, scores) for weight, scores in _means(other))])


def _means(strata: Strata) -> list[tuple[float, Sequence[float] | np.ndarray]]:
    total = sum(map(len, strata))
    return [(len(scores) / total, scores) for scores in strata]


def aggregate(strata: Strata, statistic: Statistic = interquartile_mean, seed: int = 0) -> Ends:
    """Return a statistic of all scores, and the ends of its 95 % interval by a stratified percentile bootstrap."""
    samples = np.concatenate([statistic(rows) for rows in resample(strata, seed)])
    return _ends(float(statistic(_all(strata))), samples)


def difference(one: Strata, other: Strata, statistic: Statistic = interquartile_mean, seed: int = 0) -> Ends:
    """Return how much higher a statistic is of ``one`` than of ``other``, which are independent; as ``aggregate``."""
    first, second = (
        np.concatenate([statistic(rows) for rows in resample(strata, number)])
        for number, strata in ((2 * seed, one), (2 * seed + 1, other))
    )
    return _ends(float(statistic(_all(one)) - statistic(_all(other))), first - second)


def resample(strata: Strata, seed: int = 0) -> Iterator[Float[np.ndarray, "D N"]]:
    """Yield ``DRAWS`` bootstrap samples of all scores in a few blocks: seeds are drawn within their task alone."""
    rng, size = np.random.default_rng(seed), sum(map(len, strata))
    rows = max(1, AT_ONCE // size)
    for begun in range(0, DRAWS, rows):
        count = min(rows, DRAWS - begun)
        yield np.concatenate([rng.choice(np.asarray(scores, float), (count, len(scores))) for scores in strata], axis=1)


def rescale(scores: Sequence[float], low: float, high: float) -> list[float]:
    """Return scores on the scale where ``low`` is 0 and ``high`` is 1; all are 1 where both are equal."""
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]


def _all(strata: Strata) -> Float[np.ndarray, " N"]:
    return np.concatenate([np.asarray(scores, dtype=float) for scores in strata])


def _ends(value: float, samples: Float[np.ndarray, " D"]) -> Ends:
    low, high = np.quantile(samples, ENDS)
    return value, float(low), float(high)
