"""The drawing style tells lines apart without colour, keeps titles whole, and draws no interval that is not there."""

import plotly.graph_objects as go
import pytest

from uavlab_lab.plots import style

PAGES = ("#ffffff", "#111111")  # light and dark


def test_a_long_title_is_broken_and_given_room() -> None:
    short, long = style.blank("Short"), style.blank("word " * 40, "seconds", "completion")
    assert "<br>" not in short.layout.title.text
    assert all(len(line) <= style.WIDE for line in long.layout.title.text.split("<br>"))
    assert long.layout.margin.t > short.layout.margin.t
    assert (long.layout.xaxis.title.text, long.layout.yaxis.title.text) == ("seconds", "completion")


def luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2."""
    shares = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours by WCAG 2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def faint(color: str) -> bool:
    """Return whether a colour has a contrast under 3 on white or on JupyterLab's dark."""
    return min(contrast(color, page) for page in PAGES) < 3


def test_colors_are_seen_on_white_and_on_dark() -> None:
    assert not [color for color in (*style.COLORS, style.TEXT, style.CLAIM_EDGE) if faint(color)]
    assert faint("#1b4f9c")  # a dark blue
    assert faint("#f2c14e")  # a pale yellow
    assert style.blank("").layout.template.layout.paper_bgcolor == "rgba(0, 0, 0, 0)"


def test_words_have_the_most_contrast_that_one_colour_can_have_on_both() -> None:
    most = contrast(*PAGES) ** 0.5  # of the colour in the middle
    assert most == pytest.approx(4.35, abs=0.01)
    assert min(contrast(style.TEXT, page) for page in PAGES) > most - 0.03
    assert min(contrast("#7a7f87", page) for page in PAGES) < most - 0.3  # a little too light


def test_words_on_buttons_can_be_read() -> None:
    assert all(contrast(style.BUTTON_TEXT, button) > 4.5 for button in (style.BUTTON, "#f4faff"))


def test_long_captions_and_axes_are_broken() -> None:
    layout = style.blank("", "word " * 20, "word " * 20, caption="word " * 40).layout
    lines = layout.title.subtitle.text.split("<br>")
    assert (len(lines), max(map(len, lines)) <= style.LONG) == (3, True)
    assert layout.margin.t == style.blank("").layout.margin.t + 8 + 16 * 3
    assert all(
        len(line) <= style.SIDE for axis in (layout.xaxis, layout.yaxis) for line in axis.title.text.split("<br>")
    )


def test_a_logarithmic_axis_has_readable_labels() -> None:
    axis = style.log_axis([2.0, 30.0])
    labels = dict(zip(axis["ticktext"], axis["tickvals"], strict=True))
    assert {"1", "2", "5", "10", "20", "50"} <= set(labels)
    assert labels["20"] == 20
    far = style.log_axis([1e-7, 1.0, 0.0])
    assert far["ticktext"][1:3] == ["10<sup>-7</sup>", "10<sup>-6</sup>"]
    assert "0.5" not in far["ticktext"]


def test_lines_differ_by_more_than_colour() -> None:
    pens = [style.pen(number) for number in range(5)]
    assert len({each["line"]["dash"] for each in pens}) == len({each["marker"]["symbol"] for each in pens}) == 5
    assert style.color(len(style.COLORS)) == style.color(0)


def test_pale_is_the_same_colour_with_less_of_it() -> None:
    assert style.COLORS[0] == "#3a7bd5"
    assert style.pale(0) == "rgba(58, 123, 213, 0.18)"  # 0x3a, 0x7b, 0xd5


def test_a_curve_has_its_interval_as_an_area() -> None:
    figure = go.Figure()
    style.add_curve(figure, 1, "runs", [10, 20], [[0.0, 1.0], [0.25, 1.0], [0.5, 1.0]])
    area, line = figure.data
    assert (list(line.x), list(line.y), line.name) == ([10, 20], [0.25, 1.0], "runs")
    assert (list(area.x), list(area.y)) == ([10, 20, 20, 10], [0.5, 1.0, 1.0, 0.0])
    assert (area.fillcolor, area.showlegend) == (style.pale(1), False)
    style.add_curve(figure, 1, "runs", [10], [[0.0], [0.25], [0.5]], xaxis="x2")
    assert [trace.xaxis for trace in figure.data] == [None, None, "x2", "x2"]


def test_whiskers_reach_from_the_value_to_its_ends() -> None:
    rows = [{"x": 3.0, "low": 2.5, "high": 4.0}]
    drawn = style.whiskers(rows, "x", ("low", "high"))
    assert drawn is not None
    assert (drawn["array"], drawn["arrayminus"]) == ([1.0], [0.5])
    assert style.whiskers([*rows, {"x": 1.0, "low": None, "high": 2.0}], "x", ("low", "high")) is None
    assert style.whiskers(rows, "x", None) is None


def test_a_claim_is_a_band_with_its_name() -> None:
    figure = go.Figure()
    style.add_claim(figure, 1.5, 1.8)
    (band,) = figure.layout.shapes
    assert (band.x0, band.x1) == (1.5, 1.8)
    assert (band.name, band.showlegend) == ("claimed", True)  # in the legend it lies over nothing


def test_numbers_are_kept_to_six_digits() -> None:
    assert style.short([1 / 3, 1234567.0]) == [0.333333, 1234570.0]
