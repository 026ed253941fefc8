"""Runs that differ by their seed alone, shown as one: their seeds are pooled like those of one run that trained them.

Runs with a seed in common are not pooled, because the same seed twice is no independent sample.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from uavlab.experiment import scores
from uavlab.experiment.scores import Scores
from uavlab_lab.run_files import RunFiles

Row = Mapping[str, Any]

NO_METRIC = {"update", "seconds", "each"}  # keys of a row of metrics


@dataclass(frozen=True)
class Log:
    """Rows of metrics under the name of their line in a figure."""

    name: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Group:
    """Runs that are shown as one; a run that has no other like it is a group of its own."""

    runs: tuple[RunFiles, ...]

    @property
    def name(self) -> str:
        """Return the name of the first run, and how many there are besides it."""
        first, others = self.runs[0].name, len(self.runs) - 1
        return f"{first} and {others} more" if others else first

    @cached_property
    def scores(self) -> Scores | None:
        """Return the scores of all seeds together, without runs whose policies could not be scored."""
        scored = [(run, run.figures) for run in self.runs if run.figures is not None]
        if not scored:
            return None
        first, _ = scored[0]
        together = first.attempt("pooled scores", lambda: scores.pool([figures for _, figures in scored]))
        return None if together is None else first.summarize(together)

    @cached_property
    def logs(self) -> list[Log]:
        """Return the rows of all seeds as one log, or that of each run if they were logged at other updates."""
        logged = [run for run in self.runs if run.rows]
        together = pool_rows([run.rows for run in logged])
        if together is None:
            return [Log(run.name, run.rows) for run in logged]
        return [Log(self.name if len(logged) > 1 else logged[0].name, together)]


def group_runs(runs: Sequence[RunFiles]) -> list[Group]:
    """Return runs in groups that differ by their seed alone, in the order of their first runs."""
    groups = []
    for some in alike(runs):
        apart = sharing(some)
        together = tuple(run for run in some if run.name not in apart)
        groups += [Group((run,)) for run in some if run.name in apart]
        groups += [Group(together)] if together else []
    order = [run.name for run in runs]
    return sorted(groups, key=lambda group: order.index(group.runs[0].name))


def alike(runs: Sequence[RunFiles]) -> list[list[RunFiles]]:
    """Return runs by what they are apart from their seeds."""
    kinds: list[tuple[Any, list[RunFiles]]] = []
    for run in runs:
        own = next((some for kind, some in kinds if kind == _kind(run)), None)
        if own is None:
            kinds.append((_kind(run), [run]))
        else:
            own.append(run)
    return [some for _, some in kinds]


def _kind(run: RunFiles) -> tuple[Any, ...]:
    """Return task, settings without the seed, and whether it was trained to its end, or to which update."""
    values = {name: value for name, value in run.config.values.items() if name != "seed"}
    status = run.status.get("status")
    return run.config.preset, run.environment, values, status if status == "complete" else run.status.get("update")


def seeds_of(run: RunFiles) -> range:
    """Return the seeds that a run trains."""
    return range(run.config.run.seed, run.config.run.seed + run.config.run.runs)


def sharing(runs: Sequence[RunFiles]) -> list[str]:
    """Return the names of the runs that have a seed in common with another one of them."""
    count = Counter(seed for run in runs for seed in seeds_of(run))
    return [run.name for run in runs if any(count[seed] > 1 for seed in seeds_of(run))]


def pool_rows(logs: Sequence[Sequence[Row]]) -> list[Row] | None:
    """Return rows of several runs as one run with all their seeds would log them; None if their updates differ.

    Metrics are means over all seeds, and ``each`` holds those of every seed; ``seconds`` is the mean over runs.
    """
    marks = {tuple((row["update"], frozenset(row) - {"each"}) for row in rows) for rows in logs}
    if len(marks) != 1:
        return None
    return list(logs[0]) if len(logs) == 1 else [_pool(rows) for rows in zip(*logs, strict=True)]


def _pool(rows: Sequence[Row]) -> Row:
    names = [name for name in rows[0] if name not in NO_METRIC]
    each = {name: [value for row in rows for value in values_of(row, name)] for name in names}
    seconds = fmean(row["seconds"] for row in rows)
    means = {name: fmean(values) for name, values in each.items()}
    return {"update": rows[0]["update"], "seconds": seconds, **means, "each": each}


def values_of(row: Row, name: str) -> Sequence[float]:
    """Return a metric of every seed, or of all together where a row has no other."""
    return (row.get("each") or {}).get(name) or [row[name]]


def scores_in_training(rows: Sequence[Row], score: Mapping[str, float], seeds: int) -> list[list[float]]:
    """Return the scores of each seed, by which it chose its policy; of a curriculum those at its highest stage so far.

    >>> rows = [{"eval/a": 1.0, "each": {"eval/a": [0.0, 2.0]}}, {"loss": 1.0}, {"eval/a": 3.0}]
    >>> scores_in_training(rows, {"a": 0.5}, 2)
    [[0.0, 1.5], [1.0, 1.5]]
    """
    scored = [row for row in rows if all(f"eval/{name}" in row for name in score)]
    stages = [[_of_seed({"eval/stage": 0.0, **row}, "eval/stage", seed) for row in scored] for seed in range(seeds)]
    return [
        [
            sum(weight * _of_seed(row, f"eval/{name}", seed) for name, weight in score.items())
            for row, stage in zip(scored, reached, strict=True)
            if stage == max(reached)
        ]
        for seed, reached in enumerate(stages)
    ]


def _of_seed(row: Row, name: str, seed: int) -> float:
    values = values_of(row, name)
    return float(values[min(seed, len(values) - 1)])


def describe(groups: Sequence[Group]) -> list[str]:
    """Return for each group of several runs what is pooled, and for runs that share a seed why they are not."""
    texts = []
    for group in (group for group in groups if len(group.runs) > 1):
        names = ", ".join(run.name for run in group.runs)
        seeds = ", ".join(str(seed) for run in group.runs for seed in seeds_of(run))
        what = f"{group.name}: the runs {names} differ by their seed alone."
        texts.append(f"{what} Seeds {seeds} are pooled like seeds of one run.")
    for some in alike([run for group in groups for run in group.runs]):
        if apart := ", ".join(sharing(some)):
            why = "The same seed twice is no independent sample, so they are not pooled."
            texts.append(f"{apart}: these runs have equal settings and seeds in common. {why}")
    return texts
