"""The same updates, however steps are gathered; clocks are not judged."""

from typing import Any

import pytest

from uavlab.benchmarks.claims.measures import Bench
from uavlab_notebooks.update_interval import compare_paces, schedule

TINY = {"hidden": 8, "batch": 8, "device": "cpu"}


def test_paced() -> None:
    settings = {"one": {}, "overlap": {"prefetch": "overlap"}, "both": {"worlds": 16, "ratio": 4}}
    rows = compare_paces(Bench(2, **TINY), settings, [1.0, 0.0])
    assert [(row["step_ms"], row["setting"]) for row in rows] == [(ms, name) for ms in (1.0, 0.0) for name in settings]
    assert (rows[0]["over_first"], rows[0]["low"], rows[0]["high"]) == (1, 1, 1)
    for row in rows:
        assert (row["share"] is None) == (row["setting"] == "overlap")
        assert row["share"] is None or 0 < row["share"] < 1
        assert row["low"] <= row["over_first"] <= row["high"]
        factor = 16 / 4 if row["setting"] == "both" else 1
        assert row["rows_per_s"] == pytest.approx(factor * row["updates_per_s"], abs=1)
    assert rows[0]["updates_per_s"] < 1000  # an update waits for a step of 1 ms


def ends(spans: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(span["start"], span["end"]) for span in spans if span["name"] == name]


def test_schedule() -> None:
    one, two = (schedule("a", interval, 80, 25, 4) for interval in (1, 2))
    assert ends(one, "step") == [(0, 80), (105, 185), (210, 290), (315, 395)]
    assert ends(one, "update") == [(80, 105), (185, 210), (290, 315), (395, 420)]
    assert ends(two, "step") == [(0, 80), (80, 160), (210, 290), (290, 370)]
    assert ends(two, "update") == [(160, 185), (185, 210), (370, 395), (395, 420)]
    assert {span["lane"] for span in one} == {"a"}


@pytest.mark.parametrize(("step", "update"), [(80, 25), (25, 80)])
def test_schedule_with_overlap(step: int, update: int) -> None:
    spans = schedule("a", 1, step, update, 3, overlap=True)
    begin = [step, step + 80, step + 160]
    assert ends(spans, "update") == [(start, start + update) for start in begin]
    assert ends(spans, "step") == [(0, step), *((start, start + step) for start in begin[:-1])]
    assert {span["lane"] for span in spans} == {"a, worlds", "a, learner"}
