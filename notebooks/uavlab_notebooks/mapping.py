"""Mapping missions as the notebook needs them: flown state by state, scored policy by policy, counted budget by budget.

What is learned comes from a run's folder, or from a training of seconds that says that it is one.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.bench.claims.mapping import count_missions
from uavlab.core.errors import ConfigError
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.rng import Streams
from uavlab.envs.mapping.env import Mapping, State
from uavlab.evaluate import Planner, curves
from uavlab.experiment import policy
from uavlab.experiment.config import configure
from uavlab.experiment.policy import Kept
from uavlab.experiment.run import Run

COARSE = 99  # cells a side of the maps that seconds of training use; policies see averages over the lattice alone
PROGRAM = {
    "mapping_full": count_missions(updates=1500, batch=64, minibatches=3, budget=14),
    "mapping_balanced": count_missions(updates=1000, batch=48, minibatches=3, budget=12),
    "mapping_fast": count_missions(updates=500, batch=32, minibatches=2, budget=8),
}
"""Missions of a run with the published program's settings, by the preset that comes nearest."""

STEPS_SAID = {"mapping_full": 4800, "mapping_balanced": 3333, "mapping_fast": 2083}
"""How many steps runs with the published program's settings are said to make."""


def learned(run: str, updates: int, **settings: Any) -> tuple[Kept, str]:
    """Take the policy that a run keeps, or train one for ``updates`` on coarse maps; and say which it is.

    Args:
        run: Folder of a run or an exported copy; empty to train.
        updates: Of that training.
        settings: Laid over the preset ``mapping_quick``.

    Raises:
        FileError: The folder is no run.
        ConfigError: It is one of another task.
    """
    if run:
        found = policy.load(Path(run), settings.get("device"))
        if not isinstance(found.config.env, Mapping):
            raise ConfigError(f"{run}: a run of {found.config.preset}; expected one that maps, of mapping_quick say.")
        return found, f"learned, {found.update:,} updates"
    side = Mapping.cell * Mapping.cells / COARSE
    layer = {"cells": COARSE, "cell": side, "updates": updates, "evaluate_every": updates, "evaluate_episodes": 4}
    made = Run(configure("mapping_quick", layer, settings))
    for _ in made.train():
        pass
    return policy.of(made), f"trained for {updates:,} updates only"


def compared(
    env: Mapping, others: dict[str, Kept], seed: int, count: int, device: torch.device
) -> dict[str, dict[str, Float[Tensor, "R E T"]]]:
    """Fly all plans and some kept policies on the same missions; by policy the scores after every step.

    Args:
        env: The task.
        others: Kept policies by name.
        seed: Of the missions.
        count: Missions.
        device: Where they are computed.
    """
    plans = {name.replace("_", " "): Planner(plan) for name, plan in ENVIRONMENTS["mapping"].baselines.items()}
    scores = {name: curves(env, plan, Streams([seed], device), count) for name, plan in plans.items()}
    for name, each in others.items():
        own = as_seen(env, each)
        scores[name] = curves(own, each.policy(own, 0), Streams([seed], device), count)
    return scores


def as_seen(env: Mapping, by: Kept) -> Mapping:
    """Show a task as a policy saw the one that it was trained on: maps around each UAV, or not."""
    return replace(env, centred=by.config.env.spec.centred)


def flight(env: Mapping, by: Kept, seed: int) -> list[State]:
    """Fly one mission by a kept policy; its state after each measurement."""
    return list(policy.flight(by, seed, env=as_seen(env, by)))


@torch.no_grad()
def flown(env: Mapping, plan: str, seed: int, device: torch.device) -> list[State]:
    """Fly one mission by a plan; its state after each measurement.

    Args:
        env: The task.
        plan: One of ``PLANS["mapping"]``.
        seed: Of the mission.
        device: Where it is computed.
    """
    rng, spec, choose = Streams([seed], device), env.spec, ENVIRONMENTS["mapping"].baselines[plan]
    states = [env.initial(rng.uniform("fly.start", 1, spec.initial_noise)[0])]
    for _ in range(spec.horizon):
        action = choose(env, states[-1], rng.uniform("fly.act", 1, spec.agents)[0])
        states.append(env.transition(states[-1], action, rng.uniform("fly.step", 1, spec.step_noise)[0]))
    return states


def budgets(presets: Sequence[str] = tuple(STEPS_SAID)) -> list[dict[str, Any]]:
    """Count what runs make with the published program's settings.

    Returns:
        A row for each preset: ``preset``, ``measurements``, ``updates``, ``missions``, ``team_steps``, ``moves`` (of
        all UAVs) and ``gradient_steps`` of ours; ``formula``, the missions by the published program's own formula; and
        ``said``, the steps that it is said to make.
    """
    rows = []
    for preset in presets:
        config = configure(preset)
        plan = config.task.plan(config)
        rows.append(
            {
                "preset": preset,
                "measurements": config.env.spec.horizon + 1,
                "updates": plan["updates"],
                "missions": plan["missions_per_run"],
                "team_steps": plan["world_steps_per_run"],
                "moves": plan["agent_steps_per_run"],
                "gradient_steps": plan["gradient_steps_per_run"],
                "formula": round(PROGRAM[preset]),
                "said": STEPS_SAID[preset],
            }
        )
    return rows
