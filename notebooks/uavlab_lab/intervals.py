"""Intervals of tables and figures: shares of a way, bands of curves, and profiles of scores."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from uavlab.core.statistics import DRAWS, ENDS, MEAN, Ends, Strata, method, share


def way(value: Ends, start: Ends, end: Ends) -> Ends | None:
    """Return the share of the way from ``start`` to ``end`` that ``value`` went, and the ends of its interval.

    The three are means of independent samples with their intervals. A share t is within if 0 is within the interval of
    value - (1 - t) start - t end, whose reach is the root of the sum of squared reaches. None is returned where ``end``
    may be no higher than ``start``, so that the interval would have no end.

    Source:
        Fieller 1954, "Some Problems in Interval Estimation"; Zou and Donner 2008, "Construction of Confidence Limits
        about Effect Measures: A General Approach" (intervals in place of variances).
    """
    length = end[0] - start[0]
    if length <= math.hypot(end[0] - end[1], start[2] - start[0]):
        return None
    share = (value[0] - start[0]) / length

    def within(tried: float, side: int) -> bool:
        """Return whether a share above (side 1) or below (side -1) the measured one is within."""
        distance = abs(tried - share) * length
        terms = ((1.0, value), (tried - 1, start), (-tried, end))
        sides = [(weight, mean[2] - mean[0] if weight * side > 0 else mean[0] - mean[1]) for weight, mean in terms]
        return distance <= math.hypot(*(weight * reach for weight, reach in sides))

    return share, _last_within(within, share, -1), _last_within(within, share, 1)


def _last_within(within: Callable[[float, int], bool], share: float, side: int) -> float:
    """Return the farthest share on a side that is within, by doubling and bisection."""
    near, step = share, 1.0
    while within(share + side * step, side):
        near, step = share + side * step, 2 * step
    far = share + side * step
    for _ in range(60):
        middle = (near + far) / 2
        near, far = (middle, far) if within(middle, side) else (near, middle)
    return near


def nested_bands(table: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return low end, mean and high end (3 T) of curves (runs, episodes, T), all T with the same draws.

    Runs are resampled, and in each its episodes. If a run of E episodes is drawn m times, the draw counts of its
    episodes are multinomial with m E trials, so one matrix product is enough.
    """
    runs, count, _ = table.shape
    rng = np.random.default_rng(seed)
    repeats = rng.multinomial(runs, np.full(runs, 1 / runs), DRAWS)
    weights = rng.multinomial(count * repeats, np.full(count, 1 / count)) / (runs * count)
    low, high = np.quantile(weights.reshape(DRAWS, -1) @ table.reshape(runs * count, -1), ENDS, axis=0)
    return np.stack((low, table.mean((0, 1)), high))


def profile(strata: Strata, thresholds: Sequence[float], seed: int = 0) -> Float[np.ndarray, "3 T"]:
    """Return low end, value and high end of the share of scores above each threshold, the performance profile.

    Intervals are 95 % at each threshold, by the bootstrap of ``aggregate``; where a task has fewer than ``FEW`` seeds,
    they are those of a share of independent outcomes, which is exact for one task, and wider for several.
    """
    if method(strata) == MEAN:
        counts = sum(np.greater.outer(np.asarray(scores, dtype=float), thresholds).sum(0) for scores in strata).tolist()
        ends = {count: share(count, sum(map(len, strata))) for count in set(counts)}
        value, low, high = np.array([ends[count] for count in counts]).T
        return np.stack((low, value, high))
    rng, total = np.random.default_rng(seed), sum(map(len, strata))
    above = [np.greater.outer(np.asarray(scores, dtype=float), thresholds).astype(float) for scores in strata]
    counts = [rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), DRAWS) for rows in above]
    samples = sum(count @ rows for count, rows in zip(counts, above, strict=True)) / total
    low, high = np.quantile(samples, ENDS, axis=0)
    return np.stack((low, np.concatenate(above).mean(0), high))
