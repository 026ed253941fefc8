"""Runs beside each other: their scores while training as curves with intervals, and the settings in which they differ.

Reports and widgets share these functions; ``uavlab_lab.seeds`` pools runs that differ by their seed alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab.core.statistics import Ends, student
from uavlab.evaluation import COMMON
from uavlab_lab.labels import label_of
from uavlab_lab.plots.charts import Table, learning_curves
from uavlab_lab.plots.style import plain, words
from uavlab_lab.plots.views import views
from uavlab_lab.run_files import RunFiles
from uavlab_lab.seeds import Group, Log, values_of

VERSIONS = ("device", "python", "torch", "uavlab", "code")  # of a machine: what is compared
OVER = {"updates": "update", "time": "seconds"}  # what curves are drawn over, and its key in a row


def scores_while_training(logs: Sequence[Log], metrics: Sequence[str]) -> go.Figure | None:
    """Draw metrics of evaluations over updates and over time, a line for each log that has them; None if none has."""

    def draw(metric: str, over: str) -> go.Figure:
        curves = [(log.name, each) for log in logs if (each := curve(log, metric))]
        rows = [{"setting": name, "curve": each, "first_update_s": 0.0} for name, each in curves]
        return name_runs(learning_curves(rows, metric, OVER[over]), logs)

    scored = [metric for metric in metrics if any(curve(log, metric) for log in logs)]
    return views(draw, metric=scored, over=[*OVER]) if scored else None


def curve(log: Log, metric: str) -> list[dict[str, Any]]:
    """Return the scores of a log by seed, as ``learning_curves`` takes them."""
    key = f"eval/{metric}"
    return [{**row, "each": {metric: values_of(row, key)}} for row in log.rows if key in row]


def over_seeds(values: Sequence[float], name: str, env: Any) -> Ends:
    """Return the mean of a metric over seeds with Student's interval, which ends where the metric does."""
    mean, low, high = student(values)
    known = {metric.name: metric for metric in (*getattr(env, "metrics", ()), *COMMON)}
    if name not in known:
        return mean, low, high
    least, most = (0.0, 1.0) if known[name].over == "outcome" else known[name].bounds
    return mean, max(low, least), min(high, most)


def figure_name(name: str, env: Any, units: Mapping[str, str]) -> str:
    """Return what a table calls a figure of evaluations: its label, with its unit."""
    return f"{label_of(name, env)} ({units[name]})" if units.get(name) else label_of(name, env)


def name_runs(figure: go.Figure, logs: Sequence[Log]) -> go.Figure:
    """Show the names of runs as they are, where figures show labels of names."""
    names = {words(log.name): plain(log.name) for log in logs}
    return figure.for_each_trace(lambda trace: trace.update(name=names.get(trace.name, trace.name)))


def differences(groups: Sequence[Group]) -> Table:
    """Return the settings, machines, versions and code in which runs differ, with a column for each group."""
    columns = [[_differing(run) for run in group.runs] for group in groups]
    rows = []
    for name in dict.fromkeys(name for column in columns for values in column for name in values):
        cells = [list(dict.fromkeys(str(values.get(name, "-")) for values in column)) for column in columns]
        if len({text for cell in cells for text in cell}) > 1:
            rows.append([name, *map(", ".join, cells)])
    return Table(["setting", *(group.name for group in groups)], rows)


def _differing(run: RunFiles) -> dict[str, Any]:
    """Return what may differ between runs."""
    machine = {f"machine: {key}": run.machine.get(key) for key in VERSIONS}
    return {"preset": run.config.preset, **run.config.values, **machine}
