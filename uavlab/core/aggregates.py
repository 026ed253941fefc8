"""Scores of several seeds on several tasks as one: means, profiles, and their 95 % intervals.

Scores come as strata, one for each task, with a score for each seed. They must be on one scale (``rescale``). Ten seeds
of each task and more have their interquartile mean with a stratified bootstrap, fewer their plain mean with Student's
interval.

Source:
    Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice", sections 4.1 to 4.3.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float

from uavlab.core.bootstrap import AT_ONCE, DRAWS, ENDS, Ends, share, weighted

FEW = 10  # seeds of a task: of fewer, a bootstrap over seeds is too narrow (of 3, about 74 % hold the truth)
MEAN, MIDDLE = "mean, Student", "interquartile mean, bootstrap"
Strata = Sequence[Sequence[float]]
Statistic = Callable[[np.ndarray], np.ndarray]
"""A function of scores (... N) that returns a number for each row (...)."""


def interquartile_mean(scores: Float[np.ndarray, "... N"]) -> Float[np.ndarray, "..."]:
    """Return the mean without the lowest and the highest quarter of the scores, each rounded down: of 7, one each."""
    count = scores.shape[-1]
    return np.sort(scores, axis=-1)[..., count // 4 : count - count // 4].mean(-1)


def method(*several: Strata) -> str:
    """Return by what scores are summarized: ``MIDDLE`` where every task has at least ``FEW`` seeds, else ``MEAN``."""
    return MIDDLE if all(len(scores) >= FEW for strata in several for scores in strata) else MEAN


def summarize(strata: Strata) -> Ends:
    """Return the mean or the interquartile mean of all scores, as ``method`` says, and the ends of its 95 % interval.

    A mean has Student's interval, with a variance for each task.
    """
    return aggregate(strata) if method(strata) == MIDDLE else weighted(_means(strata))


def compare(one: Strata, other: Strata) -> Ends:
    """Return how much higher ``one`` is than ``other``, which are independent, by the ``method`` of both."""
    if method(one, other) == MIDDLE:
        return difference(one, other)
    return weighted([*_means(one), *((-weight, scores) for weight, scores in _means(other))])


def _means(strata: Strata) -> list[tuple[float, Sequence[float]]]:
    total = sum(map(len, strata))
    return [(len(scores) / total, scores) for scores in strata]


def aggregate(strata: Strata, statistic: Statistic = interquartile_mean, seed: int = 0) -> Ends:
    """Return a statistic of all scores, and the ends of its 95 % interval by a stratified percentile bootstrap.

    Each sample draws as many seeds of each task as there are, with replacement. Of fewer than about ten scores in all
    the interval is too narrow, and a single score has none.
    """
    samples = np.concatenate([statistic(rows) for rows in resample(strata, seed)])
    return _ends(float(statistic(_all(strata))), samples)


def difference(one: Strata, other: Strata, statistic: Statistic = interquartile_mean, seed: int = 0) -> Ends:
    """Return how much higher a statistic is of ``one`` than of ``other``, which are independent; as ``aggregate``."""
    first, second = (
        np.concatenate([statistic(rows) for rows in resample(strata, number)])
        for number, strata in ((2 * seed, one), (2 * seed + 1, other))
    )
    return _ends(float(statistic(_all(one)) - statistic(_all(other))), first - second)


def profile(strata: Strata, thresholds: Sequence[float], seed: int = 0) -> Float[np.ndarray, "3 T"]:
    """Return low end, value and high end of the share of scores above each threshold, the performance profile.

    Intervals are 95 % at each threshold, by the bootstrap of ``aggregate``; where a task has fewer than ``FEW`` seeds,
    they are those of a share of independent outcomes, which is exact for one task, and wider for several.
    """
    if method(strata) == MEAN:
        counts = np.greater.outer(_all(strata), thresholds).sum(0).tolist()
        ends = {count: share(count, sum(map(len, strata))) for count in set(counts)}
        value, low, high = np.array([ends[count] for count in counts]).T
        return np.stack((low, value, high))
    rng, total = np.random.default_rng(seed), sum(map(len, strata))
    above = [np.greater.outer(np.asarray(scores, dtype=float), thresholds).astype(float) for scores in strata]
    counts = [rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), DRAWS) for rows in above]
    samples = sum(count @ rows for count, rows in zip(counts, above, strict=True)) / total
    low, high = np.quantile(samples, ENDS, axis=0)
    return np.stack((low, np.concatenate(above).mean(0), high))


def resample(strata: Strata, seed: int = 0) -> Iterator[Float[np.ndarray, "D N"]]:
    """Yield ``DRAWS`` bootstrap samples of all scores in a few blocks: seeds are drawn within their task alone."""
    rng, size = np.random.default_rng(seed), sum(map(len, strata))
    rows = max(1, AT_ONCE // size)
    for begun in range(0, DRAWS, rows):
        count = min(rows, DRAWS - begun)
        yield np.concatenate([rng.choice(np.asarray(each, float), (count, len(each))) for each in strata], axis=1)


def rescale(scores: Sequence[float], low: float, high: float) -> list[float]:
    """Return scores on the scale where ``low`` is 0 and ``high`` is 1; all are 1 where both are equal."""
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]


def _all(strata: Strata) -> Float[np.ndarray, " N"]:
    return np.concatenate([np.asarray(scores, dtype=float) for scores in strata])


def _ends(value: float, samples: Float[np.ndarray, " D"]) -> Ends:
    low, high = np.quantile(samples, ENDS)
    return value, float(low), float(high)
