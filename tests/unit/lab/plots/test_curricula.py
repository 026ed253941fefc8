"""The picture of a curriculum has a line for each seed's scores and stages, and a mark for each decision."""

import math
from typing import Any

from uavlab.lab.plots.curricula import timeline

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


def test_a_run_without_scores() -> None:
    figure = timeline([], [], "completion")
    assert len(figure.data) == 0
    assert not math.isnan(figure.layout.yaxis2.range[1])
