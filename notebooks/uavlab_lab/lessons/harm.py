"""Harm: what one change does to the learning of many paired seeds, with its interval and the least harm it can show."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from uavlab.core.installation import ROOT
from uavlab.core.statistics import beta_quantile, student
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab_lab.lessons.toy_tasks import METRIC, course
from uavlab_lab.plots.charts import group_rows, list_downwards
from uavlab_lab.plots.style import COLORS, DARK, blank, short

RECORD = ROOT / "figures" / "records" / "harm.json"
PRESET = "leader_follower_quick"
UPDATES, SCORES, EPISODES = 480, 12, 20
CHANCE = 0.8  # with which the least harm is shown
NOWHERE = 10**9  # updates until priorities would correct themselves

State = Any
Returns = list[list[float]]


def round_target(learner: State) -> None:
    """Store the target critics in bfloat16."""
    learner.target.copy_(learner.target.bfloat16())


@dataclass(frozen=True)
class Variant:
    """A change: its kind, its settings over the lesson's, and what it does to the learner after each update."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    after: Callable[[State], None] = lambda learner: None


HARMFUL, HARMLESS, OPEN = "harmful on purpose", "other order of sums", "in question"
BASE = "as it is"
VARIANTS = {
    BASE: Variant(HARMLESS),
    "an update every 20 steps": Variant(HARMFUL, {"world_steps": 20}),
    "ratio=4, a quarter of the steps": Variant(HARMFUL, {"ratio": 4}),
    "learning rates x 10": Variant(HARMFUL, {"lr": 3e-2, "critic_lr": 3e-2}),
    "learning rates x 30": Variant(HARMFUL, {"lr": 9e-2, "critic_lr": 9e-2}),
    "micro_batches=2": Variant(HARMLESS, {"micro_batches": 2}),
    "precision=bf16": Variant(OPEN, {"precision": "bf16"}),
    "targets stored in bf16": Variant(OPEN, {}, round_target),
    "interval=20": Variant(OPEN, {"interval": 20}),
    "prefetch=overlap": Variant(OPEN, {"prefetch": "overlap"}),
    "priorities=mean": Variant(OPEN, {"priorities": "mean"}),
    "priorities without weights": Variant(
        OPEN, {"priorities": "mean", "priority_beta": 0.0, "priority_draws": NOWHERE}
    ),
}
HIDDEN = "rgba(128, 128, 128, 0.22)"
VERDICTS = {"worse": COLORS[3], "better": COLORS[2], "not different": COLORS[7]}


def train(name: str, seeds: Sequence[int], updates: int = UPDATES, **settings: Any) -> Returns:
    """Train a variant for ``updates`` updates; with several steps per cycle, for as many steps of the worlds.

    Returns:
        The return of every score of every seed (seeds x scores).
    """
    variant = VARIANTS[name]
    updates = updates // variant.settings.get("world_steps", 1)
    layer = course(updates, min(SCORES, updates), evaluate_episodes=EPISODES)
    config = configure(PRESET, layer, {"seed": seeds[0], "runs": len(seeds)}, variant.settings, settings)
    run, scores = Run(config), []
    for progress in run.train():
        variant.after(run.learner)
        if progress.each:
            scores.append(progress.each[METRIC])
    return [list(each) for each in zip(*scores, strict=True)]


def halves(returns: Returns) -> dict[str, list[float]]:
    """Return the mean over the first half of the scores of each seed, ``early``, and over the second, ``late``."""
    half = len(returns[0]) // 2
    parts = {"early": [each[:half] for each in returns], "late": [each[half:] for each in returns]}
    return {name: [sum(each) / len(each) for each in rows] for name, rows in parts.items()}


def quantile(chance: float, free: int) -> float:
    """Return the value below which Student's t with ``free`` degrees of freedom lies with a chance of 0.5 or more."""
    part = beta_quantile(0.5, free / 2, 2 * chance - 1) if chance > 0.5 else 0.0
    return math.sqrt(free * part / (1 - part))


def least_harm(differences: Sequence[float]) -> float:
    """Return the smallest difference that as many pairs of this spread show with a chance of 0.8.

    Source:
        Cohen 1988, "Statistical Power Analysis for the Behavioral Sciences", by central instead of noncentral t.
    """
    free, (mean, _, high) = len(differences) - 1, student(differences)
    error = (high - mean) / quantile(0.975, free)
    return (quantile(0.975, free) + quantile(CHANCE, free)) * error


def judge(low: float, high: float) -> str:
    """Return what the interval of a difference shows."""
    return "worse" if high < 0 else "better" if low > 0 else "not different"


def compare(means: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Compare each variant with ``BASE``, seed by seed.

    Returns:
        Rows ``variant, kind``; ``mean, low, high`` of the difference, ``least`` (the smallest that would be shown with
        a chance of 0.8), ``verdict``, and ``unpaired``, the spread of differences of other seeds over that of pairs.
    """
    base, rows = means[BASE], []
    shifted = [*base[1:], base[0]]
    for name in (name for name in means if name != BASE):
        pairs, others = ([a - b for a, b in zip(means[name], each, strict=True)] for each in (base, shifted))
        mean, low, high = student(pairs)
        least = least_harm(pairs)
        rows.append(
            {
                **{"variant": name, "kind": VARIANTS[name].kind, "mean": mean, "low": low, "high": high},
                **{
                    "least": least,
                    "verdict": judge(low, high),
                    "unpaired": least_harm(others) / least if least else math.inf,
                },
            }
        )
    return rows


def draw(rows: Sequence[Mapping[str, Any]], title: str, caption: str = "") -> go.Figure:
    """Draw each difference with its interval, and the range in which a difference would often stay hidden.

    A difference far beyond the others is drawn as an arrow at the edge.
    """
    names = [name for _, kind, some in group_rows(rows, "kind") for name in (f"<b>{kind}</b>", *_names(some))]
    edge = 1.4 * max(row["least"] for row in rows) or 1.0
    figure = blank(title, "difference in mean return", height=150 + 32 * len(names), caption=caption)
    figure.add_bar(
        y=_names(rows),
        x=short(2 * row["least"] for row in rows),
        base=short(-row["least"] for row in rows),
        orientation="h",
        width=0.6,
        name="often hidden",
        marker={"color": HIDDEN},
        hoverinfo="skip",
    )
    for verdict, color in VERDICTS.items():
        some = [row for row in rows if row["verdict"] == verdict]
        ends = {end: short(abs(row[end] - row["mean"]) for row in some) for end in ("low", "high")}
        figure.add_scatter(
            y=_names(some),
            x=short(max(-edge, min(edge, row["mean"])) for row in some),
            error_x={"array": ends["high"], "arrayminus": ends["low"], "color": color, "thickness": 2},
            mode="markers",
            name=verdict,
            marker={
                **{"color": color, "size": 10},
                "symbol": ["circle" if abs(row["mean"]) < edge else "arrow-left" for row in some],
            },
        )
    figure.add_scatter(
        y=_names(rows),
        x=[1.05 * edge] * len(rows),
        text=[f"{row['mean']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})" for row in rows],
        mode="text",
        textposition="middle right",
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
    )
    figure.add_vline(x=0, line={"color": DARK, "width": 1, "dash": "dot"})
    figure.update_layout(margin={"r": 190})
    figure.update_xaxes(range=[-1.1 * edge, 1.05 * edge])
    return list_downwards(figure, names).update_yaxes(autorange=False, range=[len(names) - 0.5, -0.5])


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [row["variant"] for row in rows]


def read(half: str = "late", path: Path = RECORD) -> dict[str, list[float]]:
    """Return the mean returns of each variant of a record, for the seeds that every variant has."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    means: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: row["first"]):
        means.setdefault(row["variant"], []).extend(row[half])
    count = min(map(len, means.values()))
    return {name: means[name][:count] for name in VARIANTS if name in means}
