"""A line chart as SVG has its points in place, round numbers at its axes, and text that is never markup."""

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from uavlab.lab.plots import svg


def circles(text: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall("<circle cx='([^']+)' cy='([^']+)'", drawings(text)[0])]


def drawings(text: str) -> list[str]:
    """Return the drawing of a wide page, and that of a narrow one."""
    root = ElementTree.fromstring(text)  # well-formed
    wide, narrow = (each for each in root if each.tag.endswith("svg"))
    return [
        ElementTree.tostring(each, encoding="unicode").replace("ns0:", "").replace('"', "'") for each in (wide, narrow)
    ]


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


def test_a_narrow_page_has_a_drawing_with_names_under_each_other() -> None:
    names = {"completion": [(0, 0.5)], "strict formation": [(0, 0.25)]}
    wide, narrow = drawings(svg.line_chart(names, "updates", "share", 1, (0.0, 1.0)))
    lines = [[re.search(f" y='([0-9.]+)'[^>]*>{name}", each) for name in names] for each in (wide, narrow)]
    assert [[float(match[1]) for match in some if match] for some in lines] == [[16, 16], [32, 48]]
    assert f"viewBox='0 0 {svg.NARROW} " in narrow


def test_marks_stand_where_they_belong_with_their_text() -> None:
    text = svg.line_chart({"": [(0, 0.0), (10, 1.0)]}, "s", "speed", 10, (0.0, 1.0), [(5, "1<b>")], dots=False)
    middle = (svg.LEFT + svg.WIDTH - svg.RIGHT) / 2
    assert circles(text) == []
    assert f"x1='{middle:.1f}' y1='{svg.TOP:.1f}' x2='{middle:.1f}'" in text
    assert "1&lt;b&gt;" in text
    assert "h28" not in text  # a curve without a name has no entry in the legend
