"""The picture of a curriculum has a line for each seed's scores and stages, and a mark for each decision."""

import math
from typing import Any

import pytest

from uavlab.experiment.curriculum import Curriculum, Fallback, Stage
from uavlab_lab.plots import style
from uavlab_lab.plots.curricula import comparison, rates, timeline

ROWS: list[dict[str, Any]] = [
    {"update": update, "seed": seed, "eval/stage": stage, "eval/completion": score}
    for seed, stages in ((0, [1, 2, 2]), (1, [1, 2, 1]))
    for update, stage, score in zip((2, 4, 6), stages, (0.9, 0.5, 0.2), strict=True)
] + [{"update": 3, "seed": 0, "alpha": 0.1}]
LOG = [
    {"update": 2, "seed": 0, "decision": "advance", "from": 1, "to": 2, "reason": "1 scores in a row of at least 0.9"},
    {"update": 4, "seed": 1, "decision": "fall_back", "from": 2, "to": 1, "reason": "below"},
]


def test_scores_and_stages_of_each_seed() -> None:
    figure = timeline(ROWS, LOG, "completion", title="Two seeds")
    first, stages, *_ = figure.data
    assert (list(first.x), list(first.y), first.name) == ([2, 4, 6], [0.9, 0.5, 0.2], "seed 0")
    assert (list(stages.y), stages.line.shape, stages.yaxis) == ([1, 2, 2], "vh", "y2")
    assert [trace.name for trace in figure.data if trace.showlegend is not False] == [
        *("seed 0", "seed 1", "promotion", "fallback"),
    ]


def test_decisions_are_marked_with_their_reasons() -> None:
    promotion, fallback = timeline(ROWS, LOG, "completion").data[-2:]
    assert (list(promotion.x), list(promotion.y)) == ([2], [2])
    assert fallback.text[0] == "seed 1: below"
    assert (fallback.marker.symbol, promotion.marker.symbol) == ("triangle-down", "triangle-up")


def test_axes_do_not_overlap() -> None:
    layout = timeline(ROWS, LOG, "completion").layout
    assert layout.yaxis2.domain[1] < layout.yaxis.domain[0]
    assert list(layout.yaxis2.tickvals) == [1, 2]
    assert layout.xaxis.anchor == "y2"


PLAN = Curriculum("completion", (Stage({}), Stage({}, rate=8.0)), Fallback(decay=0.25))
BACK = {"update": 4, "seed": 0, "decision": "fall_back", "from": 2, "to": 1, "reason": "below"}


def test_rates_are_those_before_each_score() -> None:
    """The score at a fallback was learned at the old rate; fallbacks of other seeds count for nothing."""
    own = [{"update": at, "seed": 0, "eval/stage": stage} for at, stage in ((2, 1), (4, 2), (6, 1), (8, 2))]
    assert rates(own, [*LOG, BACK], PLAN) == [1.0, 8.0, 0.25, 2.0]
    assert rates([{**row, "seed": 2} for row in own], [*LOG, BACK], PLAN) == [1.0, 8.0, 1.0, 8.0]


def test_rates_are_drawn_below_the_stages() -> None:
    figure = timeline(ROWS, [*LOG, BACK], "completion", plan=PLAN)
    layout, shares = figure.layout, [trace for trace in figure.data if trace.yaxis == "y3"]
    assert [list(trace.y) for trace in shares] == [[1.0, 8.0, 2.0], [1.0, 8.0, 0.25]]
    assert {trace.line.shape for trace in shares} == {"vh"}
    assert layout.yaxis3.domain[1] < layout.yaxis2.domain[0] < layout.yaxis2.domain[1] < layout.yaxis.domain[0]
    assert (layout.yaxis3.type, layout.xaxis.anchor) == ("log", "y3")


def test_a_run_without_scores() -> None:
    figure = timeline([], [], "completion")
    assert len(figure.data) == 0
    assert not math.isnan(figure.layout.yaxis2.range[1])


# ---- with a curriculum and on the last stage alone ----

CURVES = {"curriculum": [(0.0, 0.25), (0.5, 1.0)], "alone": [(0.25, 0.25), (0.5, 0.25)]}  # of two seeds, at both times
AGAIN = {"seed": 4, "decision": "advance", "from": 1, "to": 2, "reason": "1 scores in a row of at least 0.9"}


def study_row(way: str, **more: Any) -> dict[str, Any]:
    """Return a row of two seeds, 4 and 5, and two scores, of which the second seed's are at the first stage."""
    at = ((10, 1.0), (20, 2.0))
    curve = [
        {"update": update, "minutes": minutes, "mean": sum(each) / 2, "low": -9.0, "high": 9.0, "each": list(each)}
        for (update, minutes), each in zip(at, CURVES[way], strict=True)
    ]
    stages: list[dict[str, Any]] = [{"stages": [1, 1]}, {"stages": [2, 1]}] if way == "curriculum" else [{}, {}]
    points = [
        {"update": update, "minutes": minutes, **each} for (update, minutes), each in zip(at, stages, strict=True)
    ]
    decisions = [{**AGAIN, "update": 10}] if way == "curriculum" else []
    fields = {"way": way, "seed": 4, "stages": [{}, {}, {}], "decisions": decisions}
    return {**fields, "validation": points, "curve": curve, **more}


BOTH = [study_row("curriculum"), study_row("alone")]


def test_means_at_the_last_stage_with_their_intervals() -> None:
    figure = comparison(BOTH, title="A title", caption="A caption")
    staged, alone = (trace for trace in figure.data if trace.name in ("with the curriculum", "last stage alone"))
    assert (list(staged.x), list(staged.y), staged.line.color) == ([1, 2], [0.125, 0.75], style.color(0))
    assert (list(alone.x), list(alone.y), alone.line.color) == ([1, 2], [0.25, 0.375], style.color(1))
    areas = [trace for trace in figure.data if trace.fill == "toself"]
    assert [(list(area.y), area.fillcolor) for area in areas] == [
        ([9, 9, -9, -9], style.pale(number)) for number in (0, 1)
    ]
    assert list(figure.layout.yaxis.range) == pytest.approx([-0.06, 1.06])  # every seed, not every interval


def test_stages_of_each_seed_are_below_a_little_apart() -> None:
    """A seed is at the stage of its next score; the run on the last stage alone has no stages."""
    figure = comparison(BOTH)
    first, second = (trace for trace in figure.data if (trace.name or "").startswith("seed"))
    assert [(trace.name, list(trace.x), trace.line.shape, trace.yaxis) for trace in (first, second)] == [
        (name, [0, 1, 2], "vh", "y2") for name in ("seed 4", "seed 5")
    ]
    assert (list(first.y), list(second.y)) == ([0.875, 0.875, 1.875], [1.125, 1.125, 1.125])
    assert list(figure.layout.yaxis2.tickvals) == [1, 2, 3]


def test_decisions_are_marked_at_their_minutes() -> None:
    (mark,) = (trace for trace in comparison(BOTH).data if trace.name == "promotion")
    assert (list(mark.x), list(mark.y)) == ([1], [1.875])
    assert mark.text[0] == "seed 4: 1 scores in a row of at least 0.9"


def test_a_run_that_failed_leaves_its_line_out() -> None:
    figure = comparison([study_row("curriculum", curve=[], validation=[], decisions=[]), BOTH[1]])
    assert [trace.name for trace in figure.data if trace.showlegend is not False] == ["last stage alone"]
    assert len(comparison([]).data) == 0
