"""The course of a curriculum: scores of each seed, and below them its stages with promotions and fallbacks."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab.core.labels import label_of
from uavlab.lab.plots.style import blank, color, pen

Row = Mapping[str, Any]

MARKS = {  # of decisions: name, symbol, number of the colour
    "advance": ("promotion", "triangle-up", 2),
    "fall_back": ("fallback", "triangle-down", 3),
    "complete": ("last stage passed", "star", 1),
}


def timeline(
    rows: Sequence[Row], decisions: Sequence[Row], metric: str, *, title: str = "", caption: str = ""
) -> go.Figure:
    """Draw the scores of each seed by update, and under them its stage with all decisions.

    Args:
        rows: As ``Run.rows`` returns them, with ``eval/stage``; rows without a score are left out.
        decisions: As ``decisions`` in a run's ``run.json``.
        metric: Name of the figure by which the run is judged.
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
    for kind, (name, symbol, number) in MARKS.items():
        if some := [each for each in decisions if each["decision"] == kind]:
            figure.add_scatter(
                x=[each["update"] for each in some],
                y=[each["to"] for each in some],
                text=[f"seed {each['seed']}: {each['reason']}" for each in some],
                mode="markers",
                name=name,
                yaxis="y2",
                marker={"symbol": symbol, "size": 12, "color": color(number)},
            )
    most = max((row["eval/stage"] for row in scored), default=1)
    ticks = list(range(1, int(most) + 1))
    figure.update_layout(
        yaxis={"domain": [0.42, 1]},
        yaxis2={"domain": [0, 0.3], "title": "stage", "tickvals": ticks, "range": [0.5, most + 0.5], "anchor": "x"},
        xaxis={"anchor": "y2"},
    )
    return figure
