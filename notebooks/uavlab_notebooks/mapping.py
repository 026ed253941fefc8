"""Mapping missions: states of a flight, scores by policy, and counts by budget.

A learned policy comes from a run's folder, or from a training of seconds, and is labelled so.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.benchmarks.claims.mapping import count_missions
from uavlab.core.bootstrap import nested_bands
from uavlab.core.errors import ConfigError
from uavlab.core.extras import require
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.rng import Streams
from uavlab.envs.mapping.env import Mapping, State
from uavlab.envs.mapping.numpy_reference import area_resize
from uavlab.evaluation import Planner, curves
from uavlab.experiment import policy
from uavlab.experiment.config import configure
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.run import Run
from uavlab.lab.plots.style import add_curve, blank
from uavlab.ops import belief_maps

COARSE = 99  # cells a side of maps in short training; policies see only averages over the lattice
PROGRAM = {
    "mapping_full": count_missions(updates=1500, batch=64, minibatches=3, budget=14),
    "mapping_balanced": count_missions(updates=1000, batch=48, minibatches=3, budget=12),
    "mapping_fast": count_missions(updates=500, batch=32, minibatches=2, budget=8),
}
"""Missions of a run with the published program's settings, by the most similar preset."""

CLAIMED_STEPS = {"mapping_full": 4800, "mapping_balanced": 3333, "mapping_fast": 2083}
"""Steps that runs with the published program's settings are claimed to make."""

COUNTS = {
    "updates": "updates",
    "missions": "missions_per_run",
    "team_steps": "world_steps_per_run",
    "moves": "agent_steps_per_run",
    "gradient_steps": "gradient_steps_per_run",
}
"""Keys of a run's plan, by column of ``budgets``."""

AXES = {
    "entropy": "entropy of the cells with targets (bits, lower is better)",
    "f1": "F1 of targets (higher is better)",
}
"""Titles of the vertical axis, by score."""


def load_or_train(run: str, updates: int, **settings: Any) -> tuple[TrainedPolicy, str]:
    """Load the policy of the folder ``run``, or train one for ``updates`` on coarse maps if ``run`` is empty.

    ``settings`` override the preset ``mapping_quick``. Return the policy and a label that describes its training.

    Raises:
        FileError: The folder is no run.
        ConfigError: It is a run of another task.
    """
    if run:
        trained = policy.load(Path(run), settings.get("device"))
        if not isinstance(trained.config.env, Mapping):
            raise ConfigError(f"{run}: a run of {trained.config.preset}; expected one that maps, of mapping_quick say.")
        return trained, f"learned, {trained.update:,} updates"
    side = Mapping.cell * Mapping.cells / COARSE
    layer = {"cells": COARSE, "cell": side, "updates": updates, "evaluate_every": updates, "evaluate_episodes": 4}
    short = Run(configure("mapping_quick", layer, settings))
    for _ in short.train():
        pass
    return short.trained(), f"trained for {updates:,} updates only"


def scores_by_policy(
    env: Mapping, trained: dict[str, TrainedPolicy], seed: int, count: int, device: torch.device
) -> dict[str, dict[str, Float[Tensor, "R E T"]]]:
    """Score all baselines and some trained policies after every step of the same ``count`` missions of ``seed``."""
    plans = {name.replace("_", " "): Planner(plan) for name, plan in ENVIRONMENTS["mapping"].baselines.items()}
    scores = {name: curves(env, plan, Streams([seed], device), count) for name, plan in plans.items()}
    for name, each in trained.items():
        own = with_view_of(env, each)
        scores[name] = curves(own, each.batched_policy(own, 0), Streams([seed], device), count)
    return scores


def with_view_of(env: Mapping, trained: TrainedPolicy) -> Mapping:
    """Return the task with ``centred`` as a policy was trained: whether maps are centred on each UAV."""
    return replace(env, centred=trained.config.env.spec.centred)


def fly_policy(env: Mapping, trained: TrainedPolicy, seed: int) -> list[State]:
    """Fly one mission by a trained policy; return its state after each measurement."""
    return list(policy.fly(trained, seed, env=with_view_of(env, trained)))


@torch.no_grad()
def fly_plan(env: Mapping, plan: str, seed: int, device: torch.device) -> list[State]:
    """Fly one mission by a baseline; return its state after each measurement."""
    rng, spec, choose = Streams([seed], device), env.spec, ENVIRONMENTS["mapping"].baselines[plan]
    states = [env.initial(rng.uniform("fly.start", 1, spec.initial_noise)[0])]
    for _ in range(spec.horizon):
        action = choose(env, states[-1], rng.uniform("fly.act", 1, spec.agents)[0])
        states.append(env.transition(states[-1], action, rng.uniform("fly.step", 1, spec.step_noise)[0]))
    return states


def score_curves(scores: dict[str, Float[Tensor, "R E T"]], metric: str = "entropy", title: str = "") -> go.Figure:
    """Draw a score over measurements by policy, means with 95 % bootstrap intervals over missions and runs.

    ``scores`` begin after the second measurement, see ``evaluate.curves``.
    """
    figure = blank(title, "measurements of each UAV", AXES.get(metric, metric))
    for number, (name, each) in enumerate(scores.items()):
        band = nested_bands(each.double().cpu().numpy())
        add_curve(figure, number, name, range(2, band.shape[1] + 2), band)  # the first precedes any move
    return figure


def format_scores(scores: dict[str, Float[Tensor, "R E T"]], step: int = -1) -> str:
    """Return the scores by policy at one step with their intervals: ``random 0.73 (0.71 to 0.75), sweep ...``."""
    at = {name: nested_bands(each[..., step, None].double().cpu().numpy())[:, 0] for name, each in scores.items()}
    return ", ".join(f"{name} {mean:.2f} ({low:.2f} to {high:.2f})" for name, (low, mean, high) in at.items())


def budgets(presets: Sequence[str] = tuple(CLAIMED_STEPS)) -> list[dict[str, Any]]:
    """Count updates, missions and steps of runs with the published program's settings.

    Returns:
        A row for each preset: ``preset``, ``measurements``, ``updates``, ``missions``, ``team_steps``, ``moves`` (of
        all UAVs) and ``gradient_steps`` of ours; ``formula``, the missions by the published program's own formula; and
        ``claimed``, the steps that it is claimed to make.
    """
    rows = []
    for preset in presets:
        config = configure(preset)
        plan = config.task.plan(config)
        counts = {name: plan[key] for name, key in COUNTS.items()}
        head = {"preset": preset, "measurements": config.env.spec.horizon + 1}
        rows.append({**head, **counts, "formula": round(PROGRAM[preset]), "claimed": CLAIMED_STEPS[preset]})
    return rows


def compare_resizing(env: Mapping, steps: int = 3, seed: int = 0) -> dict[str, Float[Tensor, "L L"]]:
    """Resize the team's map of a random mission to the lattice.

    Returns:
        ``opencv`` by INTER_AREA, ``area`` by two matrices, and ``bilinear``, the default of image libraries on a GPU,
        which interpolates four cells and ignores all others.
    """
    dice = torch.Generator().manual_seed(seed)
    state = env.initial(torch.rand(1, env.spec.initial_noise, generator=dice))
    for _ in range(steps):
        action = torch.randint(env.spec.choices, (1, env.uavs), generator=dice)
        state = env.transition(state, action, torch.rand(1, env.spec.step_noise, generator=dice))
    belief = belief_maps.belief(state.logits[:, -1], torch.float32)
    rows = belief_maps.area_matrix(env.cells, env.lattice)
    size = env.lattice
    bilinear = torch.nn.functional.interpolate(belief[:, None], (size, size), mode="bilinear", align_corners=False)
    require("mapping", "resizing by OpenCV", "cv2")
    opencv = torch.from_numpy(area_resize(belief[0].numpy(), size))
    return {"opencv": opencv, "area": belief_maps.area_resize(belief, rows, rows)[0], "bilinear": bilinear[0, 0]}
