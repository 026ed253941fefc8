"""Bootstrap intervals: the 95 % percentile interval of an estimate; the same seed gives the same interval.

Source:
    Davison and Hinkley 1997, "Bootstrap Methods and their Application": chapter 5 (percentile intervals) and section
    3.8 (resampling at both levels).
"""

from collections.abc import Callable, Sequence

import numpy as np

DRAWS = 2000  # bootstrap samples of an interval
ENDS = (0.025, 0.975)


def interval(
    values: Sequence[float] | np.ndarray, statistic: Callable[..., np.ndarray] = np.mean
) -> tuple[float, float, float]:
    """Return a statistic of ``values``, and the low and high end of its interval."""
    each = np.asarray(values, dtype=float)
    samples = np.random.default_rng(0).choice(each, (DRAWS, len(each)))
    low, high = np.quantile(statistic(samples, axis=1), ENDS)
    return float(statistic(each)), float(low), float(high)


def nested_interval(table: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """Return mean, low and high end of a table (runs, episodes), resampling runs and, in each, its episodes."""
    runs, count = table.shape
    rng = np.random.default_rng(seed)
    means = np.empty(DRAWS)
    for i in range(DRAWS):
        rows = rng.integers(runs, size=(runs, 1))
        means[i] = table[rows, rng.integers(count, size=(runs, count))].mean()
    low, high = np.quantile(means, ENDS)
    return float(table.mean()), float(low), float(high)


def nested_bands(table: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return low end, mean and high end (3 T) of curves (runs, episodes, T), all T with the same draws.

    The distribution is that of ``nested_interval``, computed by one matrix product: if a run of E episodes is drawn m
    times, the draw counts of its episodes are multinomial with m E trials.
    """
    runs, count, _ = table.shape
    rng = np.random.default_rng(seed)
    repeats = rng.multinomial(runs, np.full(runs, 1 / runs), DRAWS)
    weights = rng.multinomial(count * repeats, np.full(count, 1 / count)) / (runs * count)
    low, high = np.quantile(weights.reshape(DRAWS, -1) @ table.reshape(runs * count, -1), ENDS, axis=0)
    return np.stack((low, table.mean((0, 1)), high))
