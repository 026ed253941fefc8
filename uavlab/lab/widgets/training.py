"""A run inside a notebook: a panel in which it is watched and stopped, with a curve that grows with its scores."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab.experiment.run import Progress, Run
from uavlab.lab.plots.style import blank, pen
from uavlab.lab.widgets.panel import Panel, Stop, live_figure, write_status

PARTS = {"last": "of episodes", "mean": "of steps"}  # what a metric without unit is a share of


class LiveRun(Panel):
    """A learning curve that grows while a run trains, a status line and a Stop button."""

    def __init__(self, run: Run) -> None:
        """Watch ``run``; pass each of its progress reports to ``show``."""
        self.run, self.stop = run, Stop()
        widget = live_figure(training_curves(run.config.env, title="Learning: scores while training"))
        names = " and ".join(trace.name for trace in widget.data)
        super().__init__([self.stop, widget], widget, f"{names} over the updates")

    def show(self, progress: Progress) -> None:
        """Refresh the status line, and the curve when there is a new score."""
        if progress.metrics or progress.score:
            rate = progress.number / max(progress.seconds, 1e-9)
            rest = (progress.target - progress.number) / rate if progress.target else 0
            text = f"update {progress.number} of {progress.target}, {rate:.0f} per second, {rest:.0f} s to go"
            write_status(self.stop.status, text)
        if progress.score:
            self.draw()

    def draw(self) -> None:
        """Redraw the curve from all scores so far."""
        curves = training_curves(self.run.config.env, self.run.recorder.rows)
        with self.figure.batch_update():
            for trace, curve in zip(self.figure.data, curves.data, strict=True):
                trace.x, trace.y = curve.x, curve.y


def training_curves(env: Any, rows: Sequence[Mapping[str, float]] = (), title: str = "") -> go.Figure:
    """Draw the metrics that the ``score`` of an environment weighs over the updates of a run.

    Of ``rows`` those with ``eval/NAME`` of a metric become points.
    """
    metrics = [metric for metric in env.metrics if metric.name in env.score]
    shares = all(metric.over in PARTS and not metric.unit for metric in metrics)
    units = ", ".join(dict.fromkeys(metric.unit or metric.name for metric in metrics))
    figure = blank(title, "updates", "share of episodes or steps" if shares else units)
    for number, metric in enumerate(metrics):
        scored = [row for row in rows if f"eval/{metric.name}" in row]
        figure.add_scatter(
            x=[row["update"] for row in scored],
            y=[row[f"eval/{metric.name}"] for row in scored],
            name=f"{metric.name.replace('_', ' ')} ({metric.unit or PARTS.get(metric.over, metric.over)})",
            mode="lines+markers",
            **pen(number),
        )
    figure.update_xaxes(rangemode="tozero")
    return figure.update_yaxes(range=[-0.02, 1.02]) if shares else figure
