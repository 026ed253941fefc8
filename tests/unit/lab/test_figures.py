"""Every function that draws a figure draws one that can be read; figures with views show one at a time."""

import inspect
import math
import pkgutil
from importlib import import_module
from typing import Any

import plotly.graph_objects as go
import pytest

import uavlab_lab
from tests.support.figures import CASES, ELSEWHERE, NAMED, SPEEDUPS, Case
from uavlab.core.errors import ConfigError
from uavlab_lab.plots import charts, style, svg, tables
from uavlab_lab.plots.views import GAP, LETTER, LINE, PAD, ROOM, TITLES, still_views, views

PAGES = ("#ffffff", "#111111")  # light and dark


def faults(figure: go.Figure) -> list[str]:
    """Return what a person would find wrong with a figure."""
    layout = figure.layout
    axes = [value for key, value in layout.to_plotly_json().items() if key.startswith(("xaxis", "yaxis"))]
    numbers = [n for trace in figure.data for each in (trace.x, trace.y) for n in ([] if each is None else each)]
    lines = [trace for trace in figure.data if trace.type == "scatter" and trace.showlegend and "lines" in trace.mode]
    looks = {(trace.line.color, trace.line.dash) for trace in lines}
    heads = (layout.title.text or "", layout.title.subtitle.text or "")
    found = {
        "no title": not heads[0],
        "a long line": max(len(line) for head in heads for line in head.split("<br>")) > style.LONG,
        "no title of an axis": not any(axis.get("title", {}).get("text") for axis in axes),
        "nothing drawn": not figure.data,
        "a number that is none": any(isinstance(n, float) and math.isinf(n) for n in numbers),
        "lines alike": len(looks) < len({trace.name for trace in lines}),
        "large": len(figure.to_json()) > 40_000,
        "another style": layout.template.layout.paper_bgcolor != style.CLEAR,
    }
    return [fault for fault, is_there in found.items() if is_there]


@pytest.mark.parametrize("name", CASES)
def test_a_figure_can_be_read_and_has_its_numbers(name: str) -> None:
    case: Case = CASES[name]
    figure = case.draw(*case.given, **case.options)
    assert faults(figure) == []
    for trace_name, (xs, ys) in case.numbers.items():
        shown = [trace for trace in figure.data if trace.visible is not False and not getattr(trace, "fill", None)]
        trace = next(trace for trace in shown if (trace.name or "") == trace_name)
        assert list(trace.x) == pytest.approx(xs)
        assert not ys or list(trace.y) == ys


def drawing_functions() -> dict[str, str]:
    """Return the public functions of the lab that return a figure, each with its module."""
    found = {}
    for each in pkgutil.walk_packages(uavlab_lab.__path__, "uavlab_lab."):
        if each.name.split(".")[1] in ("suites", "claims", "measure"):
            continue
        module = import_module(each.name)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            kind = inspect.signature(function).return_annotation
            if function.__module__ == each.name and not name.startswith("_") and kind is go.Figure:
                found[name] = each.name
    return found


def test_no_figure_is_forgotten() -> None:
    drawn = {case.draw.__name__ for case in CASES.values()} | {"curves_over_time", "scores_while_training"}
    rest = {name for name, module in drawing_functions().items() if module not in ELSEWHERE and name not in ELSEWHERE}
    assert rest - drawn == {"flight_of"}


def test_faults_are_seen() -> None:
    broken = charts.bars(SPEEDUPS, **NAMED)
    broken.update_layout(title=None, template=None).update_xaxes(title=None)
    assert faults(broken) == ["no title", "no title of an axis", "another style"]
    assert faults(style.blank("A title", "x")) == ["nothing drawn"]


def test_intervals_and_outcomes_of_bars() -> None:
    bar, numbers, *legend = charts.bars(SPEEDUPS).data
    assert list(bar.error_x.array) == pytest.approx([0, 0.5, 0.075])  # 3 - 2.5, 0.875 - 0.8
    assert list(bar.error_x.arrayminus) == pytest.approx([0, 0.25, 0.05])
    assert list(numbers.x) == [1.0, 3.0, 0.875]  # behind the upper end of the interval, never under it
    assert [each.name for each in legend] == ["faster", "not different", "slower"]
    assert charts.speedup(SPEEDUPS[1]) == "2.50x (2.25 to 3.00)"
    assert charts.bars([*SPEEDUPS[:1], {**SPEEDUPS[1], "low": None}]).data[0].error_x.array is None


def test_the_interval_of_a_curve_is_students() -> None:
    area, line = CASES["learning curves"].draw(*CASES["learning curves"].given).data
    # t of one degree of freedom 12.706, standard error 0.25; up along the upper ends, back along the lower
    assert list(area.y) == pytest.approx([0.25 + 3.17655, 1, 1, 0.25 - 3.17655], abs=1e-4)
    assert (area.fillcolor, line.line.color) == (style.pale(0), style.color(0))


def luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2."""
    shares = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_are_seen_on_white_and_on_dark() -> None:
    seen = [min(contrast(color, page) for page in PAGES) for color in (*style.COLORS, style.CLAIM_EDGE)]
    assert min(seen) >= 3
    assert min(contrast(style.TEXT, page) for page in PAGES) > 4.2
    assert contrast(style.BUTTON_TEXT, style.BUTTON) > 4.5
    assert min(contrast("#1b4f9c", page) for page in PAGES) < 3  # a dark blue would be refused


def test_tables_show_labels_dashes_and_text() -> None:
    rows: list[Any] = [{"a": "formation_strict", "ms": 10.0}, {"a": "<img src=x>", "ms": None}]
    table = tables.table(rows, {"a": "metric", "ms": ("time (ms)", ".1f")})
    assert repr(table) == "metric | time (ms)\nstrict formation | 10.0\n<img src=x> | -"
    assert "&lt;img src=x&gt;</td>" in table._repr_html_()


def test_points_and_marks_of_a_drawing_lie_where_they_belong() -> None:
    curves = {"<a>": [(0, 0.0), (50, 0.5), (100, 1.0)], "": [(0, math.nan)]}
    text = svg.line_chart(curves, "updates", "share", 100, (0.0, 1.0), marks=[(50, "1<b>")])
    left, right, top, bottom = svg.LEFT, svg.WIDTH - svg.RIGHT, svg.TOP, svg.HEIGHT - svg.BOTTOM
    for x, y in ((left, bottom), ((left + right) / 2, (top + bottom) / 2), (right, top)):
        assert f"<circle cx='{x:.1f}' cy='{y:.1f}'" in text
    assert f"x1='{(left + right) / 2:.1f}' y1='{top:.1f}'" in text
    assert "<b>" not in text.replace("&lt;b&gt;", "")
    assert svg.ticks(-0.02, 1.02) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert svg.bounds([0.0, 10.0, math.inf]) == (-0.5, 10.5)
    assert svg.thin([(x, 0.0) for x in range(9)], 4) == [(x, 0.0) for x in (0, 3, 6, 8)]


# Views


def draw(show: str, agents: int) -> go.Figure:
    figure = go.Figure(layout={"title": {"text": f"{show} of {agents}"}, "height": 300 + agents, "margin": {"t": 40}})
    for number in range(agents // 2):
        figure.add_bar(x=[agents + number], y=[show], visible="legendonly" if number else None)
    if show == "time":
        figure.add_vline(x=1)
        figure.update_xaxes(type="log")
    return figure


def click(figure: go.Figure, label: str) -> tuple[list[Any], dict[str, Any]]:
    """Return what a button makes of visibility and layout."""
    [args] = [b.args for menu in figure.layout.updatemenus for b in menu.buttons if b.label == label]
    return args[0]["visible"], args[1]


def test_each_combination_has_a_button_that_shows_it_whole() -> None:
    figure = views(draw, show=["speed", "time"], agents=[2, 4])
    labels = [button.label for menu in figure.layout.updatemenus for button in menu.buttons]
    assert labels == ["speed, agents 2", "speed, agents 4", "time, agents 2", "time, agents 4"]
    assert [trace.visible for trace in figure.data] == [True, False, False, False, False, False]
    visible, layout = click(figure, "time, agents 4")
    assert visible == [False, False, False, False, True, "legendonly"]
    assert (layout["title"]["text"], layout["xaxis"]["type"], len(layout["shapes"])) == ("time of 4", "log", 1)
    _, layout = click(figure, "speed, agents 2")
    assert (layout["shapes"], layout["xaxis"]) == (None, {"visible": False})  # what the last view had is gone
    pressed = [layout[f"updatemenus[{n}].active"] for n in range(len(figure.layout.updatemenus))]
    assert sorted(pressed) == [-1] * (len(pressed) - 1) + [0]


def test_the_stills_are_the_figures_that_were_drawn() -> None:
    figure = views(draw, show=["speed", "time"], agents=[2, 4])
    stills = still_views(figure)
    assert [still.layout.title.text for still in stills] == ["speed of 2", "speed of 4", "time of 2", "time of 4"]
    assert [(still.layout.height, still.layout.margin.t) for still in stills] == [(302, 40), (304, 40)] * 2
    assert not any(still.layout.updatemenus for still in stills)
    plain = draw("speed", 2)
    assert still_views(plain) == [plain]


def test_none_equal_figures_and_single_choices_have_no_button() -> None:
    def some(show: str, agents: int) -> go.Figure | None:
        return None if (show, agents) == ("time", 4) else draw("speed" if show == "same" else show, agents)

    figure = views(some, show=["speed", "time", "same"], agents=[2, 4])
    labels = [button.label for menu in figure.layout.updatemenus for button in menu.buttons]
    assert labels == ["speed, agents 2", "speed, agents 4", "time, agents 2"]
    assert views(draw, show=["speed"], agents=[2]).layout.updatemenus == ()
    assert [b.label for b in views(draw, show=["n_uavs", "b"], agents=[2]).layout.updatemenus[0].buttons] == [
        *("n uavs", "b")
    ]


@pytest.mark.parametrize("count", [2, 12])
def test_long_rows_go_on_below_and_never_over_the_plot(count: int) -> None:
    figure = views(lambda show: draw(show, 2), show=[f"view number {number}" for number in range(count)])
    menus = figure.layout.updatemenus
    assert all(sum(PAD + LETTER * len(button.label) for button in menu.buttons) <= LINE for menu in menus)
    assert figure.layout.margin.t == 40 + ROOM * len(menus)
    assert sorted(menu.pad.b for menu in menus) == [GAP + ROOM * n for n in range(len(menus))]
    top = {"text": "wind", "xref": "paper", "yref": "paper", "x": 0.5, "y": 1.0}
    figure = views(lambda show: draw(show, 2).update_layout(annotations=[top]), show=["a", "b"])
    assert figure.layout.updatemenus[0].pad.b == GAP + TITLES  # above the titles of parts


def test_nothing_to_choose_from_and_animations_are_refused() -> None:
    with pytest.raises(ConfigError, match="no values to choose from"):
        views(draw, show=[], agents=[2])
    with pytest.raises(ConfigError, match="animated"):
        views(lambda n: go.Figure(frames=[go.Frame()]), n=[1, 2])
