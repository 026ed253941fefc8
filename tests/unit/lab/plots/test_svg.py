"""A line chart as SVG has its points in place, round numbers at its axes, and text that is never markup."""

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from uavlab.lab.plots import svg


def circles(text: str) -> list[tuple[float, float]]:
    ElementTree.fromstring(text)  # well-formed
    return [(float(x), float(y)) for x, y in re.findall("<circle cx='([^']+)' cy='([^']+)'", text)]


def test_points_lie_where_they_belong() -> None:
    drawn = circles(svg.line_chart({"a": [(0, 0.0), (50, 0.5), (100, 1.0)]}, "updates", "share", 100, (0.0, 1.0)))
    left, right = svg.LEFT, svg.WIDTH - svg.RIGHT
    top, bottom = svg.TOP, svg.HEIGHT - svg.BOTTOM
    assert drawn == [(left, bottom), ((left + right) / 2, (top + bottom) / 2), (right, top)]


@pytest.mark.parametrize("values", [[], [2.0], [-3.0, 5.0], [0.0, math.nan]])
def test_any_values_have_room(values: list[float]) -> None:
    drawn = circles(svg.line_chart({"a": list(enumerate(values))}, "x", "y", 0))
    assert len(drawn) == sum(map(math.isfinite, values))
    assert all(svg.TOP < y < svg.HEIGHT - svg.BOTTOM for _, y in drawn)


def test_text_is_never_markup() -> None:
    text = svg.line_chart({"<img src=x onerror=alert(1)>": [(0, 1.0)]}, "'><script>", "&", 1)
    circles(text)
    assert "<img" not in text
    assert "<script" not in text


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (-0.02, 1.02, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 8000, [0, 2000, 4000, 6000, 8000]),
        (-7, -3, [-7, -6, -5, -4, -3]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert svg.ticks(low, high) == pytest.approx(expected)
