"""Inject numbers that are not finite into a running training: the sites, the ways, and the expected reports."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.support.plain_collector import collector
from uavlab.collectors.off_policy import OffPolicyCollector, ReplayConfig
from uavlab.core.errors import DivergedError
from uavlab.core.rng import Streams
from uavlab.core.types import Scale, Update, leaves
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.learners.masac.loop import MASACLoop
from uavlab.learners.masac.masac import MASAC, MASACConfig, list_tensors
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles
from uavlab.training import check_state, training

VALUES = (math.nan, math.inf, -math.inf, 1e38)  # float32 holds the last one, but not its square
WORLDS, AGENTS, BEFORE = 4, 3, 3  # BEFORE healthy updates come first
ENV = LeaderFollower(followers=AGENTS - 1, horizon=6)


@dataclass(frozen=True)
class Seams(Runtime):
    """A runtime into whose kernels faults can be plugged during training."""

    faults: dict[str, Callable] = field(default_factory=dict)

    def kernel(self, fn: Callable, name: str, part: bool = False) -> Any:
        def call(*args: Any) -> Any:
            return self.faults.get(name, lambda fn, *args: fn(*args))(fn, *args)

        return call


@dataclass
class Trainer:
    """A tiny run with either kind of learner, and the run, world and agent that get the fault."""

    runs: int
    rt: Seams
    source: OffPolicyCollector
    learner: Any
    steps: Iterator[tuple[int, Update]]
    run: int = 0
    world: int = 0
    agent: int = 0

    def at(self, flat: Tensor) -> Tensor:
        """View one world's agent in a tensor of all worlds of all runs."""
        return flat.view(self.runs, WORLDS, AGENTS, -1)[self.run, self.world, self.agent]

    def row(self, table: Tensor) -> Tensor:
        """View the row of the run's agent in a matrix of networks."""
        return table.view(self.runs, AGENTS, -1)[self.run, self.agent]

    def last(self, held: list[Tensor]) -> Tensor:
        """View the last number of the run's agent, in a matrix of networks or in tensors of their own."""
        if len(held) == 1:
            return self.row(held[0])[-1:]
        each = len(held) // (self.runs * AGENTS)
        return held[(self.run * AGENTS + self.agent + 1) * each - 1].view(-1)[-1:]


def build(
    kind: Any = MASAC,
    seams: type[Seams] = Seams,
    source_kind: type[OffPolicyCollector] = OffPolicyCollector,
    share: bool = False,
):
    runs, rt = 3, seams(requested=Toggles(acting="batched"))
    rng = Streams(range(runs))
    flat = torch.zeros(runs, AGENTS, ENV.spec.obs)
    learner = kind(MASACConfig(hidden=4, share=share), ENV.spec, Scale(center=flat, spread=flat + 1), rng, rt)
    config = ReplayConfig(worlds=WORLDS, batch=8, capacity=64, learning_starts=16)
    source = collector(ENV, learner.policy(ENV.spec), config, rng, rt, source_kind)
    trainer = Trainer(runs, rt, source, learner, training(source, learner, rng, rt, 0, 100))
    for _ in range(BEFORE):
        next(trainer.steps)
    return trainer


Site = Callable[[Trainer, float], None]


def state(part: str, key: str) -> Site:
    """Write into a parameter or moment between two updates: ``state_dict`` returns the live tensors."""

    def write(t: Trainer, value: float) -> None:
        held = getattr(t.learner, part).state_dict().items()
        t.last([tensor for name, tensor in held if name.split(".")[-1] == key]).fill_(value)

    return write


def kernel(name: str, spoil: Callable[[Trainer, float, Any], None]) -> Site:
    """Overwrite a number that a kernel returns."""

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
    """The identity with ``extra`` added to its gradient."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, extra: Tensor) -> Tensor:
        ctx.extra = extra
        return theta.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient + ctx.extra, None


def gradient(name: str) -> Site:
    def plug(t: Trainer, value: float) -> None:
        def fault(fn: Callable, theta: Any, *args: Any) -> Any:
            single = isinstance(theta, Tensor)
            own = theta if single else theta[t.run * AGENTS + t.agent][0]
            extra = torch.zeros_like(own)
            (t.row(extra) if single else extra.view(-1))[3] = value
            steeper = Steeper.apply(own, extra)
            if not single:
                steeper = [[steeper if tensor is own else tensor for tensor in net] for net in theta]
            return fn(steeper, *args)

        t.rt.faults[name] = fault

    return plug


WORLD = {  # what environment and policy give: world known, nothing written
    "obs": lambda t, value: t.at(t.source.worlds.obs)[2:3].fill_(value),
    "next_obs": kernel("environment", lambda t, value, out: t.at(out[1].next_obs)[2:3].fill_(value)),
    "reward": kernel("environment", lambda t, value, out: t.at(out[1].reward).fill_(value)),
    "action": kernel("act", lambda t, value, out: t.at(out)[1:2].fill_(value)),
}
MOMENTS = [f"{part}.{key}" for part in ("actor", "critic", "temperature") for key in ("exp_avg", "exp_avg_sq")]
STATE: dict[str, Site] = {name: state(*name.split(".")) for name in MOMENTS} | {
    **{f"{part}.parameter": state(part, "parameter") for part in ("actor", "critic", "temperature")},
    "target.parameter": lambda t, value: t.last(list_tensors(t.learner.target)).fill_(value),
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
SITES: dict[Any, dict[str, Site]] = {kind: {**WORLD, **STATE, **UPDATE} for kind in (MASAC, MASACLoop)}
LARGEST = 1e18


def fine(tensors: Iterator[Tensor]) -> bool:
    return all(bool((tensor.double().abs() <= LARGEST).all()) for tensor in tensors)


def checkpoint_tensors(t: Trainer) -> Iterator[Tensor]:
    """Yield every tensor that a checkpoint would hold."""
    yield from t.learner.state_dict().values()
    yield from t.source.state_dict().values()


def refused(call: Callable[[], Any]) -> DivergedError | None:
    try:
        call()
    except DivergedError as error:
        return error
    return None


def inject(
    kind: Any,
    name: str,
    value: float,
    seams: type[Seams] = Seams,
    source: type[OffPolicyCollector] = OffPolicyCollector,
) -> str:
    """Inject one number; return what went wrong, empty if nothing did."""
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
    if (verdict is None) != fine(checkpoint_tensors(t)) or (verdict is None and "." in name):
        return "a checkpoint would hold it"
    return ""
