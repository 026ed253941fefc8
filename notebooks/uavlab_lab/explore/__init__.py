"""Exploring in JupyterLab, beside a run that trains in a cell.

    compare_runs   learning curves with intervals, scores, and settings that differ, of runs or folders
    verdict        how far a run is and how good, and what ails it
    flight_of      a flight of the newest policy of a run, also while it trains

They take a run of this process or a folder, and change neither.
"""

from uavlab.core.extras import require

require("lab", "figures", "plotly", "ipywidgets")

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from IPython.display import display

from uavlab.core.errors import ConfigError
from uavlab.core.statistics import Ends, ends_text, student
from uavlab.core.text import one_line, quote
from uavlab.experiment import policy
from uavlab.experiment.diagnostics import SCORE
from uavlab.experiment.names import run_folder
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import newest_meta
from uavlab_lab.comparison import differences, figure_name, over_seeds, scores_while_training
from uavlab_lab.labels import label_of
from uavlab_lab.plots import flight
from uavlab_lab.plots.learners import score_text
from uavlab_lab.plots.tables import Table
from uavlab_lab.run_files import RunFiles, open_run, open_runs
from uavlab_lab.seeds import Group, describe, group_runs, scores_in_training, seeds_of, values_of
from uavlab_lab.widgets import paragraphs, scroll_box

WELL = "No symptom of training that fails, no toggle that fell back, and it can be repeated bit for bit here."


@dataclass(frozen=True, repr=False)
class Findings:
    """What was found about runs; a notebook shows all of it, ``print`` the sentences and the tables.

    Attributes:
        sentences: Text, a paragraph each.
        tables: By name; those without rows are not shown.
        figure: A picture, if there is one.
    """

    sentences: Sequence[str]
    tables: Mapping[str, Table]
    figure: go.Figure | None = None

    def _ipython_display_(self) -> None:
        if self.figure is not None:
            display(self.figure)
        display({"text/html": self._repr_html_(), "text/plain": repr(self)}, raw=True)

    def _repr_html_(self) -> str:
        tables = [scroll_box(table._repr_html_(), name) for name, table in self.tables.items() if table.rows]
        return "".join([paragraphs(self.sentences), *tables])

    def __repr__(self) -> str:
        """Return a line for each sentence and each row."""
        tables = [repr(table) for table in self.tables.values() if table.rows]
        return "\n".join([*map(one_line, self.sentences), *tables])


def compare_runs(*runs: Run | str | Path) -> Findings:
    """Compare runs of this process and in folders, finished or not.

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
    groups = group_runs(opened)
    logs = [log for group in groups for log in group.logs]
    names = dict.fromkeys(name for group in groups for name in group.runs[0].config.evaluation.score)
    metrics = [name for name in names if any(SCORE + name in row for log in logs for row in log.rows)]
    heads = ["run", "seeds", "status", "updates", "last score in training"]
    heads += [f"last {label_of(name)}" for name in metrics]
    scores = Table(heads, [_score_row(group, metrics) for group in groups])
    unread = [f"{run.name}: {note}" for run in opened for note in run.notes]
    notes = [*describe(groups), *unread, *(f"Left out: {why}" for why in left_out)]
    tables = {"scores": scores, "settings that differ": differences(groups)}
    return Findings(notes, tables, scores_while_training(logs, metrics))


def _score_row(group: Group, metrics: Sequence[str]) -> list[str]:
    """Return the row of a group in the table of scores: its last ones, because the highest would be one of luck."""
    runs, config = group.runs, group.runs[0].config
    curves = [curve for run in runs for curve in _scores(run)]
    cells: list[Ends | None] = [student([curve[-1] for curve in curves]) if curves else None]
    for name in (SCORE + metric for metric in metrics):
        last = [row for run in runs for row in [next((r for r in reversed(run.rows) if name in r), None)] if row]
        values = [value for row in last for value in values_of(row, name)]
        cells.append(over_seeds(values, name.removeprefix(SCORE), config.evaluation) if values else None)
    return [
        group.name,
        ", ".join(str(seed) for run in runs for seed in seeds_of(run)),
        ", ".join(dict.fromkeys(str(run.status.get("status", "unknown")) for run in runs)),
        ", ".join(dict.fromkeys(str(run.status.get("update", "unknown")) for run in runs)),
        *map(ends_text, cells),
    ]


def verdict(run: Run | str | Path) -> Findings:
    """Return how far a run is, how good its last scores are, and what ails it.

    Raises:
        FileError: The folder is no run, or its settings are damaged.
        ConfigError: It is no run, or its environment is not registered here.
    """
    files = open_run(run)
    env, units = files.config.evaluation, files.config.task.evaluation.units(files.config.evaluation)
    last = {name.removeprefix(SCORE): row for row in files.rows for name in row if name.startswith(SCORE)}
    ends = {name: over_seeds(values_of(row, SCORE + name), name, env) for name, row in last.items()}
    rows = [[figure_name(name, env, units), ends_text(each)] for name, each in ends.items()]
    health = (files.remarks or [WELL]) if files.status else []  # of a run without a status nothing is known
    table = Table(["figure", "last score in training"], rows)
    return Findings([*_progress(files), *health, *files.notes], {"figures of the run": table})


def _progress(files: RunFiles) -> list[str]:
    """Return how far a run is, how fast it was, and its last and highest score in training."""
    status, config = files.status, files.config
    update, seconds = status.get("update"), status.get("seconds")
    target = f" of {config.run.updates:,}" if config.run.updates else ""
    where = f", update {update:,}{target}" if isinstance(update, int) else ""
    rate = files.attempt("rate", partial(_rate, update, seconds)) or ""
    learner = config.task.learner
    head = f"{files.name} trains {config.preset} by {learner}: {status.get('status', 'unknown')}{where}.{rate}"
    if not (each := _scores(files)):
        return [head, "An exported copy has no scores of training." if files.exported else "It was not scored yet."]
    last, highest = (ends_text(student([pick(one) for one in each])) for pick in (lambda one: one[-1], max))
    over = f", mean over {len(each)} seeds" if len(each) > 1 else ""
    ends = f"Its last score in training is {last}, the highest of {len(each[0])} is {highest}"
    return [head, f"{ends} ({score_text(config.evaluation.score)}{over}; higher is better)."]


def _rate(update: Any, seconds: Any) -> str:
    known = isinstance(update, int) and isinstance(seconds, int | float) and seconds > 0
    return f" It makes {update / seconds:.3g} updates per second." if known else ""


def _scores(run: RunFiles) -> list[list[float]]:
    """Return the scores in training of each seed that has any."""
    return [one for one in scores_in_training(run.rows, run.config.evaluation.score, run.config.run.runs) if one]


def flight_of(run: Run | str | Path, seed: int = 0) -> go.Figure:
    """Return an animated flight by the parameters of a run as they are now, not by the best ones so far.

    The run goes on as if nobody had looked: the flight has random streams of its own. Of a folder, the newest
    checkpoint flies.

    Raises:
        ConfigError: The task has no team that flies, it is no run, or the seed is no whole number from 0 up.
        FileError: The folder is no run, or has no intact checkpoint.
    """
    if not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"flight_of: got seed={quote(seed)}; expected a whole number from 0 up.")
    trained = run.trained("last") if isinstance(run, Run) else _newest(run_folder(run))
    return flight.animate(trained.config.evaluation, [*policy.fly(trained, seed)])


def _newest(folder: Path) -> policy.TrainedPolicy:
    """Return the newest policy of a folder; an exported copy has one alone."""
    return policy.load(folder, which="best" if newest_meta(folder).get("exported") else "last")
