"""A task with a rare reward, learned in seconds: two UAVs fly to their pads, and only a pad pays; and its stages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.types import EnvSpec, Metric, tensors
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab_lab.labels import label_of
from uavlab_lab.plots import charts

UAVS = 2
REACH = 0.1  # units: the most that a UAV flies in a step


@tensors
class State:
    """Where each UAV is, as seen from its pad (units), and the number of steps."""

    offset: Float[Tensor, "B 2 2"]
    step: Int[Tensor, " B"]


@dataclass(frozen=True)
class Landing:
    """Two UAVs, each rewarded by 1 for every step on its pad, and by nothing elsewhere.

    Attributes:
        far: Distance from the pad at the start (units), in any direction.
        pad: Radius of a pad (units).
        horizon: Steps of an episode.
    """

    far: Annotated[float, Gt(0), Le(10)] = 2.0
    pad: Annotated[float, Gt(0), Le(1)] = 0.15
    horizon: Annotated[int, Gt(0), Le(1000)] = 30

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("landed", "last", bounds=(0.0, 1.0)),)
    labels: ClassVar[dict[str, str]] = {"landed": "share of UAVs on their pads at the end"}
    score: ClassVar[dict[str, float]] = {"landed": 1.0}
    initial_settings: ClassVar[tuple[str, ...]] = ("far",)

    @property
    def spec(self) -> EnvSpec:
        """Shapes of the task."""
        return EnvSpec(
            agents=UAVS, obs=2, action=2, horizon=self.horizon, dt=1.0, initial_noise=UAVS, step_noise=0,
            groups=(0,) * UAVS,
        )  # fmt: skip

    def initial(self, noise: Float[Tensor, "B 2"]) -> State:
        """Start each UAV in a direction of its own."""
        angle = 2 * torch.pi * noise
        offset = self.far * torch.stack((angle.cos(), angle.sin()), -1)
        return State(offset=offset, step=torch.zeros_like(noise[:, 0], dtype=torch.int64))

    def transition(self, state: State, action: Float[Tensor, "B 2 2"], noise: Float[Tensor, "B 0"]) -> State:
        """Fly a step."""
        return State(offset=state.offset + REACH * action.clamp(-1, 1), step=state.step + 1)

    def observe(self, state: State) -> Float[Tensor, "B 2 2"]:
        """Return where each UAV is."""
        return state.offset.clone()

    def landed(self, state: State) -> Float[Tensor, "B 2"]:
        """Return 1 for UAVs on their pads, 0 for others."""
        return (state.offset.norm(dim=-1) < self.pad).to(state.offset.dtype)

    def reward(self, state: State, action: Float[Tensor, "B 2 2"], after: State) -> Float[Tensor, "B 2"]:
        """Return 1 for each UAV on its pad."""
        return self.landed(after)

    def terminated(self, state: State) -> Bool[Tensor, "B 2"]:
        """Return that an episode never ends early."""
        return torch.zeros_like(state.offset[..., 0], dtype=torch.bool)

    def measure(self, state: State, action: Float[Tensor, "B 2 2"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Return the share of UAVs on their pads."""
        return {"landed": self.landed(after).mean(1)}


SETTINGS: dict[str, Any] = {
    **{"hidden": 16, "worlds": 64, "rollout_steps": 30, "epochs": 4, "minibatches": 2},
    **{"lr": 3e-3, "critic_lr": 3e-3, "entropy": 0.03},
    **{"evaluate_every": 2, "evaluate_episodes": 50, "log_every": 1000},
}
"""Settings with which MAPPO learns the task in seconds."""

CURRICULUM: dict[str, Any] = {
    "metric": "landed",
    "stages": [
        {"far": 0.3, "mark": 0.8, "passes": 2, "patience": 0},
        {"far": 0.8, "mark": 0.8, "passes": 2, "patience": 0, "mix": [0.7, 0.3]},
        {"far": 2.0, "mark": 0.8, "passes": 2, "patience": 0, "mix": [0.7, 0.3]},
    ],
}
"""Three stages, from starts next to the pads to starts from where nobody finds one by chance."""

TOO_FAST: dict[str, Any] = {"rate": 100.0}
RULES: dict[str, Any] = {"settle": 2, "failures": 2, "fallbacks": 3, "decay": 0.3}


def failing() -> Mapping[str, Any]:
    """Return the curriculum with learning rates at the second stage that break what was learned, and quick fallbacks.

    After the first fallback three tenths of these rates are left, which learn.
    """
    first, second, last = CURRICULUM["stages"]
    return {**CURRICULUM, **RULES, "stages": [first, {**second, **TOO_FAST}, last]}


def best_scores(run: Run) -> dict[int, float]:
    """Return the best score among the seeds of a run, by update."""
    best: dict[int, float] = {}
    for row in run.rows():
        if "eval/landed" in row:
            best[row["update"]] = max(row["eval/landed"], best.get(row["update"], 0.0))
    return best


def preset_stages(name: str) -> tuple[Any, dict[str, Any]]:
    """Return the environment of a preset and its curriculum, a table with ``stages``."""
    config = configure(name)
    return config.env, {**config.values["curriculum"]}


def summary(table: Mapping[str, Any]) -> charts.Table:
    """Tabulate the stages of a curriculum, one in each row; a dash is what a stage leaves as it is."""
    names = dict.fromkeys(name for stage in table["stages"] for name in stage)
    rows = [
        {"": number, **{name: _text(value) for name, value in stage.items()}}
        for number, stage in enumerate(table["stages"], 1)
    ]
    return charts.table(rows, {"": "stage", **{name: label_of(name) for name in names}})


def _text(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value)
