"""A run that trains in a cell: its learning curve grows, a status line says how long it takes, and Stop ends it."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from IPython.display import HTML, display

from uavlab.core.types import Metric
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Progress
from uavlab_lab.headless.strip_outputs import FIGURE
from uavlab_lab.labels import label_of
from uavlab_lab.plots.style import blank, pen, plain
from uavlab_lab.plots.svg import line_chart, thin
from uavlab_lab.widgets import Stop, stoppable, write_status

PARTS = {"last": "of episodes", "outcome": "of episodes", "mean": "of steps"}  # shares, in metrics without unit


async def train(run: Run) -> None:
    """Train in a cell until the target of the run, Stop or an interrupt; later cells still run.

    The curve is drawn as SVG while it grows, and once more as a figure at the end.
    """
    stop = Stop()
    display(stop)
    picture = display(HTML(draw(run)), display_id=True)
    async for progress in stoppable(run, stop, unit="updates"):
        if progress.metrics or progress.score:
            write_status(stop.status, describe(progress))
        if progress.score:
            picture.update(HTML(draw(run)))
    figure = training_curves(run.config.env, run.recorder.rows, title="Learning: scores while training")
    picture.update({FIGURE: json.loads(figure.to_json()), "text/plain": "scores over updates"}, raw=True)


def describe(progress: Progress) -> str:
    """Return one line on updates, their rate, and the time that is left."""
    rate = progress.number / max(progress.seconds, 1e-9)
    left = f" of {progress.target}, {(progress.target - progress.number) / rate:.0f} s to go" if progress.target else ""
    return f"update {progress.number}{left}; {rate:.0f} updates per second"


def draw(run: Run, marks: Sequence[tuple[float, str]] = (), x_end: float | None = None) -> str:
    """Draw the scores of a run so far as SVG, with marks at some updates; ``x_end`` None stands for its target."""
    figure = training_curves(run.config.env, run.recorder.rows)
    curves = {html.unescape(trace.name): thin(list(zip(trace.x, trace.y, strict=True))) for trace in figure.data}
    layout = figure.layout
    across, up = (html.unescape(axis.title.text) for axis in (layout.xaxis, layout.yaxis))
    return line_chart(
        curves, across, up, (run.config.run.updates or 0) if x_end is None else x_end, layout.yaxis.range, marks=marks
    )


def training_curves(env: Any, rows: Sequence[Mapping[str, float]] = (), title: str = "") -> go.Figure:
    """Draw the metrics in the ``score`` of an environment over the updates of a run.

    Each of ``rows`` with the key ``eval/NAME`` is a point of the metric NAME.
    """
    known = [metric for metric in getattr(env, "metrics", ()) if metric.name in env.score]
    metrics = known or [Metric(name, "") for name in env.score]
    shares = all(metric.over in PARTS and not metric.unit for metric in metrics)
    units = ", ".join(dict.fromkeys(metric.unit or label_of(metric.name, env) for metric in metrics))
    figure = blank(title, "updates", "share of episodes or steps" if shares else units)
    for number, metric in enumerate(metrics):
        scored = [row for row in rows if f"eval/{metric.name}" in row]
        part = metric.unit or PARTS.get(metric.over, metric.over)
        figure.add_scatter(
            x=[row["update"] for row in scored],
            y=[row[f"eval/{metric.name}"] for row in scored],
            name=plain(label_of(metric.name, env) + (f" ({part})" if part else "")),
            mode="lines+markers",
            **pen(number),
        )
    figure.update_xaxes(rangemode="tozero")
    return figure.update_yaxes(range=[-0.02, 1.02]) if shares else figure
