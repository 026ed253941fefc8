"""The learning record has a panel for each environment, a colour for each learner, and levels of what is compared."""

from typing import Any

import pytest

from uavlab_lab.plots import style
from uavlab_lab.plots.learners import learning_record, score_text


def row(environment: str, learner: str, plan: str | None = "sweep", **more: Any) -> dict[str, Any]:
    """Return a row of two seeds and two scores."""
    points = [
        {"update": 10, "minutes": 1.0, "mean": 0.5, "low": -9.0, "high": 9.0, "each": [0.25, 0.75]},
        {"update": 20, "minutes": 2.0, "mean": 0.75, "low": 0.0, "high": 1.0, "each": [0.5, 1.0]},
    ]
    return {
        **{"environment": environment, "learner": learner, "validation": points, "score": {"covered": 1.0}},
        **{"random": {"mean": 0.125}, "plan": plan, "plans": {"sweep": {"mean": 0.875}, "other": {"mean": 0.0}}},
        **more,
    }


ROWS = [row("spread", "masac"), row("spread", "mappo"), row("pursuit", "mappo", None)]


def traces(figure: Any, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name == name]


def test_a_panel_for_each_environment_and_a_colour_for_each_learner() -> None:
    figure = learning_record(ROWS, title="A title", caption="A caption")
    (masac,), mappo = traces(figure, "masac"), traces(figure, "mappo")
    assert [(trace.xaxis, trace.yaxis) for trace in (masac, *mappo)] == [("x", "y"), ("x", "y"), ("x2", "y2")]
    assert [trace.line.color for trace in (masac, *mappo)] == [style.color(0), style.color(1), style.color(1)]
    assert [(list(trace.x), list(trace.y)) for trace in mappo] == [([1, 2], [0.5, 0.75])] * 2
    assert [note.text for note in figure.layout.annotations] == [
        "<b>spread</b>, plan: sweep<br>covered landmarks",
        "<b>pursuit</b><br>covered landmarks",
    ]


def test_a_line_has_its_interval_in_its_panel() -> None:
    areas = [trace for trace in learning_record(ROWS).data if trace.fill == "toself"]
    assert [(area.xaxis, area.fillcolor) for area in areas] == [
        ("x", style.pale(0)),
        ("x", style.pale(1)),
        ("x2", style.pale(1)),
    ]
    assert list(areas[0].y) == [9, 1, 0, -9]


def test_the_legend_names_each_once() -> None:
    shown = [trace.name for trace in learning_record(ROWS).data if trace.showlegend]
    assert sorted(shown) == ["best plan", "mappo", "masac", "random actions"]


def test_levels_are_dashed_and_reach_to_the_end() -> None:
    figure = learning_record(ROWS)
    random, (plan,) = traces(figure, "random actions"), traces(figure, "best plan")  # pursuit has none here
    assert [(trace.xaxis, list(trace.x), list(trace.y)) for trace in random] == [
        ("x", [0, 2], [0.125, 0.125]),
        ("x2", [0, 2], [0.125, 0.125]),
    ]
    assert (plan.xaxis, list(plan.y)) == ("x", [0.875, 0.875])
    assert {random[0].line.dash, plan.line.dash} == {"dot", "dash"}


def test_axes_have_room_for_seeds_and_levels_not_for_intervals() -> None:
    low, high = learning_record(ROWS).layout.yaxis.range
    assert (low, high) == pytest.approx((0.125 - 0.06 * 0.875, 1 + 0.06 * 0.875))


def test_a_run_without_scores_leaves_its_line_out() -> None:
    figure = learning_record([row("spread", "masac", validation=[]), ROWS[1]])
    assert traces(figure, "masac") == []
    assert traces(figure, "mappo")[0].line.color == style.color(1)
    assert len(learning_record([row("spread", "masac", validation=[])]).data) == 2  # the levels


@pytest.mark.parametrize(("count", "heights"), [(1, 1), (2, 1), (3, 2), (5, 3)])
def test_panels_are_equally_high(count: int, heights: int) -> None:
    figure = learning_record([row(f"task {number}", "masac") for number in range(count)])
    layout = figure.layout
    inner = layout.height - layout.margin.t - layout.margin.b
    panels = [layout[f"yaxis{number + 1 if number else ''}"].domain for number in range(count)]
    assert [inner * (high - low) for low, high in panels] == pytest.approx([190] * count)
    assert len({low for low, _ in panels}) == heights
    titles = [layout[f"xaxis{number + 1 if number else ''}"].title.text for number in range(count)]
    assert [bool(title) for title in titles] == [False] * (count - min(count, 2)) + [True] * min(count, 2)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"entropy": -1.0}, "-entropy of cells with targets (bit)"),
        ({"covered": 1.0, "collisions": -0.01}, "covered landmarks - 0.01 collisions"),
        (
            {"completion": 3.0, "formation_strict": 1.0, "flight_time": -0.0005},
            "3 completion + strict formation - 0.0005 flight time",
        ),
    ],
)
def test_a_score_as_text(weights: dict[str, float], text: str) -> None:
    assert score_text(weights) == text
