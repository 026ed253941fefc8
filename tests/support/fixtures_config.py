"""Small settings and runs for tests: 8 updates of networks of width 8 take a fraction of a second."""

from pathlib import Path
from typing import Any

from torch import Tensor

from uavlab.experiment import run_state
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run

TINY: dict[str, Any] = {
    "hidden": 8,
    "batch": 8,
    "worlds": 4,
    "learning_starts": 16,
    "capacity": 32,  # 16 rows to start with and 4 per update: full after 4 updates
    "horizon": 6,
    "formation_radius": 130.0,  # so that young policies differ in their scores
    "updates": 8,
    "log_every": 2,
    "evaluate_every": 2,
    "evaluate_episodes": 3,
    "checkpoint_every": 4,
    "device": "cpu",
}

SMALL_ROLLOUTS: dict[str, Any] = {"rollout_steps": 5, "epochs": 2, "minibatches": 2}

SMALL_MISSION: dict[str, Any] = {
    **{"cells": 41, "cell": 0.5, "lattice": 5, "uavs": 3, "measurements": 5, "reach": 12.0},
    **{"width": 4, "kernels": (3, 2), "passes": 2, "minibatches": 2, "worlds": 3, "target_every": 2},
}

SMALL_FLIGHTS: dict[str, Any] = {
    **{"flights": 6, "least": 120, "most": 150, "window": 60, "width": 8, "physics": 0.01, "clip": 10.0},
}


# 4 steps of exploration and one per update: replay is full after update 4, the pool is refilled at 28, episodes end at
# all times by a crash, or after 14 steps; the best policy may change every 5th update. A delayed action and moving
# obstacles make every leaf of the worlds matter.
LONG: dict[str, Any] = {
    **{"updates": 34, "evaluate_every": 5, "checkpoint_every": 7, "log_every": 4},
    **{"worlds": 8, "learning_starts": 32, "capacity": 64},
    **{"lagged": True, "obstacles": 8, "obstacle_speed": 20.0, "crash_radius": 40.0, "horizon": 14},
}


def sizes(env: str, learner: str | None = None) -> dict[str, Any]:
    """Return settings that make runs on an environment small."""
    names = configure(env, {} if learner is None else {"learner": learner}).values
    own = SMALL_MISSION if "cells" in names else SMALL_FLIGHTS if "flights" in names else {}
    return {key: value for key, value in {**TINY, **SMALL_ROLLOUTS, **own}.items() if key in names}


def tiny(**changes: Any) -> Config:
    """Return tiny settings with changes."""
    return configure("leader_follower", TINY, changes)


def stop_and_resume(config: Config, folder: Path) -> Run:
    """Train a run, stop it after two updates, and train it to its end from its folder."""
    run = Run(config, folder)
    for progress in run.train():
        if progress.number == 2:
            run.stop()
    resumed = Run.resume(folder)
    for _ in resumed.train():
        pass
    return resumed


def train_run(config: Config, folder: Path | None = None) -> Run:
    """Train a run to its end."""
    run = Run(config, folder)
    for _ in run.train():
        pass
    return run


def train_tiny(folder: Path | None = None, **changes: Any) -> Run:
    """Train a run of tiny settings, with changes, to its end."""
    return train_run(tiny(**changes), folder)


def train_until(folder: Path, until: int, **changes: Any) -> Run:
    """Start a long run, or resume it, and stop it after update ``until`` as Ctrl-C does; -1 trains to the end."""
    run = Run.resume(folder) if folder.exists() else Run(tiny(**LONG | changes), folder)
    for progress in run.train():
        if progress.number == until:
            run.stop()
    return run


def checkpoint_leaves(run: Run) -> dict[str, Tensor]:
    """Return copies of everything that a checkpoint of ``run`` holds, by name; replay's rows by leaf."""
    leaves = {f"{item.name}/{key}": value for item in run_state.items(run) for key, value in item.read().items()}
    rows = {f"replay/{key}": value for key, value in run.source.rows().items() if key not in ("cursor", "size")}
    return {key: value.clone() for key, value in (leaves | rows).items()}
