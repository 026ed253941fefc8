"""A check of the contract of ``uavlab.core.protocols.Env`` for authors of environments: ``print(check_env(MyEnv()))``.

The first violation raises ConfigError with the place, the value, the expected value and the next step.
"""

import math
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Env
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.text import require_known
from uavlab.core.types import (
    NO_FLOATS,
    EnvSpec,
    Metric,
    leaves,
    observation_shapes,
    observation_type,
    padded_actions,
    select,
    split_groups,
    tree_map,
)
from uavlab.envs.autoreset import out_of_time
from uavlab.evaluation import COMMON
from uavlab.ops.action_sampling import sample_categorical, without_padding

FUNCTIONS = ("initial", "transition", "observe", "reward", "terminated", "measure")
DOUBLE_STEPS = 20  # in float64, where only types are checked

Range = tuple[float, float, float]  # least number, mean and largest number
ACTIONS = ("random", "corner", "zero")
DTYPES = {  # of results whose type differs from that of the noise
    "terminated": torch.bool,
    **{f"observe.{name}": dtype for name, dtype in NO_FLOATS.items()},
}
TOLERANCE = 1e-4  # relative and absolute; rounding depends on the batch size


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
    once: bool = False  # whether a state is stepped once, so that nothing was compared with a second step from it

    def __repr__(self) -> str:
        returns = "none of random actions: no episode ended; take more steps"
        if self.returns:
            values = torch.tensor(self.returns, dtype=torch.float64)
            spread = values.std(correction=0).item()
            returns = f"{values.mean().item():.4g} of random actions, +- {spread:.4g} over {len(values)} episodes"
        effect = "actions   change observations by up to {:.4g}, rewards by up to {:.4g}".format(*self.effect)
        idle = "actions change nothing: random and zero actions had the same observations and rewards"
        deaths = (
            f"{self.unmarked} steps went on after the end of an agent's task; set deaths=True in spec, or replay holds "
            "its rows after the end"
        )
        checked = "every rollout repeated and continued past its end, every world also stepped alone"
        if self.once:
            checked = "not whether rollouts repeat, worlds are independent, or go on past the end"
        warnings = [
            *([] if any(self.effect) else [idle]),
            *([deaths] if self.unmarked else []),
            *(f"not exact: {reason}" for reason in self.not_exact),
            *(f"{place}: a GPU waits, and CUDA graphs cannot hold it" for place in self.syncs),
        ]
        lines = [
            f"{self.env} keeps the contract of an environment.",
            f"steps     {self.worlds * self.steps * len(ACTIONS)}: {self.worlds} worlds x {self.steps} steps, "
            f"{', '.join(ACTIONS)} actions",
            f"episodes  {self.started} started, {self.terminated} ended by the task, {self.truncated} by the horizon",
            f"checked   {self.tensors} tensors; {checked}",
            f"metrics   {', '.join(self.metrics)}",
            "observed  {0:.4g} to {2:.4g}, mean {1:.4g}, under random actions".format(*self.observations),
            "rewards   {0:.4g} to {2:.4g}, mean {1:.4g}, under random actions".format(*self.rewards),
            f"return    {returns}",
            *([effect] if any(self.effect) else []),
            *(f"WARNING   {text}" for text in warnings),
        ]
        return "\n  ".join(lines)


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
        rollout = CheckedRollout(env, worlds, actions, torch.float32)
        history = [rollout.step() for _ in range(steps)]
        if not rollout.once:
            _repeat(env, worlds, actions, history)
        counts.update(rollout.counts)
        if actions == "random":
            random, returns = history, rollout.returns
    double = CheckedRollout(env, worlds, "random", torch.float64)
    for _ in range(min(steps, DOUBLE_STEPS)):
        double.step()
    still = CheckedRollout(env, worlds, "zero", torch.float32, seed=ACTIONS.index("random"))
    idle = [still.step() for _ in range(steps)]
    return EnvReport(
        repr(env),
        worlds,
        steps,
        **counts,
        metrics=tuple(m.name for m in env.metrics),
        observations=_range(random, "observe"),
        rewards=_range(random, "reward"),
        returns=tuple(returns),
        effect=(_effect(random, idle, "observe"), _effect(random, idle, "reward")),
        syncs=_syncs(env),
        not_exact=tuple(env.inexact()) if hasattr(env, "inexact") else (),
        once=hasattr(env, "host_work"),
    )


def _repeat(env: Env, worlds: int, actions: str, history: Sequence[dict[str, Tensor]]) -> None:
    """Compare a rollout with a second one, and take as many steps in worlds that go on past their end."""
    repeated = CheckedRollout(env, worlds, actions, torch.float32)
    for results in history:
        repeated.repeat(results)
    beyond = CheckedRollout(env, worlds, actions, torch.float32, past_end=True)
    for _ in history:
        beyond.step()


def _range(history: Sequence[Mapping[str, Tensor]], name: str) -> Range:
    """Return least number, mean and largest number of all floating point results whose name begins with ``name``."""
    flat = [leaf.flatten() for results in history for key, leaf in results.items() if key.startswith(name)]
    flat = [leaf for leaf in flat if leaf.is_floating_point() and len(leaf)]
    mean = sum(leaf.double().sum().item() for leaf in flat) / sum(map(len, flat))
    return min(leaf.min().item() for leaf in flat), mean, max(leaf.max().item() for leaf in flat)


def _effect(history: Sequence[Mapping[str, Tensor]], other: Sequence[Mapping[str, Tensor]], name: str) -> float:
    """Return the largest difference of observations or rewards between two rollouts with equal noise."""
    pairs = ((a[key], b[key]) for a, b in zip(history, other, strict=True) for key in a if key.startswith(name))
    return max((a.double() - b.double()).abs().max().item() for a, b in pairs if a.numel())


def _syncs(env: Env) -> tuple[str, ...]:
    """Return the lines of the methods at which a GPU waits for the host, once constants are on the device."""
    if hasattr(env, "host_work"):  # by nature, as environments of others do: none can be avoided
        return ()
    with HostSyncs(env) as syncs:
        CheckedRollout(env, 2, "random", torch.float32).step()
    return tuple(f"{place} {reason}" for place, reason in syncs.places.items())


def _check_members(env: Env) -> None:
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
    name, common = type(env).__name__, [m.name for m in COMMON]
    where, names = f"{name}.metrics", list(common)
    for metric in env.metrics:
        if not isinstance(metric, Metric):
            refuse(where, repr(metric), "Metric objects: uavlab.Metric(name, over)")
        if metric.name in names:
            expected = f"every name once; {', '.join(common)} are measured for every environment"
            refuse(where, f"{metric.name!r} twice", expected)
        if metric.over not in ("last", "mean", "sum", "outcome") or metric.better not in ("high", "low"):
            refuse(where, repr(metric), "over 'last', 'mean', 'sum' or 'outcome' and better 'high' or 'low'")
        names.append(metric.name)
    _check_score(f"{name}.score", env.score, names)
    of_groups, groups = getattr(env, "group_scores", {}), [part.name for part in env.spec.parts]
    if of_groups and (not isinstance(of_groups, Mapping) or set(of_groups) != set(groups)):
        refuse(f"{name}.group_scores", repr(of_groups), f"a score for each of {groups}, or none")
    for group, score in of_groups.items():
        _check_score(f"{name}.group_scores[{group!r}]", score, names)


def _check_score(where: str, score: Any, names: Sequence[str]) -> None:
    if not isinstance(score, Mapping) or not score:
        expected = f"weights of some of {', '.join(names)}: the best policy of a run is selected by this sum"
        refuse(where, repr(score), expected)
    for name, weight in score.items():
        if name not in names or not (isinstance(weight, (int, float)) and math.isfinite(weight)):
            refuse(where, f"{name!r}: {weight!r}", f"finite weights of what is measured: {', '.join(names)}")


def refuse(where: str, got: str, expected: str) -> NoReturn:
    """Raise a ConfigError about one place; what is ``expected`` names the next step where it does not say it."""
    raise ConfigError(f"{where}: got {got}; expected {expected}.")


class CheckedRollout:
    """A rollout in which every result is checked; rollouts of one kind of actions use the same noise and actions."""

    def __init__(
        self, env: Env, worlds: int, actions: str, dtype: torch.dtype, past_end: bool = False, seed: int | None = None
    ) -> None:
        self.env, self.spec, self.worlds, self.actions, self.dtype = env, env.spec, worlds, actions, dtype
        self.once = hasattr(env, "host_work")  # a state is stepped once
        self.past_end = past_end  # ended worlds are stepped on, as in evaluate.simulate and survey
        self.noise = torch.Generator().manual_seed(ACTIONS.index(actions) if seed is None else seed)
        self.returns: list[float] = []  # of episodes that have ended, mean over agents
        self.total = torch.zeros(worlds, dtype=torch.float64)  # the present episodes' returns so far
        self.counts, self.number = Counter[str](), 0  # the number is that of the next step
        self.state = self.draw_states(worlds)
        self.check_clock()

    def step(self) -> dict[str, Tensor]:
        state, action, noise = self.state, self.action(), self.draw(self.spec.step_noise)
        after, results = self.results(state, action, noise)
        self.check_results(results)
        self.check_metrics(results)
        self.check_padding(results)
        self.check_successor(state, after)
        self.check_alias(state, after, results)
        if not self.once:
            world = self.alone()
            alone = self.results(tree_map(lambda t: t[world], state), action[world], noise[world])[1]
            self.check_alone(results, alone)
        ended = results["terminated"].all(-1)
        truncated = out_of_time(self.env, after) & ~ended
        early = results["terminated"].any(-1) & ~ended & ~truncated & (not self.spec.deaths)
        self.counts.update(terminated=int(ended.sum()), truncated=int(truncated.sum()), tensors=len(results))
        self.counts.update(unmarked=int(early.sum()))
        self.number += 1
        self.total += results["reward"].mean(-1)
        self.returns += self.total[ended | truncated].tolist()
        self.total[ended | truncated] = 0
        starts = self.draw_states(int((ended | truncated).sum()))  # always drawn: rollouts use the same noise
        self.state = after if self.past_end else select(ended | truncated, starts, after)
        return results

    def repeat(self, first: dict[str, Tensor]) -> None:
        """Take one step and compare its results with those of another rollout."""
        expected = "equal ones from equal noise: draw nothing else at random, and keep nothing between calls"
        for name, value in self.step().items():
            if not torch.equal(value, first[name]):
                self.number -= 1  # the message refers to the step just taken
                self.refuse(name, "other numbers on a second rollout", expected)

    def draw_states(self, count: int) -> Any:
        """Create and check a new state for every world, of which ``count`` are used."""
        noise = self.draw(self.spec.initial_noise)
        state = self.call("initial", noise)
        self.check_state("initial", state, self.worlds)
        step = getattr(state, "step", None)
        if not isinstance(step, Tensor) or step.dtype != torch.int64 or step.shape != (self.worlds,) or step.any():
            self.refuse("initial.step", f"{step}", "a field step of the state with one int64 zero per world")
        if not self.once:
            alone = self.call("initial", noise[self.alone()])
            self.check_alone(_named("initial", state), _named("initial", alone))
        self.counts.update(started=count)
        return state

    def results(self, state: Any, action: Tensor, noise: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """Call every function of one step; return the next state, and all tensors by name."""
        after = self.call("transition", state, action, noise)
        self.check_state("transition", after, len(action))
        figures, names = self.call("measure", state, action, after), {m.name for m in self.env.metrics}
        if not isinstance(figures, dict) or set(figures) != names:
            got = f"keys {sorted(figures)}" if isinstance(figures, dict) else type(figures).__name__
            self.refuse("measure", got, f"keys {sorted(names)} as in metrics")
        obs, kind = self.call("observe", after), observation_type(self.spec)
        if not isinstance(obs, kind):
            expected = "one Tensor (B A O)" if kind is Tensor else f"uavlab.{kind.__name__}(...)"
            self.refuse("observe", f"a {type(obs).__name__}", expected)
        return after, {
            **_named("transition", after),
            **_named("observe", obs),
            "reward": self.call("reward", state, action, after),
            "terminated": self.call("terminated", after),
            **{f"measure[{name!r}]": figure for name, figure in figures.items()},
        }

    def call(self, function: str, *args: Any) -> Any:
        """Call one function of the environment; check that it changes no argument and draws no random number."""
        before, generator = [tree_map(torch.clone, a) for a in args], torch.get_rng_state()
        try:
            result = getattr(self.env, function)(*args)
        except Exception as error:
            if isinstance(error, ConfigError) and self.once:
                raise  # it says itself what another process did
            place = place_of(reversed([*traceback.walk_tb(error.__traceback__)]), self.env)
            got = f"{type(error).__name__} ({error})" + (f" at {place}" if place else "")
            self.refuse(function, got, "a result: compare shapes, and how much noise there is, with spec")
        if not torch.equal(generator, torch.get_rng_state()):
            expected = "randomness from the noise that is passed in alone, of which spec declares the amount"
            self.refuse(function, "a draw from torch's global generator", expected)
        for was, now in zip(before, args, strict=True):
            for (name, a), (_, b) in zip(leaves(was), leaves(now), strict=True):
                if not torch.equal(a, b):
                    got = f"its argument's {name} changed in place" if name else "an argument changed in place"
                    self.refuse(function, got, "arguments left alone, and new tensors")
        return result

    def check_results(self, results: dict[str, Tensor]) -> None:
        """Check shape, type and values of all results that are not part of a state."""
        spec, B = self.spec, self.worlds
        seen = observation_shapes(spec, B).items()
        shapes = {f"observe.{name}" if name else "observe": shape for name, shape in seen}
        if other := {name for name in results if name.startswith("observe")} ^ set(shapes):
            what = min(other) if min(other) in results else f"no {min(other)}"
            self.refuse("observe", what, "what spec describes")
        shapes |= {"reward": (B, spec.agents), "terminated": (B, spec.agents)}
        for name, value in results.items():
            if name.startswith("transition"):
                continue
            shape = shapes.get(name, (B,))
            if not isinstance(value, Tensor) or value.shape != shape:
                got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                self.refuse(name, got, f"a tensor of shape {shape}, by spec")
            expected = self.float_type(name)
            kind = DTYPES.get(name, expected)
            if value.dtype != kind and (name in DTYPES or not value.is_floating_point()):
                self.refuse(name, f"{value.dtype}", f"{kind}" if name in DTYPES else f"{kind} as of the noise")
            self.check_numbers(name, value, expected)
        if not results.get("observe.legal", torch.ones(1, 1)).any(-1).all():
            self.refuse("observe.legal", "an agent without a move", "at least one, such as to stay")

    def check_metrics(self, results: dict[str, Tensor]) -> None:
        for metric in self.env.metrics:
            values, (low, high) = results[name := f"measure[{metric.name!r}]"], metric.bounds
            got = f"{values.min():.3g} to {values.max():.3g}"
            if metric.over == "outcome" and not ((values == 0) | (values == 1)).all():
                self.refuse(name, got, "0 or 1 of an outcome; reduce other figures by `last`")
            if metric.over in ("last", "mean") and not ((values >= low) & (values <= high)).all():
                self.refuse(name, got, f"{low} to {high}, the bounds of the metric")

    def check_padding(self, results: dict[str, Tensor]) -> None:
        """Check that agents of narrower groups observe zeros, and may choose no move, beyond their own numbers."""
        for name, field in (("observe", "obs"), ("observe.features", "obs"), ("observe.legal", "choices")):
            groups = split_groups(self.spec, results[name]) if name in results and self.spec.parts else {}
            for part in self.spec.parts if groups else ():
                if groups[part.name][..., getattr(part, field) :].any():
                    got = f"numbers beyond the {getattr(part, field)} of {part.name}"
                    self.refuse(name, got, "padding: zeros, or moves that are not legal, see uavlab.join_groups")

    def check_state(self, name: str, state: Any, worlds: int) -> None:
        """Check that a state is a tree of frozen dataclasses over finite tensors with the leading axis B."""
        if not is_frozen(state):
            self.refuse(name, f"a state of type {type(state).__name__}", "a class with @tensors on it")
        for field in fields(state):
            value, part = getattr(state, field.name), f"{name}.{field.name}"
            if not isinstance(value, Tensor):
                self.check_state(part, value, worlds)
            elif value.dim() < 1 or value.shape[0] != worlds:
                expected = f"{worlds} worlds as the first axis; parameters belong on self"
                self.refuse(part, f"shape {tuple(value.shape)}", expected)
            else:
                self.check_numbers(part, value)

    def float_type(self, name: str) -> torch.dtype:
        """Return the floating point type of a result: that of the noise, or torch's default if no argument has it."""
        acted = not self.spec.choices and name.startswith(("reward", "measure"))
        floats = acted or any(leaf.is_floating_point() for _, leaf in leaves(self.state))
        return self.dtype if floats else torch.get_default_dtype()

    def check_numbers(self, name: str, value: Tensor, expected: torch.dtype | None = None) -> None:
        """Check that floating point numbers have the expected type, by default that of the noise, and are finite."""
        expected = expected or self.dtype
        if value.is_floating_point() and value.dtype != expected:
            self.refuse(name, f"{value.dtype}", f"{expected} as of the noise: make tensors like those passed in")
        finite = value.isfinite().reshape(len(value), -1).all(1)
        if not finite.all():
            got = f"a number that is not finite in world {int(finite.int().argmin())}"
            self.refuse(name, got, "finite numbers: guard divisions and roots")

    def check_successor(self, state: Any, after: Any) -> None:
        """Check that the next state has the structure of this one and counts one more step."""
        if type(after) is not type(state):
            self.refuse("transition", type(after).__name__, f"{type(state).__name__} as of initial")
        for (name, a), (_, b) in zip(leaves(state), leaves(after), strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                got, expected = (f"shape {tuple(t.shape)} of {t.dtype}" for t in (b, a))
                self.refuse(f"transition.{name}", got, f"{expected} as before")
        if not torch.equal(after.step, state.step + 1):
            got = f"{after.step.tolist()} after {state.step.tolist()}"
            self.refuse("transition.step", got, "one more in every world: step=state.step + 1")

    def check_alias(self, state: Any, after: Any, results: dict[str, Tensor]) -> None:
        """Check that observations share no memory with the state."""
        seen = [value for name, value in results.items() if name.startswith("observe")]
        for name, leaf in (*leaves(state), *leaves(after)):
            if any(obs.untyped_storage().data_ptr() == leaf.untyped_storage().data_ptr() for obs in seen):
                self.refuse("observe", f"a view of the state's {name}", "a clone of it, or what is computed with it")

    def check_alone(self, results: dict[str, Tensor], alone: dict[str, Tensor]) -> None:
        """Check that a world gives the same results without the other worlds."""
        for name, value in results.items():
            got, other = alone[name].double(), value[self.alone()].double()
            if got.shape != other.shape or not torch.allclose(got, other, TOLERANCE, TOLERANCE):
                expected = "worlds that are independent: no means, sorts or indices over worlds"
                self.refuse(name, "other numbers without a world's neighbours", expected)

    def check_clock(self) -> None:
        """Check that reaching the horizon does not terminate the tasks of all worlds."""
        late = replace(self.state, step=torch.full_like(self.state.step, self.spec.horizon))
        if self.call("terminated", late).all() and not self.call("terminated", self.state).all():
            expected = "the task's own ends alone: learners go on bootstrapping at spec.horizon"
            self.refuse("terminated", "True wherever step has reached the horizon", expected)

    def action(self) -> Tensor:
        """Draw the actions of the next step; of moves, legal ones alone."""
        if choices := self.spec.choices:
            noise = self.draw(self.spec.agents)
            legal: Any = getattr(self.call("observe", self.state), "legal", None)
            if getattr(legal, "shape", ()) != (*noise.shape, choices):  # which the results of the step are refused for
                legal = torch.ones(*noise.shape, choices)
            number = torch.arange(choices)
            return {
                "random": sample_categorical(legal.to(noise.dtype), noise),
                "corner": torch.where(legal > 0, number, -1).argmax(-1),
                "zero": torch.where(legal > 0, -number, -choices).argmax(-1),
            }[self.actions]
        action = 2 * self.draw(self.spec.agents * self.spec.action).view(self.worlds, self.spec.agents, -1) - 1
        action = without_padding(action, padded_actions(self.spec, action.device))
        return {"random": action, "corner": action.sign(), "zero": torch.zeros_like(action)}[self.actions]

    def alone(self) -> slice:  # the world that is also stepped alone in this step
        return slice(self.number % self.worlds, self.number % self.worlds + 1)

    def draw(self, count: int) -> Tensor:
        return torch.rand(self.worlds, count, generator=self.noise, dtype=self.dtype)

    def refuse(self, what: str, got: str, expected: str) -> NoReturn:
        """Raise an error about one of the environment's results."""
        rollout = f"{self.actions} rollout" + " on past the end" * self.past_end
        refuse(f"{type(self.env).__name__}.{what}, step {self.number} of the {rollout}", got, expected)


def is_frozen(thing: Any) -> bool:
    return getattr(getattr(thing, "__dataclass_params__", None), "frozen", False)


def place_of(frames: Iterable[tuple[FrameType, int]], env: Env) -> str:
    """Return the file and line of the first frame that is in a method of an environment; empty if none is."""
    places = (f"{Path(f.f_code.co_filename).name}:{line}" for f, line in frames if f.f_locals.get("self") is env)
    return next(places, "")


def _named(prefix: str, state: Any) -> dict[str, Tensor]:
    return {f"{prefix}.{name}" if name else prefix: leaf for name, leaf in leaves(state)}


# Lines at which a GPU would wait for the host.
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
