"""Runs beside each other: learning curves with intervals over seeds, scores, and the settings in which they differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from IPython.display import display

from uavlab.core.errors import ConfigError
from uavlab.core.statistics import Ends, ends_text, student
from uavlab.core.text import one_line
from uavlab.experiment.run import Run
from uavlab_lab.comparison import differences, over_seeds, scores_while_training
from uavlab_lab.labels import label_of
from uavlab_lab.plots.tables import Table
from uavlab_lab.run_files import open_runs
from uavlab_lab.seeds import Group, Log, describe, group_runs, scores_in_training, seeds_of, values_of
from uavlab_lab.widgets import paragraphs, scroll_box


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
