"""Checks that an environment keeps its contract, for whoever writes one: ``print(check_env(MyEnv()))``.

The first breach raises ConfigError with what, where, got, expected and what to do; passing returns what was counted.
"""

import math
from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Env
from uavlab.core.types import EnvSpec, Metric, leaves, select, tree_map
from uavlab.evaluate import COMMON

PILOTS = ("random", "corner", "zero")
DOUBLE_STEPS = 20  # float64 is checked for types alone
ALONE = 1e-4  # relative and absolute: a world alone takes other rounding paths than a world in a batch


@dataclass(frozen=True)
class EnvReport:
    """What ``check_env`` flew and counted; printing it gives a few readable lines.

    Attributes:
        env: The environment, as it prints itself.
        worlds: Worlds flown side by side.
        steps: Steps of each world under each pilot (random, corner and zero actions).
        started: Episodes begun.
        terminated: Episodes that the task ended.
        truncated: Episodes that the time limit ended.
        tensors: Tensors whose shape, type and values were checked.
        metrics: The figures that the environment measures.
    """

    env: str
    worlds: int
    steps: int
    started: int
    terminated: int
    truncated: int
    tensors: int
    metrics: tuple[str, ...]

    def __str__(self) -> str:
        """Say what was checked, one fact per line."""
        total = self.worlds * self.steps * len(PILOTS)
        lines = (
            f"{self.env} keeps the contract of an environment.",
            f"  flown     {total} steps: {self.worlds} worlds x {self.steps} steps, {', '.join(PILOTS)} actions",
            f"  episodes  {self.started} begun, {self.terminated} ended by the task, {self.truncated} by the horizon",
            f"  checked   {self.tensors} tensors; every flight repeated, every world also flown alone",
            f"  metrics   {', '.join(self.metrics)}",
        )
        return "\n".join(lines)


def check_env(env: Env, worlds: int = 7, steps: int = 300) -> EnvReport:
    """Fly an environment for hundreds of steps and refuse it at the first breach of the contract of ``Env``.

    Args:
        env: The environment, built with the parameters to be checked.
        worlds: Worlds side by side, at least 2, so that neighbours can be told apart.
        steps: Steps of each world under random, corner (every action -1 or 1) and zero actions, at least 1. Time
            limits beyond them are not met.

    Raises:
        ConfigError: The environment breaks the contract, or ``worlds`` or ``steps`` is too small.
    """
    if worlds < 2 or steps < 1:
        _refuse("check_env", f"worlds={worlds}, steps={steps}", "worlds >= 2 and steps >= 1", "Leave out both.")
    _check_parameters(env)
    _check_metrics(env)
    counts: Counter[str] = Counter(started=0, terminated=0, truncated=0, tensors=0)
    for pilot in PILOTS:
        flight, again = (_Flight(env, worlds, pilot, torch.float32) for _ in range(2))
        first = [flight.step() for _ in range(steps)]
        for one in first:
            again.repeat(one)
        counts.update(flight.counts)
    double = _Flight(env, worlds, "random", torch.float64)
    for _ in range(min(steps, DOUBLE_STEPS)):
        double.step()
    return EnvReport(repr(env), worlds, steps, **counts, metrics=tuple(m.name for m in env.metrics))


def _refuse(where: str, got: str, expected: str, do: str) -> NoReturn:
    raise ConfigError(f"{where}: got {got}; expected {expected}. {do}")


def _check_parameters(env: Env) -> None:
    name = type(env).__name__
    if not _frozen(env):
        _refuse(
            name, "a class that can change", "a frozen dataclass of parameters", "Put @dataclass(frozen=True) on it."
        )
    try:
        hash(env)
    except TypeError as error:
        _refuse(name, f"{error}", "hashable parameters", "Use tuples instead of lists, dicts and arrays.")
    spec = env.spec
    if not isinstance(spec, EnvSpec):
        _refuse(f"{name}.spec", type(spec).__name__, "an EnvSpec", "Return uavlab.core.types.EnvSpec(...).")
    least = {"agents": 1, "obs": 1, "action": 1, "horizon": 1, "initial_noise": 0, "step_noise": 0}
    for field, low in least.items():
        value = getattr(spec, field)
        if type(value) is not int or value < low:
            _refuse(f"{name}.spec.{field}", repr(value), f"a whole number from {low} up", "Correct the spec.")
    if not (isinstance(spec.dt, (int, float)) and 0 < spec.dt < math.inf):
        _refuse(f"{name}.spec.dt", repr(spec.dt), "a positive, finite number of seconds", "Correct the spec.")
    if not isinstance(spec.groups, tuple) or len(spec.groups) != spec.agents:
        expected = f"a tuple of {spec.agents} labels, one per agent"
        _refuse(f"{name}.spec.groups", repr(spec.groups), expected, "Agents with equal labels are interchangeable.")


def _check_metrics(env: Env) -> None:
    where = f"{type(env).__name__}.metrics"
    taken = [m.name for m in COMMON]
    for metric in env.metrics:
        if not isinstance(metric, Metric):
            _refuse(where, repr(metric), "Metric objects", "Use uavlab.core.types.Metric(name, over).")
        if metric.name in taken:
            do = f"Choose another name; {', '.join(m.name for m in COMMON)} are measured for every environment."
            _refuse(where, f"{metric.name!r} twice", "every name once", do)
        if metric.over not in ("last", "mean", "sum") or metric.better not in ("high", "low"):
            expected = "over 'last', 'mean' or 'sum' and better 'high' or 'low'"
            _refuse(where, repr(metric), expected, "Correct the metric.")
        taken.append(metric.name)


def _check_state(what: str, when: str, state: Any, worlds: int, dtype: torch.dtype) -> None:
    """Refuse a state that is not a tree of frozen dataclasses over finite tensors with the leading axis B."""
    if not _frozen(state):
        _refuse(
            f"{what}, {when}",
            f"a state of type {type(state).__name__}",
            "an @tensors class",
            "Put @tensors on the state.",
        )
    for field in fields(state):
        value, part = getattr(state, field.name), f"{what}.{field.name}"
        if not isinstance(value, Tensor):
            _check_state(part, when, value, worlds, dtype)
            continue
        if value.dim() < 1 or value.shape[0] != worlds:
            _refuse(
                f"{part}, {when}",
                f"shape {_shape(value)}",
                f"{worlds} worlds as the first axis",
                "Parameters belong on self.",
            )
        _check_numbers(f"{part}, {when}", value, dtype)


def _check_numbers(where: str, value: Tensor, dtype: torch.dtype) -> None:
    """Refuse floating point numbers of another type than the noise, and any that are not finite."""
    if value.is_floating_point() and value.dtype != dtype:
        do = "Make tensors like those passed in (new_tensor, to(x.dtype)), never of a fixed or default type."
        _refuse(where, f"{value.dtype}", f"{dtype} as of the noise", do)
    if not value.isfinite().all():
        world = int((~value.isfinite()).flatten(1).any(1).nonzero()[0])
        _refuse(where, f"a number that is not finite in world {world}", "finite numbers", "Guard divisions and roots.")


def _frozen(thing: Any) -> bool:
    return getattr(getattr(thing, "__dataclass_params__", None), "frozen", False)


def _shape(value: Tensor) -> str:
    return f"({', '.join(map(str, value.shape))})"


class _Flight:
    """Worlds flown step by step, every result checked; flights of one pilot meet the same noise and actions."""

    def __init__(self, env: Env, worlds: int, pilot: str, dtype: torch.dtype) -> None:
        self.env, self.spec, self.worlds, self.pilot, self.dtype = env, env.spec, worlds, pilot, dtype
        self.noise = torch.Generator().manual_seed(PILOTS.index(pilot))
        self.counts: Counter[str] = Counter()
        self.number = 0  # of the step that comes next
        self.state = self.fresh(worlds)
        self.check_clock()

    def step(self) -> dict[str, Tensor]:
        """Take and check one step; return all that it gave, by the name of what gave it."""
        b = self.number % self.worlds
        state, action, noise = self.state, self.action(), self.draw(self.spec.step_noise)
        after, results = self.results(state, action, noise)
        self.check_types(results)
        self.check_step(state, after)
        self.check_alias(state, after, results["observe"])
        world = slice(b, b + 1)
        alone = self.results(tree_map(lambda leaf: leaf[world], state), action[world], noise[world])[1]
        self.check_alone(results, alone, b)
        ended = results["terminated"].all(-1)
        truncated = (after.step >= self.spec.horizon) & ~ended
        self.counts.update(terminated=int(ended.sum()), truncated=int(truncated.sum()), tensors=len(results))
        self.number += 1
        self.state = select(ended | truncated, self.fresh(int((ended | truncated).sum())), after)
        return results

    def repeat(self, first: dict[str, Tensor]) -> None:
        """Take one step, which must give what the same step of another flight gave."""
        when = self.when()
        for name, value in self.step().items():
            if not torch.equal(value, first[name]):
                do = "Draw all randomness from the noise that is passed in, and keep nothing between calls."
                _refuse(
                    f"{self.name(name)}, {when}", "other numbers on a second flight", "the same from equal noise", do
                )

    def fresh(self, count: int) -> Any:
        """Draw a fresh state for every world, of which ``count`` will be used, and check it."""
        noise, stage = self.draw(self.spec.initial_noise), torch.zeros(self.worlds, dtype=torch.int64)
        state = self.call("initial", noise, stage)
        where, b = self.name("initial"), self.number % self.worlds
        _check_state(where, self.when(), state, self.worlds, self.dtype)
        step = getattr(state, "step", None)
        if not isinstance(step, Tensor) or step.dtype != torch.int64 or step.shape != (self.worlds,) or step.any():
            do = "Give the state a field step that starts at zero."
            _refuse(f"{where}.step, {self.when()}", f"{step}", "one int64 zero per world", do)
        alone = self.call("initial", noise[b : b + 1], stage[:1])
        self.check_alone(_named("initial", state), _named("initial", alone), b)
        self.counts.update(started=count)
        return state

    def results(self, state: Any, action: Tensor, noise: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """Call every function of one step; return the next state, and all tensors by name."""
        after = self.call("transition", state, action, noise)
        _check_state(self.name("transition"), self.when(), after, len(action), self.dtype)
        figures = self.call("measure", state, action, after)
        expected = {m.name for m in self.env.metrics}
        if not isinstance(figures, dict) or set(figures) != expected:
            got = f"keys {sorted(figures)}" if isinstance(figures, dict) else type(figures).__name__
            _refuse(f"{self.name('measure')}, {self.when()}", got, f"keys {sorted(expected)} as in metrics",
                    "Keep measure and metrics in step.")  # fmt: skip
        return after, {
            **_named("transition", after),
            "observe": self.call("observe", after),
            "reward": self.call("reward", state, action, after),
            "terminated": self.call("terminated", after),
            **{f"measure[{name!r}]": figure for name, figure in figures.items()},
        }

    def call(self, function: str, *args: Any) -> Any:
        """Call one function of the environment, which may neither fail, change its arguments nor draw by itself."""
        where, before = f"{self.name(function)}, {self.when()}", [tree_map(torch.clone, a) for a in args]
        generator = torch.get_rng_state()
        try:
            result = getattr(self.env, function)(*args)
        except Exception as error:
            got = f"{type(error).__name__} ({error})"
            do = "Check shapes against spec, and how many numbers of noise it declares."
            raise ConfigError(f"{where}: got {got}; expected a result. {do}") from error
        if not torch.equal(generator, torch.get_rng_state()):
            do = "Use the noise that is passed in; spec declares how much."
            _refuse(where, "a draw from torch's global generator", "no randomness of its own", do)
        for was, now in zip(before, args, strict=True):
            for (name, a), (_, b) in zip(leaves(was), leaves(now), strict=True):
                if not torch.equal(a, b):
                    what = f"its argument's {name}" if name else "an argument"
                    _refuse(where, f"{what} changed in place", "arguments left alone", "Build new tensors instead.")
        return result

    def check_types(self, results: dict[str, Tensor]) -> None:
        """Check shape, type and finiteness of everything that is not part of a state."""
        spec, B = self.spec, self.worlds
        shapes = {"observe": (B, spec.agents, spec.obs), "reward": (B, spec.agents), "terminated": (B, spec.agents)}
        for name, value in results.items():
            if name.startswith("transition"):
                continue
            where, kind = (
                f"{self.name(name)}, {self.when()}",
                "bool" if name == "terminated" else "a floating point type",
            )
            shape = torch.Size(shapes.get(name, (B,)))
            if not isinstance(value, Tensor) or value.shape != shape:
                got = f"shape {_shape(value)}" if isinstance(value, Tensor) else type(value).__name__
                _refuse(
                    where, got, f"a tensor of shape {_shape(torch.empty(shape, device='meta'))}", "Compare with spec."
                )
            if value.dtype != torch.bool if name == "terminated" else not value.is_floating_point():
                _refuse(where, f"{value.dtype}", kind, "Convert the result.")
            _check_numbers(where, value, self.dtype)

    def check_step(self, state: Any, after: Any) -> None:
        """Check that the next state is built like this one, and counts one step more."""
        where, when = self.name("transition"), self.when()
        if type(after) is not type(state):
            _refuse(
                f"{where}, {when}", type(after).__name__, type(state).__name__, "Return the state that initial returns."
            )
        for (name, a), (_, b) in zip(leaves(state), leaves(after), strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                got = f"shape {_shape(b)} of {b.dtype}"
                _refuse(
                    f"{where}.{name}, {when}",
                    got,
                    f"shape {_shape(a)} of {a.dtype} as before",
                    "Keep shapes and types.",
                )
        if not torch.equal(after.step, state.step + 1):
            _refuse(f"{where}.step, {when}", f"{after.step.tolist()} after {state.step.tolist()}", "one more in every world",
                    "Return step=state.step + 1.")  # fmt: skip

    def check_alias(self, state: Any, after: Any, obs: Tensor) -> None:
        """Check that writing into an observation would not move a world."""
        for name, leaf in (*leaves(state), *leaves(after)):
            if obs.untyped_storage().data_ptr() == leaf.untyped_storage().data_ptr():
                where = f"{self.name('observe')}, {self.when()}"
                _refuse(
                    where, f"a view of the state's {name}", "an observation of its own", "Clone it, or compute with it."
                )

    def check_alone(self, results: dict[str, Tensor], alone: dict[str, Tensor], b: int) -> None:
        """Check that world b gives the same without its neighbours."""
        for name, value in results.items():
            got = alone[name]
            if got.shape != value[b : b + 1].shape or not torch.allclose(
                got.double(), value[b : b + 1].double(), ALONE, ALONE
            ):
                do = "Compute along the other axes only; no means, sorts or indices over worlds."
                where = f"{self.name(name)}, {self.when()}, world {b}"
                _refuse(where, "other numbers without its neighbours", "worlds that are independent", do)

    def check_clock(self) -> None:
        """Check that nothing terminates just because the horizon is reached."""
        late = replace(self.state, step=torch.full_like(self.state.step, self.spec.horizon))
        if self.call("terminated", late).all() and not self.call("terminated", self.state).all():
            do = "Leave the time limit to spec.horizon, so that learners go on bootstrapping there."
            _refuse(
                self.name("terminated"), "True wherever step has reached the horizon", "the task's own ends alone", do
            )

    def action(self) -> Tensor:
        """Draw this pilot's actions."""
        action = 2 * self.draw(self.spec.agents * self.spec.action).view(self.worlds, self.spec.agents, -1) - 1
        return {"random": action, "corner": action.sign(), "zero": torch.zeros_like(action)}[self.pilot]

    def draw(self, count: int) -> Tensor:
        """Draw uniform numbers for each world."""
        return torch.rand(self.worlds, count, generator=self.noise, dtype=self.dtype)

    def name(self, function: str) -> str:
        """Say where."""
        return f"{type(self.env).__name__}.{function}"

    def when(self) -> str:
        """Say when."""
        return f"step {self.number} of the {self.pilot} flight"


def _named(prefix: str, state: Any) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": leaf for name, leaf in leaves(state)}
