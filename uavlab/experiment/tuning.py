"""The log of a search for settings: what changed from one run of a folder to the next, and what it did to the score."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from uavlab.core.cards import Table
from uavlab.core.errors import ConfigError, FileError
from uavlab.core.installation import program
from uavlab.core.statistics import Ends, ends_text, student
from uavlab.core.text import one_line
from uavlab.experiment import policy, scores
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run_dir import CONFIG, read_config, read_status
from uavlab.storage.files import write_text

APART = ("seed", "runs")  # settings in which the runs of one trial may differ
MAX_LISTED = 6  # changes in a line of the table
EPISODES, SEED = 100, 0  # by which each seed is scored


class Entry(NamedTuple):
    """A run: its folder, its settings, and the score of the policy that each seed kept; empty without one."""

    folder: Path
    config: Config
    scores: dict[int, float]


@dataclass(frozen=True)
class Trial:
    """Runs whose settings differ by their seed alone."""

    runs: tuple[str, ...]  # names of their folders
    config: Config  # of the first one
    scores: Mapping[int, float]  # of the policy that each seed kept, in episodes that chose no policy
    updates: int  # the most of a run so far
    machine: str  # CPU or GPU that trained the first one; empty if not known
    changes: Mapping[str, tuple[Any, Any]]  # settings that differ from the trial before: there and here, None if absent
    comparable: bool  # policies are scored on the same task as in the trial before
    effect: Ends | None  # how much higher the score is than in the trial before; None where scores do not compare

    @property
    def score(self) -> Ends | None:
        """Mean of the scores, and Student's 95 % interval over seeds; None without a score."""
        return student([*self.scores.values()]) if self.scores else None


@dataclass(frozen=True, repr=False)
class Tuning:
    """Trials in the order of time; ``print`` shows them as a table.

    >>> log = ul.tuning("runs")
    >>> log.best.runs
    ('first',)

    Attributes:
        folder: Where the runs are.
        trials: From the first to the last.
        notes: Runs that cannot be read or scored, and why.
        episodes: By which each seed is scored.
    """

    folder: Path
    trials: tuple[Trial, ...]
    notes: tuple[str, ...]
    episodes: int

    def __repr__(self) -> str:
        """Return a line for each trial."""
        rows = []
        for number, trial in enumerate(self.trials, 1):
            effect = ends_text(trial.effect, "+") if trial.comparable else "another task"
            effect, what = (effect, _list(trial.changes)) if number > 1 else ("", trial.config.preset)
            runs = f"{', '.join(trial.runs)}: {what}"
            rows.append((number, ends_text(trial.score), len(trial.scores), effect, runs))
        table = Table(("", "score", "seeds", "effect", "runs: changes"), rows)
        note = f"Scores are of the kept policies, in {self.episodes} episodes that chose none."
        return "\n".join([*table.lines("{:>2} {:>26} {:>5} {:>28}  {}"), note])

    @property
    def best(self) -> Trial:
        """The trial with the best mean score, of those on the task of the last one.

        Raises:
            ConfigError: None of them has a score.
        """
        task = self.trials[-1].config.evaluation
        scored = [(trial.score[0], trial) for trial in self.trials if trial.score and trial.config.evaluation == task]
        if not scored:
            raise ConfigError(f"tuning: {self.folder}: no run on the task of the last one has a score; train on.")
        return max(scored, key=lambda pair: pair[0])[1]

    def rows(self) -> list[dict[str, Any]]:
        """Return the trials as JSON values."""
        return [
            {
                "runs": list(trial.runs),
                "preset": trial.config.preset,
                "changes": {name: list(pair) for name, pair in trial.changes.items()},
                "seeds": list(trial.scores),
                "scores": list(trial.scores.values()),
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
        head += [f"# score {ends_text(best.score)} of {', '.join(best.runs)}, the highest of {len(self.trials)}"]
        lines = [f"{name}: {json.dumps(value)}" for name, value in own_settings(best.config).items()]
        write_text(path, "\n".join([*map(one_line, head), *lines, ""]))


def tuning(folder: str | Path, episodes: int = EPISODES) -> Tuning:
    """Score the runs in a folder, and return their log in the order in which their settings were written.

    A score is that of the policy which a seed kept, in episodes that chose no policy, the same for equal seeds. The
    highest of many trials is still too good; ``uavlab evaluate --seed 1`` scores it in others.

    >>> [dict(trial.changes) for trial in ul.tuning("runs", episodes=4).trials]  # a trial with nothing before it
    [{}]

    Args:
        folder: Where the runs are.
        episodes: Episodes by which each seed is scored, at least 1.

    Raises:
        ConfigError: ``episodes`` is less than 1.
        FileError: The folder holds no run that can be read.
    """
    if episodes < 1:
        raise ConfigError(f"tuning: got episodes={episodes}; expected at least 1.")
    place, notes = Path(folder), []
    runs: list[Entry] = []
    paths = sorted(place.glob(f"*/{CONFIG}"), key=lambda path: (path.stat().st_mtime_ns, path))
    for path in paths:
        try:
            run = Entry(path.parent, read_config(path.parent), {})
            runs.append(run)
            if read_status(path.parent).get("update"):
                run.scores.update(policy_scores(path.parent, episodes))
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
    return Tuning(place, tuple(trials), tuple(notes), episodes)


def policy_scores(folder: Path, episodes: int) -> dict[int, float]:
    """Return the score of the policy that each seed of a run kept, in episodes that chose none."""
    trained = policy.load(folder)
    figures = scores.measure(trained, episodes, SEED, trained.config.run.evaluate_mean_action)
    means = scores.weigh(trained.config.evaluation.score, figures).double().mean(1).tolist()
    return dict(enumerate(means, trained.config.run.seed))


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


def _kind(config: Config) -> tuple[str, dict[str, Any]]:
    return config.preset, {name: value for name, value in config.values.items() if name not in APART}


def _trial(group: Sequence[Entry], before: Trial | None) -> Trial:
    """Return the trial of some runs; of a seed that was trained twice the first run counts."""
    scored = {seed: score for run in reversed(group) for seed, score in run.scores.items()}
    first, statuses = group[0].config, [read_status(run.folder) for run in group]
    comparable = before is None or before.config.evaluation == first.evaluation
    return Trial(
        runs=tuple(run.folder.name for run in group),
        config=first,
        scores=dict(sorted(scored.items())),
        updates=max((status["update"] for status in statuses if isinstance(status.get("update"), int)), default=0),
        machine=str((statuses[0].get("machine") or {}).get("device", "")),
        changes={} if before is None else changes(before.config, first),
        comparable=comparable,
        effect=effect(before.scores, scored) if before and comparable else None,
    )


def changes(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """Return the settings apart from seeds, and the preset, that differ, each with both values."""
    old, new = ({"preset": config.preset, **config.values} for config in (before, after))
    names = [name for name in {**old, **new} if name not in APART and old.get(name) != new.get(name)]
    return {name: (old.get(name), new.get(name)) for name in names}


def effect(before: Mapping[int, float], after: Mapping[int, float]) -> Ends | None:
    """Return how much higher scores are, with Student's 95 % interval over the seeds that both have.

    With fewer than two such seeds it is the difference of the means, without a width; None where there is no score.
    """
    if not (before and after):
        return None
    if len(both := [seed for seed in after if seed in before]) > 1:
        return student([after[seed] - before[seed] for seed in both])
    gain = sum(after.values()) / len(after) - sum(before.values()) / len(before)
    return gain, gain, gain


def _list(changed: Mapping[str, tuple[Any, Any]]) -> str:
    texts = [f"{name} {_short(old)} -> {_short(new)}" for name, (old, new) in changed.items()]
    return ", ".join(texts[:MAX_LISTED]) + (f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else "")


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 30 else f"{text[:27]}..."
