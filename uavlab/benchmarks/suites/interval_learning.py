"""Learning curves at several update intervals: the same gradient steps, by updates and by time, trained in turn."""

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from uavlab.benchmarks.registry import Option, Record, suite
from uavlab.benchmarks.study import NOTHING, POINTS, Figure, changes, origin, over_seeds, start, times
from uavlab.core.errors import DivergedError, ResourceError
from uavlab.core.text import one_line
from uavlab.experiment.config import Config, Device, configure
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Progress

PRESETS = ("interval_1", "interval_5", "interval_10", "interval_20")
OVERLAP = "overlap"
FOLDER = "runs/interval_learning"
FIGURE, GOAL = "completion", 0.95
SHARE = (0.0, 1.0)


@suite(
    "interval_learning",
    about="learning curves at update intervals 1, 5, 10 and 20, for half an hour; goes on where it was ended",
    options=[
        Option("seeds", "seeds of each interval, side by side; default 5", (1, 256), several=False),
        Option("updates", "updates of each; default those of the presets", (1, 10**9), several=False),
        Option("folder", f"where its runs are kept, and resumed; default {FOLDER}", kind=str, several=False),
    ],
)
def interval_learning_suite(
    rounds: int,
    device: Device,
    seeds: int = 5,
    updates: int = 0,
    folder: str | Path = FOLDER,
    settings: Mapping[str, Any] = NOTHING,
    say: Callable[[str], Any] = print,
) -> Record:
    """Train each preset with steps between updates, and at longer intervals beside them; ``rounds`` has no effect.

    Runs take turns from score to score, so a machine that is busy slows all of them.

    Args:
        rounds: Has no effect.
        device: Where runs train.
        seeds: Seeds of each run, from 0 on.
        updates: Updates of each run; 0 for those of its preset.
        folder: Folder with the runs. One that is at its target is not trained again.
        settings: Settings over those of the presets.
        say: Is called with a line for each run.

    Returns:
        ``goal``, and a row for each run: ``setting``, ``interval``, ``overlap``, ``updates``, ``minutes``,
        ``update_ms``, ``completion`` (at the end, over the seeds), ``to_goal_updates`` and ``to_goal_s`` (means of the
        seeds until they first reached the goal; None if one never did), ``failed`` (why a run has no figures; empty if
        it has), ``curve`` (as ``compare.learning`` returns it) and ``trained`` (the ``command`` that trains the run
        again, and the ``machine`` that did, with its load before).

    Raises:
        ConfigError: The folder holds runs with other settings or a later target.
    """
    layer = {"runs": seeds, "device": device, **({"updates": updates} if updates else {}), **settings}
    configs = {name: _paced(config) for name, config in _configs(layer).items()}
    folders = {name: Path(folder, name) for name in configs}
    for name, config in configs.items():
        changes(config, folders[name])  # refuses another study before training
    runs = {name: start(config, folders[name]) for name, config in configs.items()}
    failed = train_in_turn(runs)
    rows = []
    for name, run in runs.items():
        rows.append(_row(run, folders[name], failed.get(name, "")))
        say(f"{name}: {failed.get(name) or format_row(rows[-1])}")
    return {"goal": GOAL, "rows": rows}


def train_in_turn(runs: Mapping[str, Run]) -> dict[str, str]:
    """Train runs to their targets, each from score to score in turn; return why those that failed did, by name."""
    steps: dict[str, Generator[Progress, None, None]] = {
        name: run.train() for name, run in runs.items() if not run.done
    }
    failed = {}
    while steps:
        for name in list(steps):
            try:
                scored = any(progress.score for progress in steps[name])
            except (DivergedError, ResourceError) as error:
                scored, failed[name] = False, one_line(f"{type(error).__name__}: {error}")
            if not scored:
                del steps[name]
    return failed


def firsts(goal: float, curve: Sequence[Mapping[str, Any]], axis: str) -> list[float | None]:
    """Return where on an axis each seed first reaches a goal; None for one that never does."""
    return [
        next((point[axis] for point in curve if point["each"][FIGURE][seed] >= goal), None)
        for seed in range(len(curve[0]["each"][FIGURE]) if curve else 0)
    ]


def first_to(goal: float, curve: Sequence[Mapping[str, Any]], axis: str) -> float | None:
    """Return the mean over the seeds of where on an axis each first reaches a goal; None if one never does.

    >>> points = [(5, [0.2, 0.9]), (10, [1.0, 0.1])]
    >>> first_to(0.9, [{"update": at, "each": {"completion": each}} for at, each in points], "update")
    7.5
    """
    places = firsts(goal, curve, axis)
    known = [place for place in places if place is not None]
    return sum(known) / len(known) if known and len(known) == len(places) else None


def format_row(row: Mapping[str, Any]) -> str:
    """Return the outcome of a run as text."""
    goal = row["to_goal_updates"]
    reached = "not by every seed" if goal is None else f"after {goal:,.0f} updates, {row['to_goal_s']:,.0f} s"
    last = "no score" if row[FIGURE] is None else f"{FIGURE} {row[FIGURE]['mean']:.3f}"
    return f"{row['updates']:,} updates in {row['minutes']:.1f} min; {last}; {GOAL:g} {reached}"


def _configs(layer: Mapping[str, Any]) -> dict[str, Config]:
    plain = {name: configure(name, layer) for name in PRESETS}
    beside = {f"{name}_{OVERLAP}": configure(name, {**layer, "prefetch": OVERLAP}) for name in PRESETS[1:]}
    return plain | beside


def _paced(config: Config) -> Config:
    every = max(1, (config.run.updates or 1) // POINTS)
    return configure(config.preset, {**config.values, "evaluate_every": every, "checkpoint_every": every})


def _row(run: Run, folder: Path, failed: str) -> Record:
    toggles, curve = run.config.toggles, _curve(run)
    overlap = toggles.prefetch == OVERLAP
    return {
        "setting": f"interval {toggles.interval}{', overlap' if overlap else ''}",
        "interval": toggles.interval,
        "overlap": overlap,
        **times(run),
        FIGURE: over_seeds(curve[-1]["each"][FIGURE], SHARE) if curve else None,
        "to_goal_updates": first_to(GOAL, curve, "update"),
        "to_goal_s": first_to(GOAL, curve, "seconds"),
        "failed": failed,
        "curve": curve,
        "trained": origin(run.config, folder),
    }


def _curve(run: Run) -> list[Figure]:
    name = f"eval/{FIGURE}"
    return [
        {
            "update": row["update"],
            "seconds": row["seconds"],
            "each": {FIGURE: row.get("each", {}).get(name, [row[name]])},
        }
        for row in run.recorder.rows
        if name in row
    ]
