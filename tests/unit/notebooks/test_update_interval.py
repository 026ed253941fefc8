"""The same updates, however steps are gathered; clocks are not judged."""

from typing import Any

import pytest

from uavlab_lab.lessons.update_interval import schedule


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
