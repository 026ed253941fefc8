"""The drawing style tells lines apart without colour, keeps titles whole, and draws no interval that is not there."""

import plotly.graph_objects as go

from uavlab.lab.plots import style


def test_a_long_title_is_broken_and_given_room() -> None:
    short, long = style.blank("Short"), style.blank("word " * 40, "seconds", "completion")
    assert "<br>" not in short.layout.title.text
    assert all(len(line) <= style.WIDE for line in long.layout.title.text.split("<br>"))
    assert long.layout.margin.t > short.layout.margin.t
    assert (long.layout.xaxis.title.text, long.layout.yaxis.title.text) == ("seconds", "completion")


def test_lines_differ_by_more_than_colour() -> None:
    pens = [style.pen(number) for number in range(5)]
    assert len({each["line"]["dash"] for each in pens}) == len({each["marker"]["symbol"] for each in pens}) == 5
    assert style.color(len(style.COLORS)) == style.color(0)


def test_pale_is_the_same_colour_with_less_of_it() -> None:
    assert style.COLORS[0] == "#1b4f9c"
    assert style.pale(0) == "rgba(27, 79, 156, 0.18)"  # 0x1b, 0x4f, 0x9c


def test_a_curve_has_its_interval_as_an_area() -> None:
    figure = go.Figure()
    style.add_curve(figure, 1, "runs", [10, 20], [[0.0, 1.0], [0.25, 1.0], [0.5, 1.0]])
    area, line = figure.data
    assert (list(line.x), list(line.y), line.name) == ([10, 20], [0.25, 1.0], "runs")
    assert (list(area.x), list(area.y)) == ([10, 20, 20, 10], [0.5, 1.0, 1.0, 0.0])
    assert (area.fillcolor, area.showlegend) == (style.pale(1), False)


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
    assert figure.layout.annotations[0].text == "claimed"


def test_numbers_are_kept_to_six_digits() -> None:
    assert style.short([1 / 3, 1234567.0]) == [0.333333, 1234570.0]
