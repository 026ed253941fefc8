"""Alarms go off once for each time that a figure stays beyond its limit."""

import math
from typing import Any

import pytest

from uavlab.core.alarms import Alarm, went_off


def texts(alarm: Alarm, values: list[Any]) -> list[str]:
    """Return what the alarm says after each row; None stands for a row without the figure."""
    rows: list[dict[str, Any]] = []
    result = []
    for value in values:
        rows.append({"update": len(rows)} if value is None else {"update": len(rows), "loss": value})
        result.append(went_off(alarm, rows))
    return result


def test_it_goes_off_once_after_some_rows_in_a_row() -> None:
    alarm = Alarm("loss", above=2.0, rows=2)
    lines = texts(alarm, [1.0, 3.0, 2.5, 4.0, 1.0, 3.0, None, 5.0, 6.0])
    assert [bool(text) for text in lines] == [False, False, True, False, False, False, False, True, False]
    assert lines[2] == "loss is 2.5, above 2, for 2 rows"


@pytest.mark.parametrize(("value", "off"), [(0.1, True), (0.2, False), (math.nan, True), (math.inf, False)])
def test_limits_from_below(value: float, off: bool) -> None:
    assert bool(texts(Alarm("loss", below=0.2), [value])[0]) is off


def test_a_limit_of_zero_is_a_limit() -> None:
    assert texts(Alarm("loss", below=0.0), [-0.1])[0] == "loss is -0.1, below 0"
    assert texts(Alarm("loss", above=0.0), [0.1])[0] == "loss is 0.1, above 0"


def test_the_worst_seed_counts() -> None:
    row = {"update": 1, "loss": 1.0, "each": {"loss": [0.5, 1.5]}}
    assert went_off(Alarm("loss", above=1.2), [row]) == "loss is 1.5, above 1.2"
    assert went_off(Alarm("loss", below=0.6), [row]) == "loss is 0.5, below 0.6"
    row["each"] = {"loss": [0.5, math.nan]}
    assert went_off(Alarm("loss", above=1.2), [row]).startswith("loss is nan")


def test_a_figure_that_is_never_logged() -> None:
    assert texts(Alarm("other", above=1.0), [1.0, 2.0]) == ["", ""]
    assert went_off(Alarm("loss", above=1.0), []) == ""
