"""The log of a search for settings: what changed from one run of a folder to the next, and what it did to the score."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from uavlab.core import bootstrap
from uavlab.core.errors import ConfigError, FileError
from uavlab.core.installation import program
from uavlab.core.text import one_line
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run_dir import CONFIG, read_config, read_status
from uavlab.storage.files import write_text
from uavlab.storage.metrics_log import Recorder

APART = ("seed", "runs")  # settings in which the runs of one trial may differ
MAX_LISTED = 6  # changes in a line of the table


class Entry(NamedTuple):
    """A run: its folder, its settings, the scores of each seed in the order of updates, and its highest stage."""

    folder: Path
    config: Config
    scores: dict[int, list[float]]
    stages: dict[int, float]


@dataclass(frozen=True)
class Trial:
    """Runs whose settings differ by their seed alone.

    Attributes:
        runs: Names of their folders.
        config: Settings of the first one.
        best: Best score in training of each seed; empty without a score.
        last: Last score of each seed.
        updates: Most updates of a run so far.
        machine: CPU or GPU that trained the first one; empty if not known.
        changes: Settings that differ from those of the trial before, each with the value there and here; None where
            there is no such setting.
        stages: The highest stage of a curriculum that each seed reached; 0 without one.
        comparable: Whether policies were scored on the same task as in the trial before, and at the same stages.
        effect: How much higher the best score is than in the trial before, with its 95 % interval over pairs of seeds
            (mean, low, high); None where scores do not compare. Without two seeds in common, it has no width.
    """

    runs: tuple[str, ...]
    config: Config
    best: Mapping[int, float]
    last: Mapping[int, float]
    stages: Mapping[int, float]
    updates: int
    machine: str
    changes: Mapping[str, tuple[Any, Any]]
    comparable: bool
    effect: bootstrap.Ends | None

    @property
    def score(self) -> bootstrap.Ends | None:
        """Mean of the best scores, and Student's 95 % interval over seeds; None without a score."""
        return bootstrap.student([*self.best.values()]) if self.best else None


@dataclass(frozen=True, repr=False)
class Tuning:
    """Trials in the order of time; ``print`` shows them as a table.

    >>> log = ul.tuning("runs")
    >>> log.best.runs
    ('first',)

    Attributes:
        folder: Where the runs are.
        trials: From the first to the last.
        notes: Runs that cannot be read, and why.
    """

    folder: Path
    trials: tuple[Trial, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        """Return a line for each trial."""
        lines = [f"{'':2} {'best score':>26} {'last':>8} {'seeds':>5} {'effect':>28}  runs: changes"]
        for number, trial in enumerate(self.trials, 1):
            last = f"{sum(trial.last.values()) / len(trial.last):.3f}" if trial.last else "-"
            effect = bootstrap.ends_text(trial.effect, "+") if trial.comparable else "another task"
            effect, what = (effect, _list(trial.changes)) if number > 1 else ("", trial.config.preset)
            figures = f"{number:2} {bootstrap.ends_text(trial.score):>26} {last:>8} {len(trial.best):5} {effect:>28}"
            lines.append(one_line(f"{figures}  {', '.join(trial.runs)}: {what}"))
        return "\n".join(lines)

    @property
    def best(self) -> Trial:
        """The trial with the best mean score, of those on the task of the last one, at the highest mean stage.

        Raises:
            ConfigError: None of them has a score.
        """
        task = self.trials[-1].config.evaluation
        scored = [
            (sum(trial.stages.values()) / len(trial.stages), trial.score[0], trial)
            for trial in self.trials
            if trial.score and trial.config.evaluation == task
        ]
        if not scored:
            raise ConfigError(f"tuning: {self.folder}: no run on the task of the last one has a score; train on.")
        return max(scored, key=lambda each: each[:2])[2]

    def rows(self) -> list[dict[str, Any]]:
        """Return the trials as JSON values."""
        return [
            {
                "runs": list(trial.runs),
                "preset": trial.config.preset,
                "changes": {name: list(pair) for name, pair in trial.changes.items()},
                "seeds": list(trial.best),
                "best": list(trial.best.values()),
                "last": list(trial.last.values()),
                "stages": list(trial.stages.values()),
                "score": trial.score and list(trial.score),
                "effect": trial.effect and list(trial.effect),
                "comparable": trial.comparable,
                "updates": trial.updates,
                "machine": trial.machine,
            }
            for trial in self.trials
        ]

    def write_best(self, path: Path) -> None:
        """Write the settings of the best trial as a file for ``uavlab train PRESET --config FILE``.

        Raises:
            ConfigError: No run has a score.
            ResourceError: The file cannot be written.
        """
        best = self.best
        preset = best.config.preset
        head = [f"# {program()} train {preset} --config {shlex.quote(path.name)}"]
        head += [f"# best score {bootstrap.ends_text(best.score)}, of {', '.join(best.runs)}"]
        lines = [f"{name}: {json.dumps(value)}" for name, value in own_settings(best.config).items()]
        write_text(path, "\n".join([*map(one_line, head), *lines, ""]))


def tuning(folder: str | Path) -> Tuning:
    """Return the log of the runs in a folder, in the order in which their settings were written.

    Best scores are those by which runs chose their policies, so the best of many is too good; ``uavlab evaluate`` with
    other episodes says how good it is.

    >>> [dict(trial.changes) for trial in ul.tuning("runs").trials]  # a trial with nothing before it
    [{}]

    Raises:
        FileError: The folder holds no run that can be read.
    """
    place, notes = Path(folder), []
    runs: list[Entry] = []
    paths = sorted(place.glob(f"*/{CONFIG}"), key=lambda path: (path.stat().st_mtime_ns, path))
    for path in paths:
        try:
            config, recorder = read_config(path.parent), Recorder(path.parent)
            recorder.read()
            each = scores(recorder.rows, config.evaluation.score, config.run.runs)
            stages = highest_stages(recorder.rows, config.run.runs)
            first = config.run.seed
            runs.append(Entry(path.parent, config, dict(enumerate(each, first)), dict(enumerate(stages, first))))
        except (ConfigError, FileError) as error:
            notes.append(str(error))
    if not runs:
        raise FileError(f"{place}: expected a folder of runs, such as runs; got {(*notes, 'no run in it.')[0]}")
    groups: list[list[Entry]] = []
    for run in runs:
        alike = next((group for group in groups if _kind(group[0].config) == _kind(run.config)), None)
        if alike is None:
            groups.append([run])
        else:
            alike.append(run)
    trials: list[Trial] = []
    for group in groups:
        trials.append(_trial(group, trials[-1] if trials else None))
    return Tuning(place, tuple(trials), tuple(notes))


def own_settings(config: Config) -> dict[str, Any]:
    """Return the settings apart from seeds in which a run differs from its preset."""
    own = {"learner": config.values["learner"]}
    plain = configure(config.preset, own).values
    changed = {name: value for name, value in config.values.items() if name not in APART and value != plain[name]}
    if config.values["learner"] != configure(config.preset).values["learner"]:
        changed = own | changed
    if config.run.minutes is not None:
        changed["updates"] = config.run.updates  # which a limit of time alone would remove
    return changed


def scores(rows: Sequence[Mapping[str, Any]], score: Mapping[str, float], seeds: int) -> list[list[float]]:
    """Return the scores of each seed from rows of metrics; of a curriculum those at its highest stage so far.

    >>> rows = [{"eval/a": 1.0, "each": {"eval/a": [0.0, 2.0]}}, {"loss": 1.0}, {"eval/a": 3.0}]
    >>> scores(rows, {"a": 0.5}, 2)
    [[0.0, 1.5], [1.0, 1.5]]
    """
    scored = [row for row in rows if all(f"eval/{name}" in row for name in score)]
    return [
        [
            sum(w * _of_seed(row, f"eval/{name}", seed) for name, w in score.items())
            for row in scored
            if _stage(row, seed) == highest
        ]
        for seed, highest in enumerate(highest_stages(scored, seeds))
    ]


def highest_stages(rows: Sequence[Mapping[str, Any]], seeds: int) -> list[float]:
    """Return the highest stage of a curriculum at which each seed was scored; 0 without a curriculum."""
    return [max((_stage(row, seed) for row in rows), default=0.0) for seed in range(seeds)]


def _stage(row: Mapping[str, Any], seed: int) -> float:
    return _of_seed(row, "eval/stage", seed) if "eval/stage" in row else 0.0


def _of_seed(row: Mapping[str, Any], name: str, seed: int) -> float:
    values = row.get("each", {}).get(name) or [row[name]]
    return float(values[min(seed, len(values) - 1)])


def _kind(config: Config) -> tuple[str, dict[str, Any]]:
    return config.preset, {name: value for name, value in config.values.items() if name not in APART}


def _trial(group: Sequence[Entry], before: Trial | None) -> Trial:
    """Return the trial of some runs; of a seed that was trained twice the first run counts."""
    each = {seed: values for run in reversed(group) for seed, values in run.scores.items() if values}
    best, last = ({seed: pick(each[seed]) for seed in sorted(each)} for pick in (max, lambda values: values[-1]))
    stages = {seed: next(run.stages[seed] for run in group if run.scores.get(seed)) for seed in best}
    first, statuses = group[0].config, [read_status(run.folder) for run in group]
    comparable = before is None or (
        before.config.evaluation == first.evaluation and len({*before.stages.values(), *stages.values()}) <= 1
    )
    return Trial(
        runs=tuple(run.folder.name for run in group),
        config=first,
        best=best,
        last=last,
        stages=stages,
        updates=max((status["update"] for status in statuses if isinstance(status.get("update"), int)), default=0),
        machine=str((statuses[0].get("machine") or {}).get("device", "")),
        changes={} if before is None else changes(before.config, first),
        comparable=comparable,
        effect=effect(before.best, best) if before and comparable else None,
    )


def changes(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """Return the settings apart from seeds, and the preset, that differ, each with both values."""
    old, new = ({"preset": each.preset, **each.values} for each in (before, after))
    names = [name for name in {**old, **new} if name not in APART and old.get(name) != new.get(name)]
    return {name: (old.get(name), new.get(name)) for name in names}


def effect(before: Mapping[int, float], after: Mapping[int, float]) -> bootstrap.Ends | None:
    """Return how much higher scores are, with Student's 95 % interval over the seeds that both have.

    With fewer than two such seeds it is the difference of the means, without a width; None where there is no score.
    """
    if not (before and after):
        return None
    if len(both := [seed for seed in after if seed in before]) > 1:
        return bootstrap.student([after[seed] - before[seed] for seed in both])
    gain = sum(after.values()) / len(after) - sum(before.values()) / len(before)
    return gain, gain, gain


def _list(changed: Mapping[str, tuple[Any, Any]]) -> str:
    texts = [f"{name} {_short(old)} -> {_short(new)}" for name, (old, new) in changed.items()]
    return ", ".join(texts[:MAX_LISTED]) + (f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else "")


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 30 else f"{text[:27]}..."
