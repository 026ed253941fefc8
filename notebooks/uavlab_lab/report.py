"""The report of runs: one page with scores, curves, a flight, settings, machine and commands, from what is stored."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from uavlab.core.errors import ConfigError
from uavlab.core.installation import invocation, program
from uavlab.core.text import quote
from uavlab.experiment.config import parts
from uavlab.experiment.names import trust_option
from uavlab.experiment.run_dir import read_config
from uavlab.experiment.scores import Scores
from uavlab.experiment.settings import describe_settings
from uavlab.storage.files import require_writable
from uavlab_lab.comparison import differences, figure_name, name_runs, scores_while_training
from uavlab_lab.page import Page
from uavlab_lab.plots.charts import Table, lines
from uavlab_lab.plots.views import views
from uavlab_lab.run_files import RunFiles, Scoring
from uavlab_lab.seeds import NO_METRIC, Log, describe, group_runs, seeds_of

SCALES = ((120, 1, "s"), (7200, 60, "min"), (math.inf, 3600, "h"))  # of times, by their largest seconds


def write_report(folders: Sequence[Path], path: Path | None, scoring: Scoring) -> tuple[Path, list[str]]:
    """Evaluate the policies of runs and write the page, over an older one.

    ``path`` None stands for ``report.html`` in the folder of the run, of several in the folder above the first.

    Returns:
        The page, and what is missing on it, and why.
    """
    path = path or (folders[0] if len(folders) == 1 else folders[0].parent) / "report.html"
    if path.is_dir():
        raise ConfigError(f"report: {quote(str(path))} is a folder; name a file in it.")
    names = [folder.resolve().name for folder in folders]
    runs = [
        RunFiles(folder, str(folder) if names.count(name) > 1 else name, read_config(folder), scoring)
        for folder, name in zip(folders, names, strict=True)
    ]
    require_writable(path)
    page = Page(f"Report of {', '.join(run.name for run in runs)}")
    page.add("h1", page.title)
    heads = ["run", "task", "learner", "seeds", "status", "updates", "training", "machine"]
    page.add_table(Table(heads, [_summary(run) for run in runs]))
    for environment in dict.fromkeys(run.environment for run in runs):
        page.add("h2", f"Results: {environment}")
        _add_results(page, [run for run in runs if run.environment == environment])
    for run in runs:
        _add_run(page, run)
    page.add("p", f"This page: {invocation() or 'written from Python'}.")
    page.write(path)
    return path, [f"{run.name}: {note}" for run in runs for note in run.notes]


def _summary(run: RunFiles) -> list[str]:
    """Return the row of a run in the overview."""
    status, settings = run.status, run.config.run
    state = str(status.get("status", "unknown"))
    target = f" of {settings.updates:,}" if settings.updates else ""
    return [
        run.name,
        run.config.preset,
        run.config.task.learner,
        ", ".join(map(str, seeds_of(run))),
        f"exported copy of a run: {state}" if run.exported else state,
        f"{status['update']:,}{target}" if isinstance(status.get("update"), int) else "unknown",
        _duration(status.get("seconds")),
        str(run.machine.get("device", "unknown")),
    ]


def _duration(seconds: Any) -> str:
    if not isinstance(seconds, int | float):
        return "unknown"
    size, unit = next(((size, unit) for end, size, unit in SCALES if seconds < end), (1, "s"))
    return f"{seconds / size:.{1 if size > 1 else 0}f} {unit}"


def _add_results(page: Page, runs: Sequence[RunFiles]) -> None:
    """Add scores, learning curves and differences of the runs of one environment."""
    groups, env = group_runs(runs), runs[0].config.env
    for text in describe(groups):
        page.add("p", text)
    results = [(group.name, group.scores) for group in groups if group.scores is not None]
    if results:
        page.add("h3", "Scores of the best policies")
        page.add_table(_score_table(results, env))
        page.add("p", _describe_scoring(runs[0], [scores for _, scores in results]))
    logs = [log for group in groups for log in group.logs]
    curves = scores_while_training(logs, [*env.score])
    if curves is not None:
        page.add("h3", "Scores while training")
        page.add_figure(curves)
    logged = dict.fromkeys(key for log in logs for row in log.rows for key in row)
    metrics = [name for name in logged if name not in NO_METRIC and not name.startswith("eval/")]
    if metrics:
        page.add("h3", "What training logged")
        names = {name if "/" in name else f"train/{name}": name for name in metrics}  # as in TensorBoard
        page.add_figure(views(lambda metric: _logged(logs, names[metric]), metric=list(names)))
    if not (results or curves or metrics):
        page.add("p", "There is no score and no metric.", "note")
    if len(runs) > 1:
        page.add("h3", "Settings that differ")
        if (differ := differences(groups)).rows:
            page.add_table(differ)
        else:
            page.add("p", "These runs have equal settings, machines and versions.")


def _score_table(results: Sequence[tuple[str, Scores]], env: Any) -> Table:
    """Return a row for each figure, with a column for each run or group of runs."""
    flat = [scores.flat() for _, scores in results]
    units = {name: unit for _, scores in results for name, unit in scores.units.items()}
    names = dict.fromkeys(name for rows in flat for name in rows)
    cells = [[figure_name(name, env, units), *(_interval(rows.get(name)) for rows in flat)] for name in names]
    return Table(["figure", *(name for name, _ in results)], cells)


def _interval(row: Mapping[str, float] | None) -> str:
    return "-" if row is None else f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _describe_scoring(run: RunFiles, results: Sequence[Scores]) -> str:
    """Return what the scores were measured on, and what their intervals are over."""
    how, counts = run.scoring, ", ".join(dict.fromkeys(result.count for result in results))
    act = "the mean action" if how.mean_action else "sampled actions"
    seed = f", {act}, episodes of seed {how.seed}" if run.flies else ""
    whole = "episodes" if run.flies else "flights"
    return (
        f"Each seed of a run was scored on {counts}{seed}. Brackets are 95 % intervals: of one seed over its {whole}, "
        "of several seeds over the seeds."
    )


def _logged(logs: Sequence[Log], metric: str) -> go.Figure:
    """Draw what training logged under a name; the axis need not begin at zero."""
    rows = [{"run": log.name, **row} for log in logs for row in log.rows if metric in row]
    figure = lines(rows, "update", metric, by="run", x_axis="updates", y_axis=metric.replace("_", " "))
    figure.update_xaxes(tickvals=None, rangemode="tozero")
    return name_runs(figure.update_yaxes(rangemode="normal").update_traces(mode="lines"), logs)


def _add_run(page: Page, run: RunFiles) -> None:
    """Add what concerns one run alone."""
    picture = run.flight  # first, because it may add a note
    page.add("h2", run.name)
    for note in (*run.remarks, *run.notes):
        page.add("p", note, "note")
    if run.trained is not None:
        count, size = run.trained.parameters.shape[1:]
        update = ", ".join(f"{each:,}" if each >= 0 else "unknown" for each in run.trained.updates)
        networks = f"{count} network{'s' if count > 1 else ''} of {size:,} parameters"
        page.add("p", f"The best policy of each seed: {networks}, of update {update}.")
    if picture is not None:
        page.add("h3", f"A flight of seed {run.config.run.seed}")
        page.add_figure(picture)
    page.add("h3", "Commands")
    page.add("pre", "\n".join(_commands(run)))
    facts = {key: value for key, value in run.machine.items() if value not in (None, [])}
    if facts:
        page.add("h3", "Machine and versions")
        page.add_table(Table(["", "trained on"], [[key, _fact(value)] for key, value in facts.items()]))
    values = run.config.values
    rows = describe_settings(parts(run.config.task.settings), values)
    changed = {name: value for name, value in values.items() if name.startswith("eval_") and value is not None}
    rows += [{"name": name, "value": value, "kind": "", "meaning": "When scored."} for name, value in changed.items()]
    texts = [[str(row[key]) for key in ("name", "value", "kind", "meaning")] for row in rows]  # raw, as one types them
    page.add_table(Table(["setting", "value", "range", "meaning"], texts), f"All {len(rows)} settings")


def _commands(run: RunFiles) -> list[str]:
    """Return the commands that made a run, and that resume, evaluate and draw it."""
    how, folder = run.scoring, str(run.folder)
    options = [*(["--seed", str(how.seed)] if how.seed else ()), *(["--mean-action"] if how.mean_action else ())]
    commands = [] if run.exported else [["resume", folder]]
    commands.append(["evaluate", folder, "--episodes", str(how.episodes), *options])
    commands += [["fly", folder, *options]] if run.flies else []
    first = str(run.status.get("command") or "# started from Python, with the settings below")
    trusted = trust_option(run.config.preset)
    return [first, *(f"{program()} {shlex.join([*trusted, *words])}" for words in commands)]


def _fact(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
