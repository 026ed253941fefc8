"""Registrations as in a user's own file; no file of the package or of the contracts names them.

``Drift`` is an environment, ``Reinforce`` a second algorithm for every environment with continuous actions, ``doubled``
a toggle, ``adding`` a suite, ``drift_quick`` a preset.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float
from torch import Tensor

from uavlab.bench.registry import suite
from uavlab.core.protocols import CheckedTensors, Policy
from uavlab.core.registry import LEARNERS, LearnerEntry, Resume
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, EnvSpec, Metric, Rollout, Update, tensors
from uavlab.envs import register as register_environment
from uavlab.experiment.presets import PRESETS, Preset
from uavlab.runtime.grad_step import MOMENTS, Rows
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggle
from uavlab.runtime.toggles import register as register_toggle


@tensors
class State:
    pos: Tensor  # B A
    step: Tensor  # B


@dataclass(frozen=True)
class Drift:
    """Two agents on a line, each rewarded for staying near the origin against a drift.

    Attributes:
        wind: Largest drift per step.
    """

    wind: Annotated[float, Ge(0), Le(1)] = 0.1
    metrics: ClassVar = (Metric("distance", "mean", better="low"),)
    score: ClassVar = {"distance": -1.0}

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(2, obs=1, action=1, horizon=8, dt=1.0, initial_noise=2, step_noise=2, groups=(0, 0))

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


register_environment("drift", Drift)


@dataclass(frozen=True)
class ReinforceConfig:
    """Hyper-parameters.

    Attributes:
        lr: Adam's learning rate.
        sd: Standard deviation of actions.
    """

    lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 1e-2
    sd: Annotated[float, Gt(0), Le(1)] = 0.3


class Reinforce:
    """Williams 1992: a linear policy of all agents, whose log densities are weighted by normalised returns."""

    def __init__(self, config: ReinforceConfig, spec: EnvSpec, rng: Streams, rt: Runtime) -> None:
        self.config, self.spec, self.runs = config, spec, len(rng.seeds)
        first = 0.1 * rng.normal("actor", spec.obs * spec.action)
        self.actor = rt.grad(first, config.lr, 1.0)
        self._act = rt.kernel(mean_action, "act")
        self._loss = rt.kernel(self.loss, "actor_loss", part=True)
        self.update = rt.update(self._update, "reinforce")

    def policy(self, spec: EnvSpec, explore: bool = False) -> Policy:
        return acting(self._act, self.actor.parameter, spec, self.config.sd)

    def parameters(self) -> Float[Tensor, "R 1 P"]:
        return self.actor.parameter.detach().clone()[:, None]

    def update_noise(self, rng: Streams, rows: int) -> None:
        return None

    def _update(self, batch: Batch, noise: None) -> Update:
        data: Rollout = batch.data
        returns = data.reward.flip(1).cumsum(1).flip(1)
        advantage = (returns - returns.mean((1, 2), keepdim=True)) / (returns.std((1, 2), keepdim=True) + 1e-6)
        rows = (data.obs[:, :-1].flatten(1, 2), data.action[:, :-1].flatten(1, 2), advantage.flatten(1, 2))
        metrics, norm = self.actor(self._loss, self.actor.parameter, *(Rows(part, 1) for part in rows))
        return Update({**metrics, "actor_norm": norm})

    def loss(self, theta: Tensor, obs: Tensor, action: Tensor, advantage: Tensor) -> tuple[Tensor, dict[str, Any]]:
        off = action - mean_action(theta, obs, self.spec.action)
        loss = (advantage * off.square().sum(-1)).mean((1, 2)) / (2 * self.config.sd**2)
        return loss.sum(), {"actor_loss": loss.detach()}

    def tensors_to_check(self, update: Update | None = None) -> CheckedTensors:
        if update is not None:
            return {name: (value, "R") for name, value in update.metrics.items()}
        state = self.actor.state_dict()
        return {f"actor.{key}": (state[key], "R") for key in ("parameter", *MOMENTS[1:])}

    def state_dict(self) -> dict[str, Tensor]:
        return {f"actor.{key}": value for key, value in self.actor.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.actor.load_state_dict({key.removeprefix("actor."): value for key, value in state.items()})


def mean_action(theta: Float[Tensor, "R P"], obs: Float[Tensor, "R N A O"], outputs: int) -> Float[Tensor, "R N A D"]:
    return torch.tanh(torch.einsum("rnao,rod->rnad", obs, theta.view(len(theta), -1, outputs)))


def acting(net: Callable[..., Tensor], theta: Tensor, spec: EnvSpec, sd: float) -> Policy:
    @torch.no_grad()
    def act(obs: Tensor, noise: Tensor | None) -> Tensor:
        mean = net(theta, obs, spec.action)
        return mean if noise is None else mean + sd * noise

    return act


def require_same(config: ReinforceConfig, trained: EnvSpec, spec: EnvSpec) -> None:
    if (trained.obs, trained.action) != (spec.obs, spec.action):
        raise ValueError("other observations or actions")


LEARNERS.register(
    "reinforce",
    LearnerEntry(
        settings=ReinforceConfig,
        collector="on_policy",
        build=lambda config, data, rng, rt: Reinforce(config.learner, config.env.spec, rng, rt),
        load_policy=lambda config, trained, spec, theta: acting(mean_action, theta[:, 0], spec, config.sd),
        size=lambda config, spec: spec.obs * spec.action,
        refusal=lambda spec: None if isinstance(spec, EnvSpec) and not spec.choices else "actions are no numbers",
        require_same=require_same,
        unserved={"update": "there is one form of it", "acting": "all agents act at once"},
    ),
)
register_toggle(
    Toggle(
        name="doubled",
        kind=Annotated[int, Ge(1), Le(9)],
        default=1,
        about="How often a pure function is called.",
        seam="kernel",
        equality="exact",
        claim="half the speed",
        cost="time",
        wrap=lambda fn, value, name: lambda *args: [fn(*args) for _ in range(value if name == "act" else 1)][-1],
    )
)
PRESETS.register("drift_quick", Preset("drift", "Drift by REINFORCE.", {"learner": "reinforce", "worlds": 8}))


@suite("adding", about="one sum")
def adding(rounds: int, device: str) -> dict[str, Any]:
    """Return the sum of two numbers, ``rounds`` times."""
    return {"rows": [{"round": n, "sum": 1 + 1} for n in range(rounds)]}
