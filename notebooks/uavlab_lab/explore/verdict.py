"""The verdict on a run: how far it is and how good, what ails it, and how policies without learning do."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from uavlab.core.statistics import Ends, ends_text, student
from uavlab.core.text import one_line
from uavlab.experiment import scores
from uavlab.experiment.config import Config
from uavlab.experiment.diagnostics import SCORE
from uavlab.experiment.run import Run
from uavlab_lab.comparison import over_seeds
from uavlab_lab.labels import label_of
from uavlab_lab.plots.learners import score_text
from uavlab_lab.plots.tables import Table
from uavlab_lab.run_files import RunFiles, Scoring, open_run
from uavlab_lab.seeds import scores_in_training, values_of
from uavlab_lab.widgets import paragraphs, scroll_box

Column = Mapping[str, Ends]
"""Figures of a policy by name: mean, low, high."""


@dataclass(frozen=True, repr=False)
class Verdict:
    """Sentences on a run and a table of its figures; a notebook shows them as HTML, ``print`` as text.

    Attributes:
        sentences: From how far it is to what is missing here.
        table: A row for each figure of evaluations; a column for the last score, and for each policy to compare with.
    """

    sentences: tuple[str, ...]
    table: Table

    def __repr__(self) -> str:
        """Return a line for each sentence and each row."""
        return "\n".join([*map(one_line, self.sentences), *([repr(self.table)] if self.table.rows else [])])

    def _repr_html_(self) -> str:
        table = scroll_box(self.table._repr_html_(), "figures of the run") if self.table.rows else ""
        return paragraphs(self.sentences) + table


def verdict(run: Run | str | Path, episodes: int = 0, seed: int = 0) -> Verdict:
    """Return the verdict on a run, finished or not; nothing of it is changed.

    With ``episodes`` the best policy and all baselines are scored in equal episodes, which takes seconds to minutes.

    Args:
        run: A run of this process, or a folder.
        episodes: Episodes of each seed; 0 scores nothing.
        seed: Seed of these episodes.

    Raises:
        FileError: The folder is no run, or its settings are damaged.
        ConfigError: It is no run, its environment is not registered here, or a number is out of range.
    """
    files = open_run(run)
    columns, how = {"last score in training": _last(files)}, ""
    if episodes:
        files.scoring = Scoring(episodes, seed)
        columns |= _measured(files)
        how = f"Best policy and baselines: {files.config.task.evaluation.count.format(episodes)} of seed {seed}."
    columns = {name: column for name, column in columns.items() if column}
    end = "Brackets are 95 % intervals." if len(columns) > 1 else ""
    sentences = [*_progress(files), _rank(files.config, columns), *_health(files), how, end, *files.notes]
    return Verdict(tuple(filter(None, sentences)), _table(files.config, columns))


def _measured(files: RunFiles) -> dict[str, Column]:
    """Score the best policy and each baseline in equal episodes; what fails leaves a note."""
    how, columns = files.scoring, {}
    own = files.figures and files.summarize(files.figures)
    columns["best policy"] = _column(own.flat()) if own else {}
    for name in scores.baselines(files.config):
        score = partial(scores.evaluate_baseline, files.config, name, how.episodes, how.seed)
        each = files.attempt(name, score)
        columns[name] = _column(each.flat()) if each else {}
    return columns


def _column(figures: Mapping[str, Any]) -> Column:
    ends = ("mean", "low", "high")
    return {
        name: (each["mean"], each["low"], each["high"])
        for name, each in figures.items()
        if isinstance(each, dict) and all(isinstance(each.get(end), int | float) for end in ends)
    }


def _last(files: RunFiles) -> Column:
    """Return the newest score of each figure, with its interval over seeds."""
    rows = {name.removeprefix(SCORE): row for row in files.rows for name in row if name.startswith(SCORE)}
    env = files.config.evaluation
    return {name: over_seeds(values_of(row, SCORE + name), name, env) for name, row in rows.items()}


def _table(config: Config, columns: Mapping[str, Column]) -> Table:
    units = config.task.evaluation.units(config.evaluation)
    rows = []
    for name in columns.get("last score in training") or next(iter(columns.values()), {}):
        unit = f" ({units[name]})" if units.get(name) else ""
        figure = f"{label_of(name, config.env)}{unit}"
        rows.append([figure, *(ends_text(column.get(name)) for column in columns.values())])
    return Table(["figure", *columns], rows)


def _progress(files: RunFiles) -> list[str]:
    """Return how far a run is, how fast it was, and its last and highest score in training."""
    status, config = files.status, files.config
    update, seconds = status.get("update"), status.get("seconds")
    target = f" of {config.run.updates:,}" if config.run.updates else ""
    where = f", update {update:,}{target}" if isinstance(update, int) else ""
    rate = files.attempt("rate", partial(_rate, update, seconds)) or ""
    learner = config.task.learner
    head = f"{files.name} trains {config.preset} by {learner}: {status.get('status', 'unknown')}{where}.{rate}"
    each = [one for one in scores_in_training(files.rows, config.evaluation.score, config.run.runs) if one]
    if not each:
        return [head, "An exported copy has no scores of training." if files.exported else "It was not scored yet."]
    last, highest = (ends_text(student([pick(one) for one in each])) for pick in (lambda one: one[-1], max))
    over = f", mean over {len(each)} seeds" if len(each) > 1 else ""
    ends = f"Its last score in training is {last}, the highest of {len(each[0])} is {highest}"
    return [head, f"{ends} ({score_text(config.evaluation.score)}{over}; higher is better)."]


def _rate(update: Any, seconds: Any) -> str:
    known = isinstance(update, int) and isinstance(seconds, int | float) and seconds > 0
    return f" It makes {update / seconds:.3g} updates per second." if known else ""


def _rank(config: Config, columns: Mapping[str, Column]) -> str:
    """Return the score of each column in one sentence; empty if there is nothing to compare."""
    weights = config.evaluation.score
    full = {name: column for name, column in columns.items() if all(metric in column for metric in weights)}
    if len(full) < 2:
        return ""
    values = {name: sum(w * column[metric][0] for metric, w in weights.items()) for name, column in full.items()}
    return "Scores: " + ", ".join(f"{name} {value:.3f}" for name, value in values.items()) + "."


def _health(files: RunFiles) -> list[str]:
    """Return what ails a run, or that nothing does; of a run without a status nothing is known."""
    if not files.status:
        return []
    ended = [f"It ended because: {files.status['reason']}"] if files.status.get("reason") else []
    return [
        *ended,
        *(files.symptoms or ["No symptom of training that fails was seen."]),
        *(files.fell_back or ["No toggle fell back."]),
        *(files.not_exact or ["It can be repeated bit for bit on this machine."]),
    ]
