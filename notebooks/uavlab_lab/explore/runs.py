"""Runs beside each other: learning curves with intervals over seeds, scores, and the settings in which they differ."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go
from IPython.display import display

from uavlab.core.errors import ConfigError, UavlabError
from uavlab.core.statistics import Ends, ends_text, student
from uavlab.core.text import one_line, quote
from uavlab.experiment.names import read_settings
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import CONFIG, read_status
from uavlab_lab.comparison import OVER, curve, differences, over_seeds, scores_while_training
from uavlab_lab.labels import label_of, unit_of
from uavlab_lab.plots.svg import bounds, line_chart
from uavlab_lab.plots.tables import Table
from uavlab_lab.run_files import open_runs
from uavlab_lab.seeds import Group, Log, describe, group_runs, scores_in_training, seeds_of, values_of
from uavlab_lab.widgets import Panel, guard, paragraphs, scroll_box, write_status

MOST = 500  # runs in a list


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs beside each other; a notebook shows the figure and the tables, ``print`` the tables and the notes.

    Attributes:
        groups: The runs; those that differ by their seed alone are one group, whose seeds are pooled.
        left_out: Why others are left out.
    """

    groups: tuple[Group, ...]
    left_out: tuple[str, ...]

    @cached_property
    def logs(self) -> list[Log]:
        """Return the lines of the figure."""
        return [log for group in self.groups for log in group.logs]

    @cached_property
    def metrics(self) -> list[str]:
        """Return the figures that the scores of these runs consist of, and that one of them has."""
        names = dict.fromkeys(name for group in self.groups for name in group.runs[0].config.evaluation.score)
        return [name for name in names if any(f"eval/{name}" in row for log in self.logs for row in log.rows)]

    @cached_property
    def figure(self) -> go.Figure | None:
        """Return learning curves, means over seeds with 95 % intervals; None before the first score."""
        return scores_while_training(self.logs, self.metrics)

    @cached_property
    def scores(self) -> Table:
        """Return seeds, status, and the last scores in training of each group; the highest would be one of luck."""
        heads = ["run", "seeds", "status", "updates", "last score in training"]
        heads += [f"last {label_of(name)}" for name in self.metrics]
        return Table(heads, [_score_row(group, self.metrics) for group in self.groups])

    @cached_property
    def differences(self) -> Table:
        """Return the settings, machines and versions in which the groups differ; without rows if in none."""
        return differences(self.groups)

    @property
    def notes(self) -> list[str]:
        """Return what is pooled, what could not be read, and what is left out."""
        unread = [
            f"{run.name}: {note}" for _ in self.logs[:1] for g in self.groups for run in g.runs for note in run.notes
        ]
        return [*describe(self.groups, scored=False), *unread, *self.left_out]

    def picture(self, metric: str, over: str = "updates") -> str:
        """Draw the curves of a metric over ``updates`` or ``time`` as HTML: an SVG, and the names of its lines."""
        rows = {log.name: each for log in self.logs if (each := curve(log, metric))}
        points = {name: [(at[OVER[over]], student(at["each"][metric])) for at in each] for name, each in rows.items()}
        curves = {name: [(x, mean) for x, (mean, _, _) in each] for name, each in points.items()}
        bands = {name: [(x, low, high) for x, (_, low, high) in each] for name, each in points.items()}
        seeds = [value for each in rows.values() for at in each for value in at["each"][metric]]
        unit = unit_of(metric)
        up = f"{label_of(metric)} ({unit})" if unit else label_of(metric)
        across = {"updates": "updates", "time": "seconds of training"}[over]
        return line_chart(curves, across, up, 0, bounds(seeds), bands)

    def _ipython_display_(self) -> None:
        if self.figure is not None:
            display(self.figure)
        display({"text/html": self._repr_html_(), "text/plain": repr(self)}, raw=True)

    def _repr_html_(self) -> str:
        named = {"scores": self.scores, "settings that differ": self.differences}
        tables = [scroll_box(table._repr_html_(), name) for name, table in named.items() if table.rows]
        return "".join([*tables, paragraphs(self.notes)])

    def __repr__(self) -> str:
        """Return the tables and the notes as text."""
        return "\n".join([repr(self.scores), repr(self.differences), *map(one_line, self.notes)])


def compare_runs(*runs: Run | str | Path) -> Comparison:
    """Compare runs of this process and in folders, finished or not; nothing of them is changed.

    Runs of equal settings and other seeds are pooled, as ``uavlab report`` does. A folder that cannot be read leaves a
    note.

    Raises:
        ConfigError: There is no run, or none can be read.
    """
    if not runs:
        raise ConfigError("compare_runs: got no run; expected runs or their folders, such as compare_runs('runs/a').")
    opened, left_out = open_runs(runs)
    if not opened:
        raise ConfigError(f"compare_runs: no run can be read: {left_out[0]}")
    return Comparison(tuple(group_runs(opened)), tuple(f"Left out: {why}" for why in left_out))


def _score_row(group: Group, metrics: Sequence[str]) -> list[str]:
    """Return the row of a group in the table of scores."""
    runs, weights = group.runs, group.runs[0].config.evaluation.score
    each = [one for run in runs for one in scores_in_training(run.rows, weights, run.config.run.runs) if one]
    last_rows = [{name: row for row in run.rows for name in row} for run in runs]  # the last row with each figure
    cells: list[Ends | None] = [student([one[-1] for one in each]) if each else None]
    for name in metrics:
        key = f"eval/{name}"
        values = [value for last in last_rows if key in last for value in values_of(last[key], key)]
        cells.append(over_seeds(values, name, runs[0].config.evaluation) if values else None)
    return [
        group.name,
        ", ".join(str(seed) for run in runs for seed in seeds_of(run)),
        ", ".join(dict.fromkeys(str(run.status.get("status", "unknown")) for run in runs)),
        ", ".join(dict.fromkeys(_count(run.status.get("update")) for run in runs)),
        *map(ends_text, cells),
    ]


def _count(update: Any) -> str:
    return f"{update:,}" if isinstance(update, int) else "unknown"


def runs_below(root: Path) -> Iterator[Path]:
    """Yield the folders below ``root``, or itself, that have the settings of a run, in the order of their names."""
    for path, folders, files in os.walk(root):
        folders[:] = [] if CONFIG in files else sorted(name for name in folders if not name.startswith("."))
        if CONFIG in files:
            yield Path(path)


def describe_run(folder: Path) -> str:
    """Return preset, status and update of the run in a folder."""
    preset, status = read_settings(folder)["preset"], read_status(folder)
    return f"{preset}, {status.get('status', 'unknown')}, update {_count(status.get('update'))}"


class RunComparer(Panel):
    """The runs below a folder to choose from, and what ``compare_runs`` returns of those that are chosen.

    Attributes:
        comparison: The newest one; None before the first.
    """

    def __init__(self, root: str | Path = "runs") -> None:
        """List the runs below ``root``.

        Raises:
            ConfigError: ``root`` is no path.
        """
        if not isinstance(root, str | Path):
            raise ConfigError(f"RunComparer: got {quote(root)}; expected a folder with runs in it, such as 'runs'.")
        self.root = Path(root).expanduser()
        self.comparison: Comparison | None = None
        wide, wrapping = widgets.Layout(width="auto"), widgets.Layout(flex_flow="row wrap")
        self.runs = widgets.SelectMultiple(description="runs", rows=8, layout=wide, tooltip="Ctrl or Shift for several")
        self.refresh = widgets.Button(description="Refresh", tooltip="Read the list of runs again")
        self.compare = widgets.Button(description="Compare", tooltip="Draw the runs that are chosen")
        self.metric = widgets.Dropdown(description="metric", disabled=True, tooltip="What the curves show")
        self.over = widgets.Dropdown(options=[*OVER], description="over", tooltip="What the curves are drawn over")
        self.status, self.notes, self.shown, self.tables = (widgets.HTML() for _ in range(4))
        row = widgets.Box([self.compare, self.refresh, self.metric, self.over], layout=wrapping)
        super().__init__([self.runs, self.notes, row, self.status, self.shown, self.tables], "runs to compare")
        self.refresh.on_click(guard(self.status)(self._list))
        self.compare.on_click(guard(self.status)(self._compare_chosen))
        for choice in (self.metric, self.over):
            choice.observe(guard(self.status)(self._draw), "value")
        guard(self.status)(self._list)()

    def _list(self, _: Any = None) -> None:
        """List the runs; those that were chosen stay so."""
        chosen, options, notes = self.runs.value, [], []
        for folder in islice(runs_below(self.root), MOST):
            try:
                name = folder.relative_to(self.root) if folder != self.root else folder.name
                options.append((one_line(f"{name}: {describe_run(folder)}"), str(folder)))
            except UavlabError as error:
                notes.append(f"Left out: {error}")
        self.runs.options = options
        self.runs.value = [folder for _, folder in options if folder in chosen]
        self.notes.value = paragraphs(notes)
        more = f"the first {MOST} alone" if len(options) + len(notes) == MOST else f"{len(options)} runs"
        left = f", {len(notes)} left out" if notes else ""
        write_status(self.status, f"{self.root}: {more}{left}" if options else f"{self.root}: no run in it{left}")

    def _compare_chosen(self, _: Any) -> None:
        if not self.runs.value:
            raise ConfigError("no run is chosen; choose one or several in the list.")
        self.comparison = comparison = compare_runs(*map(Path, self.runs.value))
        before, names = self.metric.value, comparison.metrics
        self.metric.options = [(label_of(name), name) for name in names]
        self.metric.value = before if before in names else next(iter(names), None)
        self.metric.disabled = not names
        self._draw()

    def _draw(self, _: Any = None) -> None:
        """Draw the comparison by the metric and the axis that are chosen."""
        if self.comparison is None:
            return
        metric, count = self.metric.value, sum(len(group.runs) for group in self.comparison.groups)
        self.shown.value = self.comparison.picture(metric, self.over.value) if metric else ""
        self.tables.value = self.comparison._repr_html_()
        what = f"{count} runs compared" + ("" if metric else "; none was scored yet")
        equal = len(self.comparison.groups) > 1 and not self.comparison.differences.rows
        write_status(self.status, f"{what}; their settings are equal" if equal else what)
