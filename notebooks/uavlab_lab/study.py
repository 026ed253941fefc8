"""What studies of learning share: runs in a folder that go on, scores by the clock, figures with their intervals."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from uavlab.benchmarks import Option
from uavlab.core.errors import DivergedError, ResourceError
from uavlab.core.protocols import Env
from uavlab.core.statistics import student
from uavlab.core.text import one_line
from uavlab.evaluation import COMMON, interval
from uavlab.experiment.config import Config, configure
from uavlab.experiment.fit import Pace, measure
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import CONFIG, read_config, read_status
from uavlab.storage.files import require_writable

POINTS = 20  # validation scores during a run, about
SCORING = 0.2  # share of the time of a run that they may take
PACED = ("evaluate_every", "checkpoint_every")  # settings that follow from the pace of this machine
SEED = 0  # of the episodes of final scores
NOTHING: Mapping[str, Any] = {}

Figure = dict[str, Any]
Bounds = tuple[float, float]

NO_BOUNDS: Bounds = (-math.inf, math.inf)


def options(trained: str, folder: str, *own: Option) -> list[Option]:
    """Return the options of a study that trains for some minutes; ``trained`` says what each run is of."""
    return [
        Option(
            "minutes", f"training of a {trained}, all seeds together; default 10", (1e-3, 1e5), float, several=False
        ),
        Option("seeds", f"seeds of a {trained}, side by side; default 5", (1, 256), several=False),
        *own,
        Option("folder", f"where its runs are kept, and resumed; default {folder}", kind=str, several=False),
    ]


def attempt(config: Config, folder: Path, points: int = POINTS) -> tuple[Run | None, Figure]:
    """Train a run in a folder to its target, from the newest checkpoint that is there; by the clock, with some scores.

    Returns:
        The run, or None if it fails; and what a row says of every run: ``seeds``, ``failed`` (why there is none),
        ``score`` (weights of the figures of an episode), ``episodes``, ``validation`` (the scores that chose policies)
        and ``trained`` (the ``command`` that trains it again, and the ``machine`` that did, with its load before).
    """
    run, failed, new = None, "", changes(config, folder)
    try:
        run = Run(paced(config, points), folder) if new is None else Run.resume(folder, *([new] if new else []))
        for _ in () if run.done else run.train():
            pass
    except (DivergedError, ResourceError) as error:
        run, failed = None, one_line(f"{type(error).__name__}: {error}")
    config = config if run is None else run.config
    return run, {
        "seeds": config.run.runs,
        "failed": failed,
        "score": dict(config.evaluation.score),
        "episodes": config.run.evaluate_episodes,
        "validation": [] if run is None else validation(run),
        "trained": {"command": command(config), "machine": read_status(folder).get("machine")},
    }


def changes(config: Config, folder: Path) -> dict[str, Any] | None:
    """Return the settings in which a study differs from the run in a folder; None if there is no run."""
    if not (folder / CONFIG).exists():
        require_writable(folder)
        return None
    stored = read_config(folder).values
    other = {name: value for name, value in config.values.items() if stored[name] != value and name not in PACED}
    read_config(folder, other)
    return other


def paced(config: Config, points: int = POINTS) -> Config:
    """Return settings with validation and checkpoints at intervals of the pace here, if training ends by the clock."""
    if config.run.minutes is None:
        return config
    every = updates_between_scores(measure(config), config.run.minutes, points)
    return configure(config.preset, {**config.values, **dict.fromkeys(PACED, every)})


def updates_between_scores(pace: Pace, minutes: float, points: int = POINTS) -> int:
    """Return the updates between validation scores: ``points`` in the time, or fewer that take ``SCORING`` of it."""
    score_s = pace.score_s or 0.0
    training_s = max(60 * minutes / points - score_s, score_s * (1 / SCORING - 1))
    return max(1, round(training_s / pace.update_s))


def times(run: Run) -> Figure:
    """Return ``updates`` and ``minutes`` of training, and ``update_ms``, which includes validation."""
    return {
        "updates": run.number,
        "minutes": round(run.seconds / 60, 3),
        "update_ms": round(1e3 * run.seconds / max(run.number, 1), 3),
    }


def figure_of(values: Tensor, bounds: Bounds = NO_BOUNDS) -> Figure:
    """Return ``mean``, ``low`` and ``high`` of scores by seed and episode, and the mean of ``each`` seed if several."""
    figure = vars(interval(values, bounds=bounds))
    each = {"each": [short(mean) for mean in values.double().mean(1).tolist()]} if len(values) > 1 else {}
    return {name: short(value) for name, value in figure.items()} | each


def over_seeds(each: Sequence[float], bounds: Bounds = NO_BOUNDS) -> Figure:
    """Return ``mean``, ``low`` and ``high`` of a score of ``each`` seed, with Student's interval within the bounds."""
    mean, low, high = student(each)
    ends = {"mean": mean, "low": max(low, bounds[0]), "high": min(high, bounds[1])}
    return {name: short(value) for name, value in ends.items()} | {"each": [short(value) for value in each]}


def score_bounds(env: Env[Any]) -> Bounds:
    """Return the least and the greatest possible score of an episode, from the bounds of its figures."""
    bounds = {each.name: (0, 1) if each.over == "outcome" else each.bounds for each in (*env.metrics, *COMMON)}
    ends = [sorted(weight * end for end in bounds[name]) for name, weight in env.score.items() if weight]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def validation(run: Run) -> list[Figure]:
    """Return the scores by which a run chose its policies: over time, of each seed, with intervals over the seeds.

    With a curriculum, ``stages`` are those at which the seeds were scored, from 1 on.
    """
    env, points = run.config.evaluation, []
    for row in run.recorder.rows:
        if all(f"eval/{name}" in row for name in env.score):
            values = {name: _of_seeds(row, f"eval/{name}") for name in env.score}
            each = [sum(env.score[name] * values[name][at] for name in values) for at in range(run.config.run.runs)]
            at = {"update": row["update"], "minutes": round(row["seconds"] / 60, 4)}
            stages = {"stages": [*map(int, _of_seeds(row, "eval/stage"))]} if "eval/stage" in row else {}
            points.append({**at, **over_seeds(each, score_bounds(env)), **stages})
    return points


def _of_seeds(row: Mapping[str, Any], name: str) -> list[float]:
    return row.get("each", {}).get(name, [row[name]])


def short(value: float) -> float:
    """Return a number in six digits."""
    return float(f"{value:.6g}")


def command(config: Config) -> str:
    """Return the command that trains a run again."""
    learner = config.task.learner
    plain = configure(config.preset, {"learner": learner}).values
    given = {name: value for name, value in config.values.items() if value != plain[name] and name != "device"}
    options = {name: given.pop(name) for name in ("runs", "updates", "minutes") if given.get(name) is not None}
    if given.get("updates", 0) is None and "minutes" in options:
        del given["updates"]  # the option ``--minutes`` alone replaces them
    words = [f"--{name} {value:g}" if name == "minutes" else f"--{name} {value}" for name, value in options.items()]
    words += [f"--set {shlex.quote(f'{name}={_yaml(value)}')}" for name, value in given.items()]
    return " ".join(["uavlab train", config.preset, f"--learner {learner}", *words])


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
