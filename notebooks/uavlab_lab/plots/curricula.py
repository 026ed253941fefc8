"""The course of a curriculum: scores of each seed, and below them its stages with promotions and fallbacks."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab.experiment.curriculum import Curriculum, Position, learning_rate
from uavlab_lab.labels import label_of
from uavlab_lab.plots.style import add_curve, blank, color, log_axis, pen, short

Row = Mapping[str, Any]

MARKS = {  # of decisions: name, symbol, number of the colour
    "advance": ("promotion", "triangle-up", 2),
    "fall_back": ("fallback", "triangle-down", 3),
    "complete": ("last stage passed", "star", 5),
}
WAYS = {"curriculum": "with the curriculum", "alone": "last stage alone"}
APART = 0.5  # stages over which seeds at one stage are spread


def timeline(
    rows: Sequence[Row],
    decisions: Sequence[Row],
    metric: str,
    *,
    plan: Curriculum | None = None,
    title: str = "",
    caption: str = "",
) -> go.Figure:
    """Draw the scores of each seed by update, and under them its stage with all decisions.

    Args:
        rows: As ``Run.rows`` returns them, with ``eval/stage``; rows without a score are left out.
        decisions: As ``decisions`` in a run's ``run.json``.
        metric: Name of the figure by which the run is judged.
        plan: The curriculum, to draw its share of the learning rates below the stages; None for no such part.
        title: Title.
        caption: Details under it.
    """
    scored = [row for row in rows if row.get("eval/stage") is not None]
    seeds = sorted({row["seed"] for row in scored})
    figure = blank(title, "update", label_of(metric), height=560, caption=caption)
    for number, seed in enumerate(seeds):
        own = [row for row in scored if row["seed"] == seed]
        updates = [row["update"] for row in own]
        look = {"name": f"seed {seed}", "legendgroup": f"seed {seed}", **pen(number)}
        figure.add_scatter(x=updates, y=[row[f"eval/{metric}"] for row in own], mode="lines", **look)
        steps = {**look, "line": {**look["line"], "shape": "vh"}}
        figure.add_scatter(
            x=updates, y=[row["eval/stage"] for row in own], mode="lines", yaxis="y2", showlegend=False, **steps
        )
        if plan is not None:
            shares = short(rates(own, decisions, plan))
            figure.add_scatter(x=updates, y=shares, mode="lines", yaxis="y3", showlegend=False, **steps)
    _add_decisions(figure, [(each["update"], each["to"], each) for each in decisions])
    figure = _with_stages_below(figure, max((int(row["eval/stage"]) for row in scored), default=1))
    return figure if plan is None else _with_rates_below(figure)


def rates(rows: Sequence[Row], decisions: Sequence[Row], plan: Curriculum) -> list[float]:
    """Return the share of the learning rates with which a seed learned before each of its scores.

    Args:
        rows: Rows of one seed with scores.
        decisions: As for ``timeline``; those of other seeds have no effect.
        plan: The curriculum.
    """
    falls = [each for each in decisions if each["decision"] == "fall_back"]
    return [
        learning_rate(
            plan,
            Position(
                stage=int(row["eval/stage"]) - 1,
                fallbacks=sum(each["seed"] == row["seed"] and each["update"] < row["update"] for each in falls),
            ),
        )
        for row in rows
    ]


def comparison(rows: Sequence[Row], *, title: str = "", caption: str = "") -> go.Figure:
    """Draw scores at the last stage by minutes, with a curriculum and without, and under them the stage of each seed.

    Lines are means over the seeds, with their intervals. The vertical axis has room for every seed; an interval of few
    seeds may leave it. Seeds at one stage are drawn a little apart.

    Args:
        rows: Those of one preset in the record of ``uavlab bench curriculum``.
        title: Title.
        caption: Details under it.
    """
    figure = blank(title, "minutes of training", "score at the last stage", height=560, caption=caption)
    for number, row in enumerate(rows):
        if curve := row["curve"]:
            band = [[point[key] for point in curve] for key in ("low", "mean", "high")]
            add_curve(figure, number, WAYS[row["way"]], short(point["minutes"] for point in curve), band)
        if scored := [point for point in row["validation"] if "stages" in point]:
            _add_stages(figure, number, row, scored)
    if each := [value for row in rows for point in row["curve"] for value in point["each"]]:
        room = 0.06 * (max(each) - min(each) or 1)
        figure.update_layout(yaxis_range=short((min(each) - room, max(each) + room)))
    figure.update_xaxes(rangemode="tozero")
    return _with_stages_below(figure, max((len(row["stages"]) for row in rows), default=1))


def _add_stages(figure: go.Figure, number: int, row: Row, scored: Sequence[Row]) -> None:
    """Add the stage of each seed in the course of a row, in the colour of this number, with all decisions."""
    minutes, count = {point["update"]: point["minutes"] for point in scored}, len(scored[0]["stages"])
    apart = {row["seed"] + at: APART * (at - (count - 1) / 2) / count for at in range(count)}
    for at, seed in enumerate(apart):
        figure.add_scatter(
            x=short([0, *minutes.values()]),
            y=short(stage + apart[seed] for stage in (1, *(point["stages"][at] for point in scored))),
            mode="lines",
            name=f"seed {seed}",
            line={"color": color(number), "width": 1.5, "shape": "vh"},
            yaxis="y2",
            showlegend=False,
        )
    places = [(minutes[each["update"]], each["to"] + apart[each["seed"]], each) for each in row["decisions"]]
    _add_decisions(figure, places)


def _add_decisions(figure: go.Figure, places: Sequence[tuple[float, float, Row]]) -> None:
    """Add marks of decisions at their places, with the reasons."""
    for kind, (name, symbol, number) in MARKS.items():
        if some := [each for each in places if each[2]["decision"] == kind]:
            figure.add_scatter(
                x=short(x for x, _, _ in some),
                y=short(y for _, y, _ in some),
                text=[f"seed {each['seed']}: {each['reason']}" for _, _, each in some],
                mode="markers",
                name=name,
                legendrank=2000,  # after the lines
                yaxis="y2",
                marker={"symbol": symbol, "size": 12, "color": color(number)},
            )


def _with_stages_below(figure: go.Figure, most: int) -> go.Figure:
    """Return a figure with room for stages up to ``most`` under its scores."""
    ticks = list(range(1, most + 1))
    return figure.update_layout(
        yaxis={"domain": [0.42, 1]},
        yaxis2={"domain": [0, 0.3], "title": "stage", "tickvals": ticks, "range": [0.5, most + 0.5], "anchor": "x"},
        xaxis={"anchor": "y2"},
    )


def _with_rates_below(figure: go.Figure) -> go.Figure:
    """Return a figure of scores and stages with room for shares of learning rates under them."""
    shares = [share for trace in figure.data if trace.yaxis == "y3" for share in trace.y]
    title = {"text": "share of the<br>learning rates"}
    return figure.update_layout(
        height=figure.layout.height + 120,
        yaxis={"domain": [0.56, 1]},
        yaxis2={"domain": [0.3, 0.48]},
        yaxis3={"domain": [0, 0.2], "title": title, "anchor": "x", **log_axis(shares)},
        xaxis={"anchor": "y3"},
    )
