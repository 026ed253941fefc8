"""Alarms: figures of a run beyond a limit for some rows in a row; a pure function of the rows.

A limit is a number, or relative to the rows before: a robust z-score. The rows before exclude those that are judged,
which would hide what they show, and those of former stages of a curriculum, where figures differ for good reason.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

MEDIAN_OF_NORMAL = 0.6745  # the median distance from the median, in standard deviations
FEWEST = 10  # rows before, without which there is no relative limit
SMALLEST = 0.01  # of the median: the least deviation, for figures that hardly varied
LIMITS = ("above", "below", "rise", "fall")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Alarm:
    """A limit of one figure: one of ``above``, ``below``, ``rise`` and ``fall`` is set.

    Attributes:
        figure: Name in the rows of metrics, such as ``critic_loss`` or ``eval/completion``.
        above: It goes off if the figure is higher.
        below: It goes off if the figure is lower.
        rise: It goes off if the figure is more than so many robust deviations above the median of the rows before.
        fall: It goes off if it is more than so many below.
        rows: Rows in a row that hold the figure and are beyond a limit, with which the alarm goes off.
        window: Most rows before them with which ``rise`` and ``fall`` compare; fewer than 10 are not compared.
        stop: Whether the run then ends, as by Ctrl-C.
    """

    figure: str
    above: float | None = None
    below: float | None = None
    rise: Annotated[float, Gt(0), Le(1e6)] | None = None
    fall: Annotated[float, Gt(0), Le(1e6)] | None = None
    rows: Annotated[int, Ge(1), Le(100_000)] = 1
    window: Annotated[int, Ge(FEWEST), Le(100_000)] = 50
    stop: bool = False


def went_off(alarm: Alarm, rows: Sequence[Row], since: Sequence[int] = ()) -> str:
    """Return why an alarm goes off with the last row; empty if it does not, or already did.

    Each of several seeds is judged by its own figures; a figure that is not a number is beyond every limit. ``since``
    holds the update at which each seed came to its stage; ``rise`` and ``fall`` compare with no row up to then.
    """
    if not rows or alarm.figure not in rows[-1]:
        return ""
    rows = [row for row in rows if alarm.figure in row]
    relative, seeds = alarm.rise is not None or alarm.fall is not None, len(_each(alarm, rows[-1]))
    for seed in range(seeds):
        start = since[seed] if seed < len(since) else 0
        each = [_each(alarm, row) for row in rows if not relative or row["update"] > start]
        values = [figures[min(seed, len(figures) - 1)] for figures in each]
        judge = _is_moved if relative else _is_beyond
        if judge(alarm, values) and not judge(alarm, values[:-1]):
            where = f" (seed {seed + 1} of {seeds})" if seeds > 1 else ""
            times = f", for {alarm.rows} rows" if alarm.rows > 1 else ""
            return f"{alarm.figure} is {values[-1]:.4g}{where}, {_limit(alarm, values)}{times}"
    return ""


def deviations(value: float, before: Sequence[float]) -> float:
    """Return the robust z-score of a value: its distance from the median of others, in robust standard deviations.

    A deviation is the median distance from the median over 0.6745, and at least 1 % of the median. Where that is 0,
    so is the score. Only finite values count.

    Source:
        Iglewicz and Hoaglin 1993, "How to Detect and Handle Outliers".

    >>> deviations(9.0, [1.0, 2.0, 3.0, 4.0, 5.0])
    4.047
    """
    finite = [each for each in before if math.isfinite(each)]
    middle = median(finite)
    spread = max(median(abs(each - middle) for each in finite), SMALLEST * abs(middle))
    return MEDIAN_OF_NORMAL * (value - middle) / spread if spread else 0.0


def _is_moved(alarm: Alarm, values: Sequence[float]) -> bool:
    recent, before = values[-alarm.rows :], values[: -alarm.rows][-alarm.window :]
    if sum(map(math.isfinite, before)) < FEWEST:
        return False
    scores = [deviations(value, before) for value in recent]
    limit, sign = (alarm.rise, 1) if alarm.rise is not None else (alarm.fall or 0.0, -1)
    return not any(sign * score <= limit for score in scores)  # what is not a number is beyond


def _each(alarm: Alarm, row: Row) -> Sequence[float]:
    return row.get("each", {}).get(alarm.figure) or [row[alarm.figure]]


def _is_beyond(alarm: Alarm, values: Sequence[float]) -> bool:
    recent = values[-alarm.rows :]
    if len(recent) < alarm.rows:
        return False
    if alarm.above is not None:
        return not any(value <= alarm.above for value in recent)
    return not any(value >= (alarm.below or 0.0) for value in recent)


def _limit(alarm: Alarm, values: Sequence[float]) -> str:
    """Return in words what the last value is beyond."""
    if alarm.above is not None or alarm.below is not None:
        return f"above {alarm.above:g}" if alarm.above is not None else f"below {alarm.below:g}"
    before = values[: -alarm.rows][-alarm.window :]
    how = f"{abs(deviations(values[-1], before)):.3g} deviations {'above' if alarm.rise else 'below'}"
    return f"{how} the {len(before)} rows before"
