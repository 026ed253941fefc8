"""The page of a sweep: means, performance profiles, a search in its order, and all trials."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from uavlab.core.installation import program
from uavlab.core.statistics import ends_text, rescale
from uavlab.experiment.names import trust_option
from uavlab.sweeps.driver import TRIALS, Row
from uavlab.sweeps.table import ALL, Summary, SweepTable, settings_text
from uavlab_lab.intervals import profile
from uavlab_lab.page import Page
from uavlab_lab.plots.charts import Table, list_downwards
from uavlab_lab.plots.style import add_curve, blank, in_lines, pen, plain, short
from uavlab_lab.plots.views import views

NAME = "report.html"  # in the folder of a sweep
STEPS = 101  # thresholds of a profile
MOST_CURVES, MOST_ROWS = 5, 30  # profiles, and means, in one figure
NAME_LINE = 30  # characters of a line of settings beside a mean
SCORED = (
    "{} of {} trials have a score: that of the best policy of each, on {} episodes that chose no policy. "
    "Higher is better."
)
MEANS = (
    "Of fewer than ten seeds of a preset, the plain mean with Student's 95 % interval; of more, the mean without the "
    "lowest and the highest quarter of the scores, with that of a bootstrap over seeds, stratified by preset."
)
PROFILES = (
    "The share of trials with a score above each threshold, with 95 % intervals at each: of a bootstrap over seeds, or "
    "exact ones of a share where a preset has fewer than ten. Settings whose line is above "
    "another one everywhere are better at every threshold."
)


def write_sweep_report(table: SweepTable) -> Path:
    """Write the page of a sweep into its folder, over an older one, and return it."""
    page = Page(f"Sweep {table.folder.name}")
    page.add("h1", page.title)
    count = len(table.rows) - len(table.failed)
    page.add("p", SCORED.format(count, len(table.rows), table.sweep.episodes))
    for text in table.notes:
        page.add("p", f"{text[0].upper()}{text[1:]}.", "note")
    if table.failed:
        page.add("h2", "Trials without a score")
        page.add_table(Table(["trial", "status", "reason"], _failures(table)))
    if count:
        _add_figures(page, table)
    page.add("h2", "Trials")
    page.add_table(_all_trials(table), f"All {len(table.rows)} trials")
    page.add("h2", "The sweep")
    page.add("pre", json.dumps(table.sweep.stored(), indent=1))
    page.add("p", "A folder of a trial is a run:")
    page.add("pre", "\n".join(_commands(table, table.rows[0])))
    path = table.folder / NAME
    page.write(path)
    return path


def _commands(table: SweepTable, row: Row) -> list[str]:
    """Return commands for the run of a trial; code that its folder alone may not start is named."""
    name, folder = row["preset"], str(table.folder / TRIALS / row["trial"])
    return [f"{program()} {shlex.join([*trust_option(name), command, folder])}" for command in ("evaluate", "report")]


def _failures(table: SweepTable) -> list[list[str]]:
    return [[row["trial"], str(row["status"]), row["reason"]] for row in table.failed]


def _add_figures(page: Page, table: SweepTable) -> None:
    presets = list(dict.fromkeys(each.preset for each in reversed(table.summaries)))[::-1]
    presets.sort(key=lambda name: name != ALL)
    page.add("h2", "Means over seeds")
    page.add("p", MEANS)
    own = {name: [each for each in table.summaries if each.preset == name] for name in presets}
    page.add_figure(views(lambda preset: _means(own[preset]), preset=presets))
    rows = [[e.preset, e.settings, f"{e.scored} of {e.trials}", ends_text(e.mean), e.method] for e in table.summaries]
    page.add_table(Table(["preset", "settings", "seeds", "score", "by"], rows), "As a table")
    if table.sweep.search:
        page.add("h2", "The search")
        if means := _proposals(table):
            page.add_figure(_search(means))
        else:
            page.add("p", "No proposal has a score in each of its trials.")
    page.add("h2", "Performance profiles")
    page.add("p", PROFILES)
    page.add_figure(views(lambda preset: _profiles(table, own[preset]), preset=presets))


def _means(summaries: Sequence[Summary]) -> go.Figure:
    """Draw the means of the best combinations, the best on top, with their intervals."""
    best = _ranked(summaries)[:MOST_ROWS]
    names = [in_lines(each.settings, NAME_LINE) for each in best]
    ends = [each.mean for each in best if each.mean is not None]
    scale = "score, 0 to 1 in each preset" if summaries[0].preset == ALL else "score"
    title = f"Best: {best[0].settings}, {ends_text(best[0].mean)}" if best else ""
    figure = blank(title, f"mean of the {scale}", height=130 + 34 * max(len(best), 2))
    figure.add_scatter(
        x=short(mean for mean, _, _ in ends),
        y=names,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": short(high - mean for mean, _, high in ends),
            "arrayminus": short(mean - low for mean, low, _ in ends),
        },
        mode="markers",
        marker={**pen(0)["marker"], "size": 10},
        showlegend=False,
    )
    return list_downwards(figure, names)


def _ranked(summaries: Sequence[Summary]) -> list[Summary]:
    scored = [each for each in summaries if each.mean is not None]
    return sorted(scored, key=lambda each: each.mean[0] if each.mean else 0.0, reverse=True)


def _profiles(table: SweepTable, summaries: Sequence[Summary]) -> go.Figure:
    """Draw the profiles of the best combinations, over scores on the scale of each preset."""
    best = _ranked(summaries)[:MOST_CURVES]
    title = f"The {len(best)} best of {len(summaries)}" if len(best) < len(summaries) else "Share of trials by score"
    figure = blank(title, "threshold: 0 is the lowest score of the scale, 1 the highest", "share of trials above it")
    thresholds = [step / (STEPS - 1) for step in range(STEPS)]
    for number, each in enumerate(best):
        strata = each.strata
        if each.preset != ALL:
            strata = tuple(tuple(rescale(scores, *table.scale[each.preset])) for scores in strata)
        add_curve(figure, number, plain(each.settings), short(thresholds), profile(strata, thresholds))
    figure.update_traces(mode="lines")
    return figure.update_yaxes(range=[-0.02, 1.02])


def _proposals(table: SweepTable) -> dict[int, tuple[str, float]]:
    """Return settings and mean score of each proposal of a search whose trials all have one, by its number."""
    own: dict[str, list[Any]] = {}
    for row in table.rows:
        own.setdefault(settings_text(row), []).append(row.get("score"))
    each = enumerate(own.items(), 1)
    return {number: (name, sum(scores) / len(scores)) for number, (name, scores) in each if None not in scores}


def _search(proposals: dict[int, tuple[str, float]]) -> go.Figure:
    """Draw the mean score of each proposal in the order of the search, and the best so far."""
    numbers, names, means = [*proposals], *zip(*proposals.values(), strict=True)
    best = [max(means[: at + 1]) for at in range(len(means))]
    figure = blank(f"Best: {names[means.index(best[-1])]}", "proposal", "mean score over presets and seeds")
    figure.update_xaxes(dtick=-(-numbers[-1] // 10))  # whole numbers
    figure.add_scatter(x=numbers, y=short(means), mode="markers", name="proposal", text=[*map(plain, names)], **pen(0))
    return figure.add_scatter(x=numbers, y=short(best), mode="lines", name="best so far", line={**pen(1)["line"]})


def _all_trials(table: SweepTable) -> Table:
    heads = ["trial", "preset", "settings", "seed", "status", "score", "updates", "seconds", "digest"]
    rows = [
        [
            row["trial"],
            row["preset"],
            settings_text(row),
            str(row["seed"]),
            str(row["status"]),
            "-" if row.get("score") is None else f"{row['score']:.4f}",
            str(row.get("updates", "-")),
            str(row.get("seconds", "-")),
            str(row.get("digest", "-"))[:12],
        ]
        for row in table.rows
    ]
    return Table(heads, rows)
