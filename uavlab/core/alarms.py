"""Alarms: figures of a run beyond a limit for some rows in a row; a pure function of the rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le


@dataclass(frozen=True)
class Alarm:
    """A limit of one figure: either ``above`` or ``below`` is set.

    Attributes:
        figure: Name in the rows of metrics, such as ``critic_loss`` or ``eval/completion``.
        above: It goes off if the figure is higher.
        below: It goes off if the figure is lower.
        rows: Rows in a row that hold the figure and are beyond a limit, with which the alarm goes off.
        stop: Whether the run then ends, as by Ctrl-C.
    """

    figure: str
    above: float | None = None
    below: float | None = None
    rows: Annotated[int, Ge(1), Le(100_000)] = 1
    stop: bool = False


def went_off(alarm: Alarm, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return why an alarm goes off with the last row; empty if it does not, or already did.

    Of several seeds the worst one counts; a figure that is not a number is beyond every limit.
    """
    if not rows or alarm.figure not in rows[-1]:
        return ""
    values = [_worst(alarm, row) for row in rows if alarm.figure in row]
    count = next((n for n, value in enumerate(reversed(values)) if not _is_beyond(alarm, value)), len(values))
    if count != alarm.rows:
        return ""
    limit = f"above {alarm.above:g}" if alarm.above is not None else f"below {alarm.below:g}"
    times = f", for {count} rows" if count > 1 else ""
    return f"{alarm.figure} is {values[-1]:.4g}, {limit}{times}"


def _worst(alarm: Alarm, row: Mapping[str, Any]) -> float:
    values = row.get("each", {}).get(alarm.figure) or [row[alarm.figure]]
    if any(math.isnan(value) for value in values):
        return math.nan
    return max(values) if alarm.above is not None else min(values)


def _is_beyond(alarm: Alarm, value: float) -> bool:
    return not (value <= alarm.above if alarm.above is not None else value >= (alarm.below or 0.0))
