"""Registrations as in a user's own file; no file of the package or of the contracts names them.

``Drift`` is an environment with a baseline and a picture, ``Reinforce`` a second algorithm for every environment with
continuous actions, ``doubled`` a toggle, ``adding`` a suite, ``drift_quick`` a preset.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import plotly.graph_objects as go
import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float
from torch import Tensor

import uavlab as ul
from uavlab.core.symptoms import Symptoms, times


@ul.tensors
class State:
    pos: Tensor  # B A
    step: Tensor  # B


@ul.env("drift")
@dataclass(frozen=True)
class Drift:
    """Two agents on a line, each rewarded for staying near the origin against a drift.

    Attributes:
        wind: Largest drift per step.
    """

    wind: Annotated[float, Ge(0), Le(1)] = 0.1
    metrics: ClassVar = (ul.Metric("distance", "mean", better="low"),)
    score: ClassVar = {"distance": -1.0}

    @property
    def spec(self) -> ul.EnvSpec:
        return ul.EnvSpec(2, obs=1, action=1, horizon=8, dt=1.0, initial_noise=2, step_noise=2, groups=(0, 0))

    def initial(self, noise: Tensor) -> State:
        return State(pos=2 * noise - 1, step=torch.zeros_like(noise[:, 0], dtype=torch.int64))

    def transition(self, state: State, action: Tensor, noise: Tensor) -> State:
        pos = state.pos + 0.2 * action[..., 0].clamp(-1, 1) + self.wind * (noise - 0.5)
        return State(pos=pos.clamp(-2, 2), step=state.step + 1)

    def observe(self, state: State) -> Tensor:
        return state.pos[..., None].clone()

    def reward(self, state: State, action: Tensor, after: State) -> Tensor:
        return -after.pos.abs()

    def terminated(self, state: State) -> Tensor:
        return state.pos.abs() >= 2

    def measure(self, state: State, action: Tensor, after: State) -> dict[str, Tensor]:
        return {"distance": after.pos.abs().mean(-1)}


@ul.baseline("drift", "still")
def still(env: Drift, state: State, noise: Tensor) -> Tensor:
    return torch.zeros_like(noise)[..., None]


@ul.scene(Drift)
def draw(env: Drift, states: Sequence[State]) -> go.Figure:
    frames = [go.Frame(data=[go.Scatter(x=state.pos[0], y=[0, 1], mode="markers")]) for state in states]
    return go.Figure(data=frames[0].data, frames=frames)


@dataclass(frozen=True)
class ReinforceConfig:
    """Hyper-parameters.

    Attributes:
        lr: Adam's learning rate.
        sd: Standard deviation of actions.
    """

    lr: Annotated[float, Gt(0), Le(1), ul.Resume.YES] = 1e-2
    sd: Annotated[float, Gt(0), Le(1)] = 0.3


@ul.learner(
    "reinforce",
    settings=ReinforceConfig,
    collector="on_policy",
    require_same=lambda config, trained, spec: require_same(trained, spec),
    symptoms=Symptoms(loss="actor_loss", remedies={"scores_still": (times("lr", 3, most=1.0),)}),
)
class Reinforce(ul.Learner):
    """Williams 1992: a linear policy of all agents, whose log densities are weighted by normalised returns."""

    def __init__(self, config: ReinforceConfig, spec: ul.EnvSpec, rng: ul.Streams, rt: ul.Runtime) -> None:
        self.config, self.spec, self.runs, self.ranks = config, spec, len(rng.seeds), rt.ranks
        first = 0.1 * rng.normal("actor", spec.obs * spec.action)
        self.actor = rt.grad(first, config.lr, 1.0)
        self._act = rt.kernel(mean_action, "act")
        self._loss = rt.kernel(self.loss, "actor_loss", part=True)
        self._step = rt.update(self._ascend, "reinforce")

    def policy(self, spec: ul.EnvSpec, explore: bool = False) -> ul.Policy:
        require_same(self.spec, spec)

        @torch.no_grad()
        def act(obs: Tensor, noise: Tensor | None) -> Tensor:
            mean = self._act(self.actor.parameter, obs, spec.action)
            return mean if noise is None else (mean + self.config.sd * noise).clamp(-1, 1)

        return act

    def update(self, batch: ul.Batch, noise: None) -> ul.Update:
        return self._step(batch.data)

    def _ascend(self, data: ul.Rollout) -> ul.Update:
        returns = data.reward.flip(1).cumsum(1).flip(1)
        off = returns - self.mean(returns)
        advantage = off / (self.mean(off.square()).sqrt() + 1e-6)
        rows = (data.obs[:, :-1].flatten(1, 2), data.action[:, :-1].flatten(1, 2), advantage.flatten(1, 2))
        metrics, norm = self.actor(self._loss, self.actor.parameter, *(ul.Rows(part, 1) for part in rows))
        return ul.Update({**metrics, "actor_norm": norm})

    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean over the rows of all ranks, which is that of this process where it trains alone."""
        return self.ranks.mean(rows.mean((1, 2), keepdim=True))

    def loss(self, theta: Tensor, obs: Tensor, action: Tensor, advantage: Tensor) -> tuple[Tensor, dict[str, Any]]:
        off = action - mean_action(theta, obs, self.spec.action)
        loss = (advantage * off.square().sum(-1)).mean((1, 2)) / (2 * self.config.sd**2)
        return loss.sum(), {"actor_loss": loss.detach()}


def mean_action(theta: Float[Tensor, "R P"], obs: Float[Tensor, "R N A O"], outputs: int) -> Float[Tensor, "R N A D"]:
    return torch.tanh(torch.einsum("rnao,rod->rnad", obs, theta.view(len(theta), -1, outputs)))


def require_same(trained: ul.EnvSpec, spec: ul.EnvSpec) -> None:
    if (trained.obs, trained.action) != (spec.obs, spec.action):
        raise ValueError("other observations or actions")


@ul.toggle(
    "doubled",
    kind=Annotated[int, Ge(1), Le(9)],
    default=1,
    about="How often a pure function is called.",
    equality="exact",
    claim="half the speed",
    cost="time",
)
def doubled(fn: Any, value: int, name: str) -> Any:
    return lambda *args: [fn(*args) for _ in range(value if name == "act" else 1)][-1]


ul.preset("drift_quick", "drift", {"learner": "reinforce", "worlds": 8}, about="Drift by REINFORCE.")


@ul.suite("adding", about="one sum")
def adding(rounds: int, device: str) -> dict[str, Any]:
    """Return the sum of two numbers, ``rounds`` times."""
    return {"rows": [{"round": n, "sum": 1 + 1} for n in range(rounds)]}
