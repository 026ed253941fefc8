"""A check of the contract of ``uavlab.core.protocols.Env`` for authors of environments: ``print(check_env(MyEnv()))``.

The first violation raises ConfigError with the place, the value, the expected value and the next step.
"""

import math
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from uavlab.core.protocols import Env
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.text import require_known
from uavlab.core.types import EnvSpec, Metric
from uavlab.evaluation import COMMON
from uavlab.testing.rollout import ACTIONS, CheckedRollout, is_frozen, place_of, refuse

aten = torch.ops.aten
COPY = "copies numbers from the host (use uavlab.constant)"
VALUE = "reads a value (use torch.where)"
SHAPE = "has a shape that depends on values (use torch.where)"
READS = (aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default)
INDEXING = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default)
MASKS = {torch.bool, torch.uint8}


class HostSyncs(TorchDispatchMode):
    """Records the lines of an environment's methods, or of what they call, at which a GPU would wait for the host."""

    def __init__(self, env: Env) -> None:
        super().__init__()
        self.env = env
        self.places: dict[str, str] = {}  # what each line does, by file and line

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if reason := reason_of(func, args):
            place = place_of(traceback.walk_stack(None), self.env)
            if place:
                self.places.setdefault(place, reason)
        return func(*args, **(kwargs or {}))


def reason_of(func: Any, args: tuple) -> str:
    """Return why a GPU waits for the host in an operator; empty if it does not.

    A single number is left out: ``x[0] = 1.0`` looks like ``torch.tensor(1.0)`` here, and only the latter is a copy.
    """
    if func is aten.lift_fresh.default:  # of torch.tensor, new_tensor and lists as indices, and of numbers
        return COPY if args[0].dim() else ""
    if func in READS:
        return VALUE
    if func in INDEXING:
        single = len(args) > 2 and not args[2].dim()  # a GPU fills by mask
        masks = any(index is not None and index.dtype in MASKS for index in args[1])
        return SHAPE if masks and not single else ""
    return SHAPE if torch.Tag.dynamic_output_shape in func.tags else ""


FUNCTIONS = ("initial", "transition", "observe", "reward", "terminated", "measure")
DOUBLE_STEPS = 20  # in float64, where only types are checked

Range = tuple[float, float, float]
"""Least number, mean and largest number."""


@dataclass(frozen=True, repr=False)
class EnvReport:
    """Counts and figures of ``check_env``; ``print`` shows them as a few lines.

    The figures show what a contract cannot: whether numbers have a sensible size, and whether actions matter.
    """

    env: str  # its ``repr``
    worlds: int  # in the batch
    steps: int  # of each world under each kind of actions (random, corner and zero)
    started: int  # episodes
    terminated: int  # episodes ended by the task
    truncated: int  # episodes ended by the time limit
    tensors: int  # whose shape, type and values were checked
    unmarked: int  # steps after which some but not all tasks had ended, although ``spec.deaths`` is not set
    metrics: tuple[str, ...]  # their names
    observations: Range  # under random actions
    rewards: Range  # under random actions
    returns: tuple[float, ...]  # of whole episodes with random actions, mean over agents
    effect: tuple[float, float]  # largest change of an observation and of a reward from random to zero actions
    syncs: tuple[str, ...]  # lines at which a GPU waits for the host, and why
    not_exact: tuple[str, ...] = ()  # why runs cannot be repeated bit for bit

    def __repr__(self) -> str:
        """Describe the checks, one fact per line."""
        total, ends = self.worlds * self.steps * len(ACTIONS), (self.terminated, self.truncated)
        returns = "none of random actions: no episode ended; take more steps"
        if self.returns:
            each = torch.tensor(self.returns, dtype=torch.float64)
            spread = each.std(correction=0).item()
            returns = f"{each.mean().item():.4g} of random actions, +- {spread:.4g} over {len(each)} episodes"
        effect = "observations by up to {:.4g}, rewards by up to {:.4g}".format(*self.effect)
        warning = "  WARNING   actions change nothing: random and zero actions had the same observations and rewards"
        deaths = (
            f"\n  WARNING   {self.unmarked} steps went on after the end of an agent's task; set deaths=True in spec, or"
            " replay holds its rows after the end"
        )
        return (
            (
                f"{self.env} keeps the contract of an environment.\n"
                f"  steps     {total}: {self.worlds} worlds x {self.steps} steps, {', '.join(ACTIONS)} actions\n"
                f"  episodes  {self.started} started, {ends[0]} ended by the task, {ends[1]} by the horizon\n"
                f"  checked   {self.tensors} tensors; every rollout repeated and continued past its end,"
                " every world also stepped alone\n"
                f"  metrics   {', '.join(self.metrics)}\n"
                f"  observed  {_format_range(self.observations)}\n"
                f"  rewards   {_format_range(self.rewards)}\n"
                f"  return    {returns}\n"
            )
            + (f"  actions   change {effect}" if any(self.effect) else warning)
            + deaths * (self.unmarked > 0)
            + "".join(f"\n  WARNING   not exact: {each}" for each in self.not_exact)
            + "".join(f"\n  WARNING   {each}: a GPU waits, and CUDA graphs cannot hold it" for each in self.syncs)
        )


@lru_cache
def check_form(env: Env) -> None:
    """Check members, metrics and one step of two worlds, as ``uavlab.start`` does for every new run."""
    _check_members(env)
    CheckedRollout(env, 2, "random", torch.float32).step()


def check_env(env: Env | str, worlds: int = 7, steps: int = 300) -> EnvReport:
    """Step an environment hundreds of times and raise at the first violation of the contract of ``Env``.

    Args:
        env: The environment with the parameters to be checked, or the name of a registered one.
        worlds: Worlds in the batch, at least 2, so that dependence between worlds is detected.
        steps: Steps of each world under random, corner (every action -1 or 1; the last legal move) and zero actions
            (the first legal move), at least 1; a time limit of more steps is not reached.

    Returns:
        Counts of what was checked, and the sizes of observations, rewards and returns under random actions.

    Raises:
        ConfigError: The environment breaks the contract, or ``worlds`` or ``steps`` is too small.
    """
    if worlds < 2 or steps < 1:
        refuse("check_env", f"worlds={worlds}, steps={steps}", "worlds >= 2 and steps >= 1, or neither")
    if isinstance(env, str):
        require_known("environment", env, ENVIRONMENTS, "check_env: ")
        return check_env(ENVIRONMENTS[env].kind(), worlds, steps)
    if isinstance(env, type):
        refuse("check_env", f"the class {env.__name__}", f"an object of it: check_env({env.__name__}())")
    _check_members(env)
    counts: Counter[str] = Counter()
    random: list[dict[str, Tensor]] = []
    returns: list[float] = []
    for actions in ACTIONS:
        rollout, repeated = (CheckedRollout(env, worlds, actions, torch.float32) for _ in range(2))
        history = [rollout.step() for _ in range(steps)]
        for results in history:
            repeated.repeat(results)
        beyond = CheckedRollout(env, worlds, actions, torch.float32, past_end=True)
        for _ in range(steps):
            beyond.step()
        counts.update(rollout.counts)
        if actions == "random":
            random, returns = history, rollout.returns
    double = CheckedRollout(env, worlds, "random", torch.float64)
    for _ in range(min(steps, DOUBLE_STEPS)):
        double.step()
    still = CheckedRollout(env, worlds, "zero", torch.float32, seed=ACTIONS.index("random"))
    return EnvReport(
        repr(env),
        worlds,
        steps,
        **counts,
        metrics=tuple(m.name for m in env.metrics),
        observations=_range(random, "observe"),
        rewards=_range(random, "reward"),
        returns=tuple(returns),
        effect=_effect(random, [still.step() for _ in range(steps)]),
        syncs=_syncs(env),
        not_exact=tuple(env.inexact()) if hasattr(env, "inexact") else (),
    )


def _range(history: Sequence[Mapping[str, Tensor]], name: str) -> Range:
    """Return least number, mean and largest number of all floating point results whose name begins with ``name``."""
    flat = [leaf.flatten() for results in history for key, leaf in results.items() if key.startswith(name)]
    flat = [leaf for leaf in flat if leaf.is_floating_point() and len(leaf)]
    mean = sum(leaf.double().sum().item() for leaf in flat) / sum(map(len, flat))
    return min(leaf.min().item() for leaf in flat), mean, max(leaf.max().item() for leaf in flat)


def _format_range(numbers: Range) -> str:
    return f"{numbers[0]:.4g} to {numbers[2]:.4g}, mean {numbers[1]:.4g}, under random actions"


def _effect(history: Sequence[Mapping[str, Tensor]], other: Sequence[Mapping[str, Tensor]]) -> tuple[float, float]:
    """Return the largest difference of an observation and of a reward between two rollouts with equal noise."""

    def largest(name: str) -> float:
        pairs = ((a[key], b[key]) for a, b in zip(history, other, strict=True) for key in a if key.startswith(name))
        return max((a.double() - b.double()).abs().max().item() for a, b in pairs if a.numel())

    return largest("observe"), largest("reward")


def _syncs(env: Env) -> tuple[str, ...]:
    """Return the lines of the methods at which a GPU waits for the host, once constants are on the device.

    An environment that works on the host by nature, as those of others do, has none that can be avoided.
    """
    if hasattr(env, "host_work"):
        return ()
    with HostSyncs(env) as syncs:
        CheckedRollout(env, 2, "random", torch.float32).step()
    return tuple(f"{place} {reason}" for place, reason in syncs.places.items())


def _check_members(env: Env) -> None:
    """Check what an environment has before it is stepped."""
    name = type(env).__name__
    for member in ("spec", "metrics", "score", *FUNCTIONS):
        if not hasattr(env, member):
            refuse(name, f"no {member}", f"{', '.join(FUNCTIONS)}, spec, metrics and score")
    if not is_frozen(env):
        refuse(name, "a class that can change", "parameters of a class with @dataclass(frozen=True) on it")
    try:
        hash(env)
    except TypeError as error:
        refuse(name, f"{error}", "hashable parameters: tuples instead of lists, dicts and arrays")
    if not isinstance(env.spec, EnvSpec):
        refuse(f"{name}.spec", type(env.spec).__name__, "uavlab.EnvSpec(...)")
    _check_spec(f"{name}.spec", env.spec)
    _check_metrics(env)
    if hasattr(env, "check_chance"):
        env.check_chance()  # compares copies of the environment; that they differ is no violation


def _check_spec(where: str, spec: EnvSpec) -> None:
    least = {"agents": 1, "obs": 1, "action": 1, "horizon": 1, "initial_noise": 0, "step_noise": 0}
    least |= {"choices": 0, "team": 0, "side": 0, "features": 0}
    for field, low in least.items():
        value = getattr(spec, field)
        if type(value) is not int or value < low:
            refuse(f"{where}.{field}", repr(value), f"a whole number from {low} up")
    if spec.features and not spec.side:
        refuse(f"{where}.features", f"{spec.features} with side=0", "0 where agents observe no maps: count them in obs")
    if not (isinstance(spec.dt, (int, float)) and 0 < spec.dt < math.inf):
        refuse(f"{where}.dt", repr(spec.dt), "a positive, finite number of seconds")
    if not isinstance(spec.groups, tuple) or len(spec.groups) != spec.agents:
        expected = f"a tuple of {spec.agents} labels, equal ones for agents that are interchangeable"
        refuse(f"{where}.groups", repr(spec.groups), expected)


def _check_metrics(env: Env) -> None:
    where, common = f"{type(env).__name__}.metrics", [m.name for m in COMMON]
    names = list(common)
    for metric in env.metrics:
        if not isinstance(metric, Metric):
            refuse(where, repr(metric), "Metric objects: uavlab.Metric(name, over)")
        if metric.name in names:
            expected = f"every name once; {', '.join(common)} are measured for every environment"
            refuse(where, f"{metric.name!r} twice", expected)
        if metric.over not in ("last", "mean", "sum", "outcome") or metric.better not in ("high", "low"):
            refuse(where, repr(metric), "over 'last', 'mean', 'sum' or 'outcome' and better 'high' or 'low'")
        names.append(metric.name)
    _check_score(f"{type(env).__name__}.score", env.score, names)
    of_groups, groups = getattr(env, "group_scores", {}), [part.name for part in env.spec.parts]
    if of_groups and (not isinstance(of_groups, Mapping) or set(of_groups) != set(groups)):
        refuse(f"{type(env).__name__}.group_scores", repr(of_groups), f"a score for each of {groups}, or none")
    for group, score in of_groups.items():
        _check_score(f"{type(env).__name__}.group_scores[{group!r}]", score, names)


def _check_score(where: str, score: Any, names: Sequence[str]) -> None:
    if not isinstance(score, Mapping) or not score:
        expected = f"weights of some of {', '.join(names)}: the best policy of a run is selected by this sum"
        refuse(where, repr(score), expected)
    for name, weight in score.items():
        if name not in names or not (isinstance(weight, (int, float)) and math.isfinite(weight)):
            refuse(where, f"{name!r}: {weight!r}", f"finite weights of what is measured: {', '.join(names)}")
