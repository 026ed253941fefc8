"""Numbers that are not finite, injected into a training that runs: at which sites, how, and what must come of it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from uavlab.core.errors import DivergedError
from uavlab.core.rng import Streams
from uavlab.core.types import Inputs, Transition, leaves
from uavlab.envs.leader_follower import LeaderFollower
from uavlab.learners.masac import MASAC, MASACConfig
from uavlab.learners.masac_loop import MASACLoop
from uavlab.runtime.runtime import Runtime
from uavlab.sources import ReplayConfig, Replayed
from uavlab.train import Step, check_state, training

VALUES = (math.nan, math.inf, -math.inf, 1e38)  # float32 holds the last one, but not its square
WORLDS, AGENTS, BEFORE = 4, 3, 3  # BEFORE healthy updates come first
ENV = LeaderFollower(followers=AGENTS - 1, horizon=6)


@dataclass(frozen=True)
class Seams(Runtime):
    """A runtime at whose kernels faults can be plugged in while training goes on."""

    faults: dict[str, Callable] = field(default_factory=dict)

    def kernel(self, fn: Callable, name: str) -> Any:
        def call(*args: Any) -> Any:
            return self.faults.get(name, lambda fn, *args: fn(*args))(fn, *args)

        return call


@dataclass
class Trainer:
    """A tiny run, its learner either kind, and where the fault goes."""

    runs: int
    rt: Seams
    source: Replayed
    learner: Any
    steps: Iterator[Step]
    run: int = 0
    world: int = 0
    agent: int = 0

    def at(self, flat: Tensor) -> Tensor:
        """View one world's agent in a tensor of all worlds of all runs."""
        return flat.view(self.runs, WORLDS, AGENTS, -1)[self.run, self.world, self.agent]

    def row(self, table: Tensor) -> Tensor:
        """View the row of the run's agent in a matrix of networks."""
        return table.view(self.runs, AGENTS, -1)[self.run, self.agent]


def build(kind: Any = MASAC, seams: type[Seams] = Seams, source_kind: type[Replayed] = Replayed, share: bool = False):
    runs, rt = (3 if kind is MASAC else 1), seams()
    rng = Streams(range(runs))
    flat = torch.zeros(runs, AGENTS, ENV.spec.obs)
    learner = kind(MASACConfig(hidden=4, share=share), ENV.spec, Inputs(center=flat, scale=flat + 1), rng, rt)
    config = ReplayConfig(worlds=WORLDS, batch=8, capacity=64, learning_starts=16)
    source = source_kind(ENV, learner.policy(ENV.spec), config, rng, rt)
    trainer = Trainer(runs, rt, source, learner, training(source, learner, rng, rt, 0, 100))
    for _ in range(BEFORE):
        next(trainer.steps)
    return trainer


Site = Callable[[Trainer, float], None]


def state(part: str, key: str) -> Site:
    """Write into a parameter or moment between two updates: tensors of a state are the living ones."""

    def write(t: Trainer, value: float) -> None:
        t.row(getattr(t.learner, part).state_dict()[key])[-1] = value

    return write


def loop_state(nets: str, adams: str, key: str) -> Site:
    """Do so in the learner with one network per agent."""

    def write(t: Trainer, value: float) -> None:
        net = getattr(t.learner, nets)[t.agent]
        last = net if isinstance(net, Tensor) else list(net.parameters())[-1]
        moments = getattr(t.learner, adams)[t.agent].state[last] if adams else {}
        moments.get(key, last.data).view(-1)[-1] = value

    return write


def kernel(name: str, spoil: Callable[[Trainer, float, Any], None]) -> Site:
    """Spoil what a kernel returns."""

    def plug(t: Trainer, value: float) -> None:
        def fault(fn: Callable, *args: Any) -> Any:
            out = fn(*args)
            spoil(t, value, out)
            return out

        t.rt.faults[name] = fault

    return plug


def metric(kernel_name: str, name: str) -> Site:
    return kernel(kernel_name, lambda t, value, out: out[1][name][t.run, t.agent].fill_(value))


class Steeper(torch.autograd.Function):
    """The identity, whose gradient has something added to it."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, extra: Tensor) -> Tensor:
        ctx.extra = extra
        return theta.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient + ctx.extra, None


def gradient(name: str) -> Site:
    def plug(t: Trainer, value: float) -> None:
        def fault(fn: Callable, theta: Tensor, *args: Any) -> Any:
            extra = torch.zeros_like(theta)
            t.row(extra)[3] = value
            return fn(Steeper.apply(theta, extra), *args)

        t.rt.faults[name] = fault

    return plug


def loop_target(t: Trainer, value: float) -> None:
    def spoilt(agent: int, data: Transition, noise: Tensor) -> Tensor:
        goal = MASACLoop._target(t.learner, agent, data, noise)
        return torch.where(torch.arange(len(goal)) == 5, value, goal) if agent == t.agent else goal

    t.learner._target = spoilt


def loop_action(t: Trainer, value: float) -> None:
    policy = t.source.policy

    def spoilt(obs: Tensor, noise: Tensor | None) -> Tensor:
        action = policy(obs, noise)
        t.at(action)[0] = value
        return action

    t.source.policy = spoilt


WORLD = {  # what environment and policy give: world known, nothing written
    "obs": lambda t, value: t.at(t.source.worlds.obs)[2:3].fill_(value),
    "next_obs": kernel("advance", lambda t, value, out: t.at(out[1].next_obs)[2:3].fill_(value)),
    "reward": kernel("advance", lambda t, value, out: t.at(out[1].reward).fill_(value)),
    "action": kernel("act", lambda t, value, out: t.at(out[0])[1:2].fill_(value)),
}
MOMENTS = [f"{part}.{key}" for part in ("actor", "critic", "temperature") for key in ("exp_avg", "exp_avg_sq")]
STATE: dict[str, Site] = {name: state(*name.split(".")) for name in MOMENTS} | {
    **{f"{part}.parameter": state(part, "parameter") for part in ("actor", "critic", "temperature")},
    "target.parameter": lambda t, value: t.row(t.learner.target)[-1:].fill_(value),
}
UPDATE: dict[str, Site] = {  # what the update computes
    "target": kernel("targets", lambda t, value, out: out[t.run, t.agent, 5:6].fill_(value)),
    "q": metric("critic_loss", "q"),
    "critic_loss": metric("critic_loss", "critic_loss"),
    "critic_norm": gradient("critic_loss"),
    "entropy": metric("actor_loss", "log_prob"),
    "actor_loss": metric("actor_loss", "actor_loss"),
    "actor_norm": gradient("actor_loss"),
}
SITES: dict[Any, dict[str, Site]] = {
    MASAC: {**WORLD, **STATE, **UPDATE},
    MASACLoop: {
        **{name: WORLD[name] for name in ("obs", "next_obs", "reward")},
        "action": loop_action,
        "target": loop_target,
        "target.parameter": loop_state("targets", "", ""),
        **{
            f"{part}.{key}": loop_state(nets, f"{adams}_adams", key)
            for part, nets, adams in (
                ("actor", "actors", "actor"),
                ("critic", "critics", "critic"),
                ("temperature", "log_alphas", "alpha"),
            )
            for key in ("parameter", "exp_avg", "exp_avg_sq")
        },
    },
}
LARGEST = 1e18


def fine(tensors: Iterator[Tensor]) -> bool:
    return all(bool((tensor.double().abs() <= LARGEST).all()) for tensor in tensors)


def kept(t: Trainer) -> Iterator[Tensor]:
    """Yield every tensor that a checkpoint would hold."""
    yield from t.learner.state_dict().values()
    yield from t.source.state_dict().values()


def refused(call: Callable[[], Any]) -> DivergedError | None:
    try:
        call()
    except DivergedError as error:
        return error
    return None


def inject(kind: Any, name: str, value: float, seams: type[Seams] = Seams, source: type[Replayed] = Replayed) -> str:
    """Inject one number; tell what went other than promised, nothing if all is well."""
    t = build(kind, seams, source)
    turn = 4 * list(SITES[kind]).index(name) + [str(v) for v in VALUES].index(str(value))
    t.run, t.world, t.agent = turn % t.runs, turn % WORLDS, (turn // 3) % AGENTS
    rows = int(t.source.ring.size)
    SITES[kind][name](t, value)
    error = refused(lambda: next(t.steps))
    if not fine(leaf for _, leaf in leaves(t.source.ring.rows)):
        return "replay holds it"
    if error is None:
        return "not found within one update"
    expected = {"tensor": name, "run": t.run, "agent": t.agent, "update": BEFORE if "." in name else BEFORE + 1}
    if name in WORLD:
        expected |= {"world": t.world, "kind": "environment" if name != "action" else "learner"}
        if int(t.source.ring.size) != rows:
            return "the row was written"
    if wrong := {key: error.record.get(key) for key, value in expected.items() if error.record.get(key) != value}:
        return f"located as {wrong}"
    verdict = refused(lambda: check_state(t.source, t.learner, t.rt, BEFORE))
    if (verdict is None) != fine(kept(t)) or (verdict is None and "." in name):
        return "a checkpoint would hold it"
    return ""
