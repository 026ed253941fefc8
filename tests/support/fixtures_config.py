"""Runs so small that a test can afford several: 8 updates of networks of width 8 take a fraction of a second."""

from pathlib import Path
from typing import Any

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

SMALL_MISSION: dict[str, Any] = {
    **{"cells": 41, "cell": 0.5, "lattice": 5, "uavs": 3, "measurements": 5, "reach": 12.0},
    **{"width": 4, "kernels": (3, 2), "passes": 2, "minibatches": 2, "worlds": 3, "target_every": 2},
}

SMALL_FLIGHTS: dict[str, Any] = {
    **{"flights": 6, "least": 120, "most": 150, "window": 60, "width": 8, "physics": 0.01, "clip": 10.0},
}


def sizes(env: str) -> dict[str, Any]:
    """Give settings that make runs on an environment small."""
    known = configure(env).values
    small = {key: value for key, value in TINY.items() if key in known}
    own = SMALL_MISSION if "cells" in known else SMALL_FLIGHTS if "flights" in known else {}
    return {**small, **own}


def tiny(**changes: Any) -> Config:
    return configure("leader_follower", TINY, changes)


def trained(folder: Path | None = None, **changes: Any) -> Run:
    run = Run(tiny(**changes), folder)
    for _ in run.train():
        pass
    return run
