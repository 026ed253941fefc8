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


def test_bands_are_areas_that_end_at_the_axis() -> None:
    bands = {"a": [(0, 0.25, 0.75), (100, -5.0, 5.0), (50, 0.0, math.nan)], "b": [(0, 0.0, 1.0)]}
    text = svg.line_chart({"a": [(0, 0.5), (100, 0.5)]}, "x", "y", 100, (0.0, 1.0), bands)
    circles(text)
    [area] = re.findall("<polygon points='([^']+)'", text)
    right, top, bottom = svg.WIDTH - svg.RIGHT, svg.TOP, svg.HEIGHT - svg.BOTTOM
    quarter, three = bottom - (bottom - top) / 4, top + (bottom - top) / 4
    edge = [(svg.LEFT, quarter), (right, bottom), (right, top), (svg.LEFT, three)]
    assert [tuple(map(float, place.split(","))) for place in area.split()] == edge


def test_names_stand_in_the_chart_or_in_its_legend() -> None:
    curves = {"<a>": [(0, 1.0)], "b": [(0, 2.0)]}
    named, alone = (svg.line_chart(curves, "x", "y", 1, named=named) for named in (True, False))
    assert (">b</text>" in named, ">b</text>" in alone) == (True, False)
    assert f"viewBox='0 0 {svg.NARROW} {svg.HEIGHT}'" in alone
    legend = svg.legend([*curves])
    assert re.findall("</svg>([^<]*)</span>", legend) == ["&lt;a&gt;", "b"]
    looks = [re.findall(r"<path d='[^']+' fill='none' ([^/]*)/>", text) for text in (legend, named)]
    assert looks[0] == looks[1]
    assert len(set(looks[0])) == 2


def test_bounds_have_room_for_what_is_finite() -> None:
    assert svg.bounds([0.0, 10.0, math.inf, math.nan]) == (-0.5, 10.5)
    assert svg.bounds([]) == svg.bounds([0.0, 1.0])
