"""A figure of each function that draws one, with rows as they are measured, and numbers that it must show."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import plotly.graph_objects as go
import torch

from uavlab.experiment.curriculum import Curriculum, Fallback, Stage
from uavlab.telemetry.predict import COLUMNS, Prediction
from uavlab_lab import comparison, live_run, report, sweep_report
from uavlab_lab.lessons import attention, claims, harm, learning_record, mapping, telemetry
from uavlab_lab.plots import beside, charts, curricula, flight, learners, scenes, style, transfers, views
from uavlab_lab.seeds import Log

Numbers = Mapping[str, tuple[list[Any], list[Any]]]
NAMED: dict[str, str] = {"title": "A finding of some words", "caption": "How it was measured."}


class Case(NamedTuple):
    """A figure, and the points of some of its traces by their names."""

    draw: Callable[..., go.Figure]
    given: tuple[Any, ...]
    options: dict[str, Any]
    numbers: Numbers


def case(draw: Callable[..., go.Figure], *given: Any, numbers: Numbers | None = None, **options: Any) -> Case:
    return Case(draw, given, {**NAMED, **options}, numbers or {})


SPEEDUPS = [
    {"setting": "loop", "ms": 10.0, "over_first": 1.0, "low": 1.0, "high": 1.0, "agents": 2},
    {"setting": "batched", "ms": 4.0, "over_first": 2.5, "low": 2.25, "high": 3.0, "agents": 2},
    {"setting": "vmap", "ms": 12.5, "over_first": 0.8, "low": 0.75, "high": 0.875, "agents": 4},
    {"setting": "unknown", "ms": None, "over_first": None, "low": None, "high": None, "agents": 4},
]
STAGES = {
    "plain": [{"name": "update", "share": 0.5, "total_ms": 3.0}, {"name": "draw", "share": 0.25, "total_ms": 1.0}],
    "batched": [{"name": "update", "share": 0.75, "total_ms": 2.0}],
}
CURVE = [
    {"update": 10, "seconds": 3.0, "each": {"completion": [0.0, 0.5]}},
    {"update": 20, "seconds": 5.0, "each": {"completion": [1.0, 1.0]}},
]
LEARNED = [{"setting": "plain", "first_update_s": 2.0, "curve": CURVE}]
POINT = {"name": "update", "flops": 8e8, "bytes": 4e8, "ms": 10.0}  # 80 GFLOP/s where 50 GB/s allow 100
SPANS = [
    {"lane": "host", "name": "draw", "start": 0.0, "end": 2.0},
    {"lane": "device", "name": "update", "start": 2.0, "end": 6.0},
    {"lane": "host", "name": "draw", "start": 2.0, "end": 3.0},
]
SCORED = [
    {"update": update, "seed": seed, "eval/stage": stage, "eval/completion": score}
    for seed, stages in ((0, [1, 2, 2]), (1, [1, 2, 1]))
    for update, stage, score in zip((2, 4, 6), stages, (0.9, 0.5, 0.2), strict=True)
]
DECIDED = [
    {"update": 2, "seed": 0, "decision": "advance", "from": 1, "to": 2, "reason": "above"},
    {"update": 4, "seed": 1, "decision": "fall_back", "from": 2, "to": 1, "reason": "below"},
]
PLAN = Curriculum("completion", (Stage({}), Stage({}, rate=8.0)), Fallback(decay=0.25))
TIMES = [
    {"update": 10 * n, "minutes": float(n), "mean": 0.25 * n, "low": -9.0, "high": 9.0, "each": [0.25 * n, 0.25 * n]}
    for n in (1, 2)
]
STUDY = [
    {
        **{"way": way, "seed": 4, "stages": [{}, {}], "curve": TIMES, "decisions": []},
        "validation": [{**at, **({"stages": [1, 2]} if way == "curriculum" else {})} for at in TIMES],
    }
    for way in ("curriculum", "alone")
]
LEARNERS = [
    {
        **{"environment": environment, "learner": learner, "validation": TIMES, "score": {"covered": 1.0}},
        **{"random": {"mean": 0.125}, "plan": plan, "plans": {"sweep": {"mean": 0.875}}},
    }
    for environment, learner, plan in (("spread", "masac", "sweep"), ("spread", "mappo", "sweep"), ("x", "mappo", None))
]
ENDS = {"mean": 0.5, "low": 0.4, "high": 0.7}
TRANSFERS = {
    "all": {
        **{"kind": "size", "metric": "normalized_score", "home": ENDS},
        "rows": [{"size": n, "score": ENDS, "ratio": ENDS, "plans": {"greedy": ENDS}} for n in (2, 4, 8)],
    }
}
CLAIMS = [
    {
        **{"claim": claim, "unit": "ratio", "claimed_low": 1.5, "claimed_high": high, "measured": value, "system": "a"},
        **{"low": 1.2, "high": 2.0, "verdict": verdict, "claimed_text": "1.5x", "measured_text": "x"},
    }
    for claim, high, value, verdict in (("x", 2.0, 1.25, "partly"), ("y", None, 1.75, "holds"))
]
HARM = [
    {"variant": "a", "kind": harm.OPEN, "least": 1.0, "mean": -20.0, "low": -21.0, "high": -19.0, "verdict": "worse"},
    {"variant": "b", "kind": harm.OPEN, "least": 1.0, "mean": 0.1, "low": -0.5, "high": 0.7, "verdict": "better"},
]
RUNS = [
    {
        **{"setting": "plain", "first_update_s": first, "to_goal_s": goal, "to_goal_warm_s": goal - first},
        "curve": [[10, goal / 2, 0.5], [20, goal, 1.0]],
    }
    for first, goal in ((1.0, 20.0), (3.0, 40.0))
]
RESOLUTION = [{"setting": "493 cells", "update_ms": 800.0, "f1": ENDS}, {"setting": "62", "update_ms": 2.0, "f1": None}]
LOGS = [
    Log("my_run", [{"update": 1, "seconds": 3.0, "eval/path": 2.0, "loss": 1.0}]),
    Log("b", [{"update": 1, "seconds": 5.0, "eval/path": 3.0, "each": {"eval/path": [2.0, 4.0]}}]),
]
MISSIONS = {"a": torch.linspace(1, 0.5, 14).expand(1, 6, 14), "b": torch.rand(2, 5, 14, generator=torch.manual_seed(0))}


def prediction() -> Prediction:
    rows = torch.arange(5.0)[:, None] + torch.arange(float(len(COLUMNS)))
    given = {"time": torch.arange(5.0), "values": rows, "truth": rows + 1, "sd": torch.ones(len(COLUMNS))}
    return Prediction(**{each.name: given.get(each.name) for each in dataclasses.fields(Prediction)})  # type: ignore[arg-type]


CASES = {
    "bars": case(
        charts.bars,
        SPEEDUPS,
        claim=(1.4, 1.6),
        numbers={"None None": ([1.0, 2.5, 0.8], ["loop", "batched", "vmap"])},  # what has no number is left out
    ),
    "bars, logarithmic": case(charts.bars, SPEEDUPS, "ms", by="agents", log=True, axis="update (ms)"),
    "bars, negative": case(charts.bars, [{"setting": "a", "r2": -0.5}, {"setting": "b", "r2": 1.0}], "r2", axis="R²"),
    "lines": case(
        charts.lines,
        SPEEDUPS,
        "agents",
        "ms",
        by="agents",
        log_x=True,
        log_y=True,
        numbers={"2": ([2, 2], [10.0, 4.0])},
    ),
    "lines with intervals": case(charts.lines, SPEEDUPS[:3], "agents", "over_first", ends=charts.ENDS),
    "stages": case(
        charts.stages, STAGES, numbers={"update": ([0.5, 0.75], ["plain", "batched"]), "other": ([0.25, 0.25], [])}
    ),
    "stages, times": case(charts.stages, STAGES, "total_ms", axis="time (ms)"),
    "roofline": case(charts.roofline, [POINT], 4e11, 5e10, numbers={"update: 80% of the roof": ([2.0], [80.0])}),
    "learning curves": case(charts.learning_curves, LEARNED, numbers={"plain": ([10, 20], [0.25, 1.0])}),
    "learning curves, warm": case(
        charts.learning_curves, LEARNED, x="seconds", warm=True, numbers={"plain": ([1.0, 3.0], [0.25, 1.0])}
    ),
    "against theory": case(charts.against_theory, [0, 1], [90, 30], [100, 25], x_axis="slot"),
    "timeline": case(charts.timeline, SPANS, numbers={"draw": ([2.0, 1.0], ["host", "host"])}),
    "curriculum": case(
        curricula.timeline, SCORED, DECIDED, "completion", plan=PLAN, numbers={"promotion": ([2.0], [2.0])}
    ),
    "curriculum and last stage": case(
        curricula.comparison, STUDY, numbers={"with the curriculum": ([1.0, 2.0], [0.25, 0.5])}
    ),
    "learning record": case(learners.learning_record, LEARNERS, numbers={"masac": ([1.0, 2.0], [0.25, 0.5])}),
    "transfers": case(
        transfers.transfer_chart, TRANSFERS, numbers={"all": ([2, 4, 8], [0.5] * 3), "greedy": ([2, 4, 8], [0.5] * 3)}
    ),
    "transfers, ratios": case(transfers.transfer_chart, TRANSFERS, ratios=True),
    "claims": case(claims.ranges, CLAIMS, "ratio", numbers={"partly": ([1.25], ["x"]), "claimed": ([0.5, 0.25], [])}),
    "harm": case(harm.draw, HARM, numbers={"worse": ([-1.4], ["a"]), "better": ([0.1], ["b"])}),  # an arrow at the edge
    "missions": case(mapping.score_curves, MISSIONS),
    "resolution": case(mapping.trade_off, RESOLUTION, "f1", numbers={"493 cells": ([800.0], [0.5])}),
    "prediction": case(telemetry.draw_prediction, prediction(), COLUMNS[:3]),
}


def whole_runs(title: str, caption: str) -> go.Figure:
    return learning_record.curves_over_time(RUNS, 0.95)


def scores_of_runs(title: str, caption: str) -> Any:
    figure: Any = comparison.scores_while_training(LOGS, ["path"])
    return figure.update_layout(title=title)  # on a page, a heading says it


def logged(title: str, caption: str) -> go.Figure:
    return report._logged(LOGS, "loss").update_layout(title=title)


CASES |= {
    "whole runs": case(whole_runs, numbers={"plain": ([15.0, 30.0], [0.5, 1.0])}),
    "scores of runs": case(scores_of_runs, numbers={"my_run": ([1.0], [2.0]), "b": ([1.0], [3.0])}),
    "what training logged": case(logged, numbers={"my_run": ([1], [1.0])}),
}
ELSEWHERE = {  # functions whose figures other tests draw, or parts of those above
    *(scenes.__name__, flight.__name__, style.__name__, views.__name__, beside.__name__),
    *(sweep_report.__name__, attention.__name__, live_run.__name__),
    *("list_downwards", "name_runs"),
}
__all__ = ["CASES", "ELSEWHERE", "NAMED", "Case"]
