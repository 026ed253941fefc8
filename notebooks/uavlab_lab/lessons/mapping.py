"""Mapping missions: the trained team, and scores by policy."""

from collections.abc import Mapping as Rows
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.extras import require
from uavlab.core.installation import ROOT
from uavlab.core.protocols import Env, Policy
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.rng import Streams
from uavlab.envs.mapping.env import Mapping
from uavlab.envs.mapping.numpy_reference import area_resize
from uavlab.evaluation import Planner, simulate
from uavlab.experiment import policy
from uavlab.experiment.config import Device
from uavlab.experiment.policy import TrainedPolicy
from uavlab.ops import belief_maps
from uavlab_lab.intervals import nested_bands
from uavlab_lab.plots.style import add_curve, blank, color, pen, whiskers

TEAM = ROOT / "figures" / "mapping"
"""The exported policy of a trained team."""

RESOLUTION = ROOT / "figures" / "records" / "bench_resolution.json"
"""What coarser maps and fewer channels save and cost; its commit has the command."""

AXES = {
    "entropy": "entropy of the cells with targets (bits, lower is better)",
    "f1": "F1 of targets (higher is better)",
}
"""Titles of the vertical axis, by score."""


def load_team(run: str, device: Device) -> TrainedPolicy:
    """Load the policy of the folder ``run``, or of ``TEAM`` if it is empty."""
    trained = policy.load(Path(run) if run else TEAM, device)
    if not isinstance(trained.config.env, Mapping):
        raise ConfigError(f"{run}: a run of {trained.config.preset}; expected one that maps, of mapping_quick say.")
    return trained


def curves(
    env: Env, policy: Policy | Planner, rng: Streams, count: int, mean_action: bool = False, stream: str = "evaluate"
) -> dict[str, Float[Tensor, "R E T"]]:
    """Return the environment's metrics of each episode after every step, constant after its end."""
    history: dict[str, list[Tensor]] = {metric.name: [] for metric in env.metrics}
    for metrics, live, _ in simulate(env, policy, rng, count, mean_action, stream):
        for name, values in history.items():
            values.append(torch.where(live, metrics[name], values[-1]) if values else metrics[name])
    return {name: torch.stack(values, -1).unflatten(0, (len(rng.seeds), count)) for name, values in history.items()}


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


def score_curves(
    scores: dict[str, Float[Tensor, "R E T"]], metric: str = "entropy", title: str = "", caption: str = ""
) -> go.Figure:
    """Draw a score over measurements by policy, means with 95 % bootstrap intervals over missions and runs.

    ``scores`` begin after the second measurement, see ``evaluate.curves``.
    """
    figure = blank(title, "measurements of each UAV", AXES.get(metric, metric), caption=caption)
    for number, (name, each) in enumerate(scores.items()):
        band = nested_bands(each.double().cpu().numpy())
        add_curve(figure, number, name, range(2, band.shape[1] + 2), band)  # the first precedes any move
    return figure


def format_scores(scores: dict[str, Float[Tensor, "R E T"]], step: int = -1) -> str:
    """Return the scores by policy at one step with their intervals: ``random 0.73 (0.71 to 0.75), sweep ...``."""
    at = {name: nested_bands(each[..., step, None].double().cpu().numpy())[:, 0] for name, each in scores.items()}
    return ", ".join(f"{name} {mean:.2f} ({low:.2f} to {high:.2f})" for name, (low, mean, high) in at.items())


def best_policy(scores: dict[str, Float[Tensor, "R E T"]], metric: str) -> str:
    """Return the name of the policy with the best mean at the end, or of all whose intervals overlap with its own."""
    bands = {name: nested_bands(each[..., -1, None].double().cpu().numpy())[:, 0] for name, each in scores.items()}
    sign = -1 if metric == "entropy" else 1
    top = max(bands.values(), key=lambda band: sign * band[1])
    return ", ".join(name for name, (low, _, high) in bands.items() if low <= top[2] and top[0] <= high)


def trade_off(rows: Sequence[Rows[str, Any]], metric: str, title: str = "", caption: str = "") -> go.Figure:
    """Draw a score over the time of an update, a mark for each row of ``RESOLUTION`` that has figures."""
    figure = blank(title, "time of an update with its missions (ms)", AXES[metric], caption=caption)
    for number, row in enumerate(row for row in rows if row[metric]):
        bars = whiskers([row[metric]], "mean", ("low", "high"), color(number))
        place = {"x": [row["update_ms"]], "y": [row[metric]["mean"]]}
        figure.add_scatter(**place, name=row["setting"], mode="markers", error_y=bars, **pen(number))
    return figure.update_xaxes(rangemode="tozero")


def score_change(first: Rows[str, Any], other: Rows[str, Any], metric: str) -> str:
    """Return a score of a row beside that of the first: ``entropy 0.31 instead of 0.29``."""
    return f"{metric} {other[metric]['mean']:.2f} instead of {first[metric]['mean']:.2f}"


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
