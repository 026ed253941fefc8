"""A line chart as SVG has its points in place, round numbers at its axes, and text that is never markup."""

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from uavlab_lab.plots import svg


def circles(text: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall("<circle cx='([^']+)' cy='([^']+)'", drawings(text)[0])]


def drawings(text: str) -> list[str]:
    """Return the drawing of a wide page, and that of a narrow one."""
    assert ElementTree.fromstring(text) is not None  # well-formed
    return re.findall(r"<svg [^>]* class='(?:wide|narrow)'.*?</svg>", text, re.DOTALL)


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


def test_names_stand_in_a_legend_with_the_look_of_their_curves() -> None:
    text = svg.line_chart({"<a>": [(0, 1.0)], "": [(0, 1.5)], "b": [(0, 2.0)]}, "x", "y", 1)
    wide, narrow = drawings(text)
    assert f"viewBox='0 0 {svg.WIDTH} {svg.HEIGHT}'" in wide
    assert f"viewBox='0 0 {svg.NARROW} {svg.HEIGHT}'" in narrow
    assert re.findall("</svg>([^<]*)</span>", text) == ["&lt;a&gt;", "b"]
    in_legend, *in_drawings = [
        re.findall(rf"<{tag} (?:d|points)='[^']+' fill='none' ([^/]*)/>", each)
        for tag, each in (("path", text), ("polyline", wide), ("polyline", narrow))
    ]
    assert in_drawings[0] == in_drawings[1]
    assert in_legend == in_drawings[0][::2]
    assert len(set(in_legend)) == 2


def test_marks_stand_where_they_belong_with_their_text() -> None:
    text = svg.line_chart({"": [(0, 0.0), (10, 1.0)]}, "s", "speed", 10, (0.0, 1.0), marks=[(5, "1<b>")], dots=False)
    middle = (svg.LEFT + svg.WIDTH - svg.RIGHT) / 2
    assert circles(text) == []
    assert f"x1='{middle:.1f}' y1='{svg.TOP:.1f}' x2='{middle:.1f}'" in drawings(text)[0]
    assert "1&lt;b&gt;" in text
    assert "</span>" not in text  # a curve without a name has no entry in the legend


def test_bounds_have_room_for_what_is_finite() -> None:
    assert svg.bounds([0.0, 10.0, math.inf, math.nan]) == (-0.5, 10.5)
    assert svg.bounds([]) == svg.bounds([0.0, 1.0])


@pytest.mark.parametrize(
    ("count", "places"), [(0, []), (1, [0]), (4, [0, 1, 2, 3]), (9, [0, 3, 6, 8]), (10, [0, 3, 6, 9])]
)
def test_curves_of_many_points_are_thinned_to_some_and_the_last(count: int, places: list[int]) -> None:
    assert svg.thin([(x, 0.0) for x in range(count)], 4) == [(x, 0.0) for x in places]
