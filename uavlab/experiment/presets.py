"""Presets: named settings to start from. Every environment is also a preset with all defaults."""

from dataclasses import dataclass, field, fields
from typing import Any

from uavlab.core.registry import Registry
from uavlab.envs.leader_follower.env import PUBLISHED
from uavlab.experiment.build import ENVIRONMENTS

TEAM = ("obstacles", "sight", "obstacle_speed")  # the tour's widgets change these in training and test
PUBLISHED_TEST = {f"eval_{f.name}": getattr(PUBLISHED, f.name) for f in fields(PUBLISHED) if f.name not in TEAM}


@dataclass(frozen=True)
class Preset:
    """Settings that differ from the defaults, and one line on their purpose."""

    env: str
    about: str
    values: dict[str, Any] = field(default_factory=dict)


PRESETS: Registry[Preset] = Registry("preset")


LEARNING = {
    "hidden": 128,
    "batch": 128,
    "gamma": 0.95,
    "crash_cost": 1000.0,
    "distance_cost": 0.005,
    "apart_cost": 0.005,
    "match_speed": 100.0,
}
"""Settings for training on one core: small networks, higher costs of distances and crashes, a bonus at any speed."""

MAPPING_PUBLISHED = {
    **{"width": 256, "hidden": 256, "lr": 1e-5, "critic_lr": 1e-4, "clip": 1e6, "entropy": 0.0},
    **{"passes": 5, "actor_passes": 5, "minibatches": 5, "explore_from": 0.5, "explore_updates": 200},
    **{"evaluate_every": 50, "evaluate_episodes": 50, "log_every": 10, "checkpoint_every": 50},
}
"""The published network and its training, in which gradients were not clipped."""

THREE, TWO = ({"passes": n, "actor_passes": n, "minibatches": n} for n in (3, 2))

TELEMETRY = {"eval_stride": 25, "checkpoint_every": 500, "log_every": 50}

for name, preset in {
    "leader_follower_quick": Preset(
        "leader_follower",
        "1 leader, 1 follower, 1 s steps: learns to reach the goal in minutes on one core.",
        {"updates": 8000, **LEARNING},
    ),
    "leader_follower_published": Preset(
        "leader_follower",
        "Trained on 1 + 1, evaluated by the published test: 1 leader, 4 followers, 0.1 s steps, 1000 steps at most.",
        {"updates": 30000, "evaluate_episodes": 300, "crash_radius": 30.0, **LEARNING, **PUBLISHED_TEST},
    ),
    "slow_leader_follower_quick": Preset(
        "slow_leader_follower",
        "The quick task in a simulator that takes 5 ms per step: what helps where worlds, not updates, take the time.",
        {"updates": 8000, **LEARNING, "step_ms": 5.0, "eval_step_ms": 0.0},
    ),
    "mapping_quick": Preset(
        "mapping",
        "The published mapping task with small networks and maps around each UAV: learns within the hour on two cores.",
        {
            **{"centred": True, "gamma": 0.5, "updates": 600},
            **{"evaluate_every": 100, "evaluate_episodes": 20, "log_every": 10, "checkpoint_every": 100},
        },
    ),
    "mapping_published": Preset(
        "mapping",
        "The published mapping task, network and training: 4.2 million moves of UAVs.",
        {**MAPPING_PUBLISHED, "worlds": 50, "updates": 1500},
    ),
    "mapping_full": Preset(
        "mapping",
        "Settings of the published program as its users run it: 3 worlds, 15 measurements per mission.",
        {**MAPPING_PUBLISHED, "worlds": 3, "updates": 1500, **THREE},
    ),
    "mapping_balanced": Preset(
        "mapping",
        "mapping_full with 13 measurements and two thirds of the updates.",
        {**MAPPING_PUBLISHED, "worlds": 3, "updates": 1000, "measurements": 13, **THREE},
    ),
    "mapping_fast": Preset(
        "mapping",
        "mapping_full with 9 measurements, a third of the updates and two thirds of the missions in each.",
        {**MAPPING_PUBLISHED, "worlds": 2, "updates": 500, "measurements": 9, **TWO},
    ),
    "telemetry_quick": Preset(
        "telemetry",
        "60 flights of 20 to 50 s: wind, payload, drag, motors and battery from two seconds of a log, in minutes.",
        {**TELEMETRY, "updates": 3000},
    ),
    "telemetry_full": Preset(
        "telemetry",
        "600 flights: predictions for unseen flights after 20 minutes of training on two cores.",
        {**TELEMETRY, "flights": 600, "updates": None, "minutes": 20.0},
    ),
}.items():
    PRESETS.register(name, preset)


def presets() -> dict[str, Preset]:
    """Return all presets by name, with one of all defaults for each registered environment."""
    plain = {name: Preset(name, f"{env} with its defaults.") for name, env in ENVIRONMENTS.items()}
    return {**plain, **PRESETS}
