"""Alarms go off once for each time that a figure stays beyond its limit, which may be relative to the rows before."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from uavlab.experiment import diagnostics
from uavlab.experiment.diagnostics import Alarm, deviations, went_off


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


def seeds_of(*each: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"update": n, "loss": sum(pair) / 2, "each": {"loss": list(pair)}} for n, pair in enumerate(each, 1)]


def test_any_seed_counts() -> None:
    rows = seeds_of((0.5, 1.5))
    assert went_off(Alarm("loss", above=1.2), rows) == "loss is 1.5 (seed 2 of 2), above 1.2"
    assert went_off(Alarm("loss", below=0.6), rows) == "loss is 0.5 (seed 1 of 2), below 0.6"
    assert went_off(Alarm("loss", above=1.2), seeds_of((0.5, math.nan))).startswith("loss is nan")


def test_each_seed_is_judged_by_its_own_rows() -> None:
    """Two seeds that are beyond a limit one after the other are not one that stays there, and hide no other."""
    rows = seeds_of((2.0, 0.0), (0.0, 2.0))
    assert went_off(Alarm("loss", above=1.0, rows=2), rows) == ""
    rows = seeds_of((2.0, 0.0), (2.0, 2.0))
    assert went_off(Alarm("loss", above=1.0), rows) == "loss is 2 (seed 2 of 2), above 1"


def test_a_figure_that_is_never_logged() -> None:
    assert texts(Alarm("other", above=1.0), [1.0, 2.0]) == ["", ""]
    assert went_off(Alarm("loss", above=1.0), []) == ""


# ---- limits relative to the rows before ----

HEALTHY = [random.Random(update).lognormvariate(0, 0.3) for update in range(60)]  # a loss of about 1
EXPLODING = [*HEALTHY, *(2.0**power for power in range(1, 12))]
MONITOR = Alarm("loss", rise=10.0, rows=3)


def offs(alarm: Alarm, values: Sequence[Any], since: int = 0) -> list[int]:
    """Return the numbers of the rows, from 1, with which the alarm goes off."""
    rows = [{"update": number, "loss": value} for number, value in enumerate(values, 1)]
    return [number for number in range(1, len(rows) + 1) if went_off(alarm, rows[:number], [since])]


def test_deviations_by_hand() -> None:
    before = [1.0, 2.0, 3.0, 4.0, 100.0]  # median 3, distances 2, 1, 0, 1, 97: median 1
    assert deviations(5.0, before) == pytest.approx(2 * 0.6745)
    assert deviations(1.0, [*before, math.nan, math.inf]) == pytest.approx(-2 * 0.6745)
    assert deviations(2.1, [2.0] * 5) == pytest.approx(0.6745 * 0.1 / 0.02)  # 1 % of the median
    assert deviations(5.0, [0.0] * 5) == 0.0


def test_an_exploding_loss_is_noticed_once() -> None:
    assert offs(MONITOR, EXPLODING) == [64]  # of 2, 4, 8, 16: the last three are far off
    rows = [{"update": number, "loss": value} for number, value in enumerate(EXPLODING[:64], 1)]
    text = went_off(MONITOR, rows)
    assert text.startswith("loss is 16, ")
    assert text.endswith(" deviations above the 50 rows before, for 3 rows")


def test_a_score_that_falls() -> None:
    values = [0.8 + 0.01 * (-1) ** n for n in range(20)] + [0.2, 0.2]
    assert offs(Alarm("loss", fall=5.0), values) == [21]
    assert offs(Alarm("loss", rise=5.0), values) == []


def test_single_rows_that_are_far_off_are_healthy() -> None:
    spikes = [1000.0 if number % 7 == 0 else value for number, value in enumerate(HEALTHY, 1)]
    assert offs(MONITOR, spikes) == []
    assert offs(Alarm("loss", rise=10.0), spikes) != []


def test_a_new_stage_starts_anew() -> None:
    """Figures of another stage are other figures: they are no sign of instability."""
    stages = [*HEALTHY[:30], *(20 * value for value in HEALTHY[30:])]
    assert offs(MONITOR, stages, since=30) == []
    assert offs(MONITOR, stages) == [33]  # without the stage, it would go off
    assert offs(MONITOR, [*stages, 500.0, 500.0, 500.0], since=30) == [63]  # and is watched within the stage


def test_each_seed_has_its_own_rows_and_stage() -> None:
    rows: list[dict[str, Any]] = [
        {"update": n, "loss": 1.0, "each": {"loss": [one, 20 * one if n > 30 else one]}}
        for n, one in enumerate(HEALTHY, 1)
    ]
    texts = [went_off(MONITOR, rows[:number], [0, 0]) for number in range(1, 61)]
    assert [number for number, text in enumerate(texts, 1) if text] == [33]
    assert "(seed 2 of 2)" in texts[32]
    assert not any(went_off(MONITOR, rows[:number], [0, 30]) for number in range(1, 61))


def test_few_rows_are_not_compared() -> None:
    assert offs(Alarm("loss", rise=3.0), [*HEALTHY[:9], 1e9]) == []
    assert offs(Alarm("loss", rise=3.0), [*HEALTHY[:10], 1e9]) == [11]


def test_what_is_not_a_number_is_beyond() -> None:
    assert offs(Alarm("loss", fall=3.0), [*HEALTHY[:20], math.nan]) == [21]


def test_rows_that_are_judged_would_hide_what_they_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken variant of the published check: the recent rows are part of those that they are compared with."""
    values, alarm = [*HEALTHY[:10], *[50.0] * 12], Alarm("loss", rise=10.0, rows=10)
    assert offs(alarm, values) == [20]

    def is_beyond(alarm: Alarm, values: Sequence[float]) -> bool:
        return len(values) >= 20 and all(deviations(each, values) > 10 for each in values[-alarm.rows :])

    monkeypatch.setattr(diagnostics, "is_beyond", is_beyond)
    assert offs(alarm, values) == []
