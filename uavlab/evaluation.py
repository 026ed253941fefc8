"""Scores of a policy over whole episodes with 95 % intervals, from random streams of their own."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core import statistics
from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Env, Policy, initial_memory, step_policy
from uavlab.core.registry import Settings
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.types import EnvSpec, Metric, legal_of, split_groups, tree_map
from uavlab.envs.autoreset import judge, move, out_of_time, require_tensor, start_worlds
from uavlab.envs.tally import mean_reward
from uavlab.ops.action_sampling import random_moves, without_padding
from uavlab.runtime.runtime import Runtime

COMMON = (
    Metric("flight_time", "sum", "steps", better="low"),
    Metric("timeout", "outcome", better="low"),
    Metric("return", "sum"),
)
LAST = ("last", "outcome")  # reductions to the value at the last step
CHECK_STEPS = 32  # steps between checks whether all episodes have ended, each a host sync


@dataclass(frozen=True)
class Planner:
    """A hand-written policy that reads the whole state."""

    plan: Callable[[Any, Any, Tensor], Tensor]  # (environment, state of B worlds, uniform noise (B A)) -> actions (B A)


@dataclass(frozen=True)
class Sides:
    """A policy or plan for each group of a team, in the order of its groups."""

    members: tuple[Any, ...]


Chooser = Policy | Planner | Sides
"""What chooses the actions of a team."""


def require_actions(where: str, action: Any, lead: Sequence[int], spec: EnvSpec) -> None:
    """Check shape, type and range of actions of worlds with the leading axes ``lead``."""
    shape = (*lead, spec.agents, *([] if spec.choices else [spec.action]))
    if not isinstance(action, Tensor) or action.shape != shape:
        got = f"shape {tuple(action.shape)}" if isinstance(action, Tensor) else f"a {type(action).__name__}"
        raise ConfigError(f"{where}: got {got}; expected actions as a tensor of shape {shape}.")
    low, high, do = (0, spec.choices - 1, "return numbers of moves, int64") if spec.choices else (-1, 1, "clamp them")
    typed = action.dtype == torch.int64 if spec.choices else action.is_floating_point()
    if not typed or not ((action >= low) & (action <= high)).all():  # nan compares as false
        got = f"{action.dtype} from {action.min():.3g} to {action.max():.3g}"
        raise ConfigError(f"{where}: got actions of {got}; expected numbers in [{low}, {high}]; {do}.")


def random_policy(obs: Any, noise: Tensor, padding: Bool[Tensor, "A D"] | None = None) -> Tensor:
    """Return uniformly random actions, or moves among those that are open, from the noise of ``acting_noise``."""
    if legal_of(obs) is not None:
        return random_moves(obs, noise)
    return without_padding(2 * torch.special.ndtr(noise) - 1, padding)


class Actor:
    """Chooses the actions of worlds step by step, by a policy with or without memory, a plan, or one for each group."""

    def __init__(self, env: Env, policy: Chooser, rng: Streams, count: int, mean_action: bool, stream: str) -> None:
        self.env, self.policy, self.rng, self.mean_action, self.stream = env, policy, rng, mean_action, f"{stream}.act"
        self.lead = len(rng.seeds), count
        self.members = []
        if isinstance(policy, Sides):
            named = enumerate(policy.members)
            self.members = [Actor(env, each, rng, count, mean_action, f"{stream}.{n}") for n, each in named]
        self.memory = initial_memory(policy, *self.lead)

    @torch.no_grad()
    def __call__(self, state: Any, obs: Any) -> Tensor:
        spec, policy, count = self.env.spec, self.policy, self.lead[1]
        if self.members:
            actions = [split_groups(spec, member(state, obs)) for member in self.members]
            return torch.cat([action[part.name] for action, part in zip(actions, spec.parts, strict=True)], 1)
        if isinstance(policy, Planner):
            return policy.plan(self.env, state, self.rng.uniform(self.stream, count, spec.agents).flatten(0, 1))
        noise = None if self.mean_action else acting_noise(self.rng, self.stream, count, spec)
        seen = tree_map(lambda leaf: leaf.unflatten(0, self.lead), obs)
        action, self.memory = step_policy(policy, seen, noise, self.memory)
        return action.flatten(0, 1)


@torch.no_grad()
def simulate(
    env: Env, policy: Chooser, rng: Streams, count: int, mean_action: bool = False, stream: str = "evaluate"
) -> Iterator[tuple[dict[str, Float[Tensor, " B"]], Bool[Tensor, " B"], Bool[Tensor, " B"]]]:
    """Step ``count`` new worlds per run from their start to the horizon.

    Yields:
        For each step the metrics (with return, flight time and timeout), and masks of the worlds that had not ended
        before and after it.
    """
    spec = env.spec
    worlds = start_worlds(env, rng.uniform(f"{stream}.start", count, spec.initial_noise).flatten(0, 1))
    state, obs, live = worlds.state, worlds.obs, torch.ones_like(worlds.replaced, dtype=torch.bool)
    act = Actor(env, policy, rng, count, mean_action, stream)
    for _ in range(spec.horizon):
        action = act(state, obs)
        noise = rng.uniform(f"{stream}.step", count, spec.step_noise).flatten(0, 1)
        after, obs = move(env, state, action, noise, obs)
        reward, terminated = judge(env, state, action, after, noise)
        metrics, ended = dict(env.measure(state, action, after)), terminated.all(-1)
        for metric in env.metrics:
            require_tensor(env, f"measure[{metric.name!r}]", metrics.get(metric.name), live.shape, noise.dtype)
        metrics["return"] = mean_reward(env, state, reward)
        metrics["flight_time"] = torch.ones_like(metrics["return"])
        late = out_of_time(env, after)
        metrics["timeout"] = late.to(metrics["return"].dtype) * ~ended
        left = live & ~(ended | late)
        yield metrics, live, left
        state, live = after, left


def episodes(
    env: Env, policy: Chooser, rng: Streams, count: int, mean_action: bool = False, stream: str = "evaluate"
) -> dict[str, Float[Tensor, "R E"]]:
    """Run ``count`` episodes per run to their ends; return metrics, flight time, timeout and mean return of agents."""
    sums: dict[str, Tensor] = {}
    for step, (metrics, live, still) in enumerate(simulate(env, policy, rng, count, mean_action, stream)):
        for metric in (*env.metrics, *COMMON):
            value, before = metrics[metric.name], sums.get(metric.name, torch.zeros_like(metrics["return"]))
            sums[metric.name] = torch.where(live, value if metric.over in LAST else before + value, before)
        if step % CHECK_STEPS == CHECK_STEPS - 1 and not still.any():  # host sync
            break
    for metric in env.metrics:
        if metric.over == "mean":
            sums[metric.name] = sums[metric.name] / sums["flight_time"]
    return {name: value.view(len(rng.seeds), count) for name, value in sums.items()}


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def interval(
    values: Float[Tensor, "R E"], outcomes: bool = False, bounds: tuple[float, float] = (-math.inf, math.inf)
) -> Interval:
    """Return the mean with its 95 % interval, which ends at the ``bounds`` of the values.

    Of one run it is the bootstrap interval over episodes, or the exact one of a share where ``outcomes`` are all 0 or
    1. Of several runs it is Student's interval of the means of runs, because episodes of a run are not independent; for
    outcomes it also holds the exact interval of all episodes, which is all that is known of runs that agree.
    """
    table = values.double().cpu().numpy()
    mean, low, high = statistics.of_runs(table)
    if outcomes and ((table == 0) | (table == 1)).all():
        _, least, most = statistics.share(int(table.sum()), table.size)
        low, high = (min(low, least), max(high, most)) if len(table) > 1 else (least, most)
    least, most = (0.0, 1.0) if outcomes else bounds
    return Interval(mean, max(low, least), min(high, most))


def summary(figures: Mapping[str, Tensor], metrics: Sequence[Metric]) -> dict[str, dict[str, Any]]:
    """Return ``mean``, ``low`` and ``high`` of each metric; for several runs also the mean of ``each`` run."""
    result = {m.name: vars(interval(figures[m.name], m.over == "outcome", m.bounds)) for m in (*metrics, *COMMON)}
    for name, figure in result.items():
        if len(figures[name]) > 1:
            figure["each"] = figures[name].mean(1).tolist()
    return result


class Evaluation:
    """How policies on an environment are evaluated: over whole episodes."""

    count: ClassVar[str] = "{} episodes"  # format of their number
    flies: ClassVar[bool] = True  # a team acts, whose flights can be animated and whose environment can be checked

    def figures(
        self, config: Settings, env: Any, policy: Any, rng: Streams, count: int, mean_action: bool, stream: str
    ) -> dict[str, Float[Tensor, "R E"]]:
        """Return the figures of a policy by run and episode; ``stream`` names the random streams."""
        return episodes(env, policy, rng, count, mean_action, stream)

    def summary(self, env: Any, figures: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
        """Return the mean and the interval of each figure."""
        return summary(figures, env.metrics)

    def units(self, env: Any) -> dict[str, str]:
        """Return the unit of each figure."""
        return {metric.name: metric.unit for metric in (*env.metrics, *COMMON)}

    def baseline(self, config: Settings, rt: Runtime, plan: Callable[..., Any]) -> Any:
        """Return a registered baseline as a policy."""
        return Planner(plan)

    def check(self, config: Settings) -> Any:
        """Return the report of a check where no team acts; raise if a condition of training is violated."""
        raise NotImplementedError


EPISODES = Evaluation()
