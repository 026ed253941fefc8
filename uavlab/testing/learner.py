"""A check of the contract of ``uavlab.Learner`` for authors: ``print(check_learner("maddpg"))``.

The first violation raises ConfigError with the place, the value, the expected value and the next step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import Tensor

from uavlab.core.errors import DivergedError
from uavlab.core.protocols import Env, initial_memory, step_policy
from uavlab.core.registry import COLLECTORS, ENVIRONMENTS, LEARNERS
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.text import require_known
from uavlab.core.types import EnvSpec, Update, leaves, tree_map
from uavlab.evaluation import require_actions
from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.registration import name_and_parameters
from uavlab.runtime.finite_check import require_finite
from uavlab.testing.environment import refuse

SMALL = {"worlds": 2, "batch": 16, "learning_starts": 32, "capacity": 128}  # settings of the collector, if it has them
UPDATES, DELAY, WORLDS = 2, 4, 5  # with equal noise; until the policy changes, at most; worlds in which policies act
SHARE, ROUNDING = 0.01, 1e-4  # of its own change by which a run may differ beside another one; of actions
FINITE = "finite numbers: guard divisions, roots and logarithms"
OWN_NOISE = "draw all randomness in update_noise, from the streams that are passed in"
WHOLE = "return every tensor that later updates depend on, and copy it back in load_state_dict"
State = Mapping[str, Tensor]


@dataclass(frozen=True, repr=False)
class LearnerReport:
    """Figures of ``check_learner``; ``print`` shows them as a few lines."""

    learner: str
    env: str  # its class
    tensors: int  # of its state
    numbers: int  # in its state, for two runs
    policy: tuple[int, ...]  # shape of its parameters
    rounding: float  # largest difference of a run beside another one, as a share of its change

    def __repr__(self) -> str:
        return (
            f"{self.learner} keeps the contract of a learner on {self.env}.\n"
            f"  state     {self.tensors} tensors of {self.numbers} numbers, all finite, guarded and restored\n"
            f"  policy    parameters of shape {self.policy}; actions in range with and without noise\n"
            f"  noise     equal noise gives equal bits; a run differs beside another one by {self.rounding:.1e} of its"
            " change"
        )


def check_learner(
    learner: str, env: Env | str | None = None, settings: Mapping[str, Any] | None = None
) -> LearnerReport:
    """Train a learner for a few updates and raise at the first violation of the contract of ``Learner``.

    Equal noise gives equal bits; runs in one process are independent; ``state_dict`` is complete, and covered by
    ``tensors_to_check``; updates change the policy, whose actions are in range; saved parameters act like the learner.
    Whether it learns, a run on a small environment shows.

    Args:
        learner: Name of a registered learner.
        env: An environment or the name of one; None takes the first registered one that the learner fits.
        settings: Any settings but ``seed`` and ``runs``, such as ``device``; small networks make the check fast.

    Raises:
        ConfigError: The learner breaks the contract, there is no such learner, or it does not fit the environment.
    """
    config = _configure(learner, env, settings or {})
    first, again, alone, fresh = (_Training(config, seed, runs) for seed, runs in ((0, 2), (0, 2), (1, 1), (7, 2)))
    _check_policy(fresh)  # not the seeds of a loaded policy
    rounding = _check_runs(first, alone)
    for _ in range(UPDATES):
        result = first.update()
    _check_symptoms(first, result)
    while again.updates < first.updates:
        again.update()
    first.require_equal("update", again.state(), first.state(), "on a second run with equal noise", OWN_NOISE)
    _check_state(first, fresh)
    _check_guard(first)
    sizes = [tensor.numel() for tensor in first.state().values()]
    shape = tuple(first.learner.parameters().shape)
    return LearnerReport(learner, type(config.env).__name__, len(sizes), sum(sizes), shape, rounding)


def _configure(learner: str, env: Env | str | None, settings: Mapping[str, Any]) -> Config:
    """Return the settings of a small run on an environment that the learner fits."""
    require_known("learner", learner, LEARNERS, "check_learner: ")
    if env is None:
        specs = {name: getattr(entry.kind(), "spec", None) for name, entry in ENVIRONMENTS.items()}
        teams = [name for name, spec in specs.items() if isinstance(spec, EnvSpec)]
        env = next((name for name in teams if not LEARNERS[learner].unsupported(specs[name])), None)
        if env is None:
            refuse("check_learner", f"{learner}, which fits no environment here", "one that it fits as env=")
    name, parameters = name_and_parameters(env)
    known = {field.name for field in fields(COLLECTORS[LEARNERS[learner].collector].settings)}
    small = {size: value for size, value in SMALL.items() if size in known}
    config = configure(name, parameters, {"learner": learner, "device": "cpu", **small, **settings})
    if not isinstance(config.env.spec, EnvSpec):
        refuse("check_learner", f"{name}, which has no team of agents", "an environment with one as env=")
    return config


class _Training:
    """A learner and its source, built for ``runs`` seeds from ``seed`` on."""

    def __init__(self, config: Config, seed: int, runs: int) -> None:
        config = replace(config, run=replace(config.run, seed=seed, runs=runs))
        self.env, self.hyper, self.updates = config.env, config.learner, 0
        self.algorithm = config.task.algorithm
        self.name, (_, self.rng, self.learner, self.source) = config.task.learner, build.assemble(config)

    def load(self) -> Any:
        return self.algorithm.load_policy(self.hyper, self.env.spec, self.env.spec, self.learner.parameters())

    def batch(self) -> tuple[Any, Any]:
        batch = self.source.next()
        return batch, self.learner.update_noise(self.rng, batch.index.shape[1])

    def update(self) -> Update:
        batch, noise = self.batch()
        try:
            result = self.learner.update(batch, noise)
        except Exception as error:
            expected = (
                f"a result; batches of {self.algorithm.collector} hold a {type(batch.data).__name__}, see its docstring"
            )
            self.refuse("update", f"{type(error).__name__} ({error})", expected)
        if not isinstance(result, Update):
            self.refuse("update", f"a {type(result).__name__}", "uavlab.Update(metrics)")
        for name, value in result.metrics.items():
            if not isinstance(value, Tensor) or value.shape[:1] != (len(self.rng.seeds),):
                self.refuse(f"update.metrics[{name!r}]", _kind(value), "a tensor with a number per run")
        try:
            require_finite(self.learner.tensors_to_check(result))
            require_finite(self.learner.tensors_to_check())
        except DivergedError as error:
            self.refuse("update", f"{error.record['tensor']} = {error.record['value']}", FINITE)
        self.source.feedback(batch, result)
        self.updates += 1
        return result

    def state(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.learner.state_dict().items()}

    def worlds(self, rng: Streams, count: int) -> tuple[Any, Any]:
        """Return the state of new worlds (R x count), and the observations in them (R count ...)."""
        state = self.env.initial(rng.uniform("check", count, self.env.spec.initial_noise).flatten(0, 1))
        return state, tree_map(lambda leaf: leaf.unflatten(0, (len(rng.seeds), count)), self.env.observe(state))

    def require_equal(self, what: str, one: State, other: State, when: str, advice: str) -> None:
        for name in sorted(one.keys() | other.keys()):
            if name not in one or name not in other or not torch.equal(one[name], other[name]):
                self.refuse(what, f"another {name} {when}", f"the same bits: {advice}")

    def refuse(self, what: str, got: str, expected: str) -> NoReturn:
        refuse(f"{self.name}.{what}", got, expected)


def _check_policy(training: _Training) -> None:
    learner, spec, (_, obs) = training.learner, training.env.spec, training.worlds(training.rng, WORLDS)
    theta = learner.parameters()
    if theta.dim() != 3 or len(theta) != 2:
        training.refuse("parameters", _kind(theta), "(runs, networks, numbers)")
    if (size := training.algorithm.size(training.hyper, spec)) != theta.shape[-1]:
        training.refuse("size", f"{size}", f"{theta.shape[-1]}, the last axis of parameters")
    for noise in (None, acting_noise(training.rng, "check.act", WORLDS, spec)):
        for policy in (learner.policy(spec), learner.policy(spec, explore=True)):
            action = _act(policy, obs, noise)
            what = "policy without noise" if noise is None else "policy with noise"
            require_actions(f"{training.name}.{what}", action, (2, WORLDS), spec)
            if spec.choices and not obs.legal.gather(-1, action[..., None]).all():
                training.refuse(what, "a move that is not legal", "moves that obs.legal allows")
            part = _act(policy, tree_map(lambda leaf: leaf[:, :1], obs), None if noise is None else noise[:, :1])
            if not _close(part, action[:, :1]):
                training.refuse("policy", "other actions without the other worlds", "worlds that are independent")
        if not _close(_act(training.load(), obs, noise), _act(learner.policy(spec), obs, noise)):
            expected = "the same policy: keep all that it needs in parameters"
            training.refuse("load_policy", "other actions than those of the learner", expected)


def _check_runs(together: _Training, alone: _Training) -> float:
    """Check that updates change both runs, and that run 1 is as it is alone; return the difference in its change.

    A learner may change its policy in every second or third update only. Runs are compared after the first change:
    later, rounding may change an action, and with it all that follows.
    """
    before, single = together.learner.parameters(), alone.learner.parameters()
    first = before.clone()
    idle = [0, 1]
    while idle and together.updates < DELAY:
        both, one = together.update(), alone.update()
        after = together.learner.parameters()
        idle = [run for run in (0, 1) if torch.equal(after[run], first[run])]
    if not torch.equal(before, first):
        together.refuse("parameters", "numbers that change with an update", "a clone")
    if idle:
        expected = "another one: step on the parameters that policy and parameters read"
        together.refuse("update", f"the policy of run {idle[0]} as before", expected)
    change = (after - before)[1].norm()
    off = max((before[1] - single[0]).norm(), (after[1] - alone.learner.parameters()[0]).norm()).item() / change.item()
    metrics = ((name, value[1], one.metrics[name][0]) for name, value in both.metrics.items())
    other = [name for name, a, b in metrics if not torch.allclose(a.double(), b.double(), SHARE, ROUNDING)]
    if off > SHARE or other:
        what = f"a policy that differs by {off:.2g} of its change" if off > SHARE else f"another {other[0]}"
        expected = "the same as alone: no means, norms or random numbers over axis R"
        together.refuse("update", f"{what} in a run beside another one", expected)
    return off


def _check_state(trained: _Training, fresh: _Training) -> None:
    """Check that another learner continues exactly from the state of this one."""
    state = trained.state()
    fresh.learner.load_state_dict(state)
    trained.require_equal("load_state_dict", state, fresh.state(), "in the state after it was loaded", WHOLE)
    for _ in range(UPDATES):
        batch, noise = trained.batch()
        for run in (trained, fresh):
            run.learner.update(batch, noise)
        one, other = ({**run.state(), "parameters": run.learner.parameters()} for run in (trained, fresh))
        trained.require_equal("state_dict", one, other, "after an update of a learner that loaded it", WHOLE)


def _check_guard(trained: _Training) -> None:
    """Check that all of the state is finite, and that ``tensors_to_check`` notices where it is not."""
    state = trained.state()
    for name, tensor in state.items():
        if not tensor.is_floating_point() or not tensor.dim() or not tensor.numel():
            continue
        if not tensor.isfinite().all():
            trained.refuse("state_dict", f"a number in {name} that is not finite", FINITE)
        spoilt = tensor.clone()
        spoilt[(-1,) * spoilt.dim()] = torch.nan
        trained.learner.load_state_dict({**state, name: spoilt})
        if all(checked.isfinite().all() for checked, _ in trained.learner.tensors_to_check().values()):
            expected = "every tensor of the state, so that a run stops at the first number that is not finite"
            trained.refuse("tensors_to_check", f"nothing about a nan in {name}", expected)
    trained.learner.load_state_dict(state)


def _check_symptoms(training: _Training, result: Update) -> None:
    """Check that metrics and settings by which the learner describes itself exist."""
    watch = training.algorithm.symptoms
    for name in (watch.entropy.metric if watch.entropy else "", watch.loss, watch.returns):
        if name and name not in result.metrics:
            training.refuse("symptoms", f"the metric {name!r}", f"one of {', '.join(result.metrics)}")
    for remedy in chain.from_iterable(watch.remedies.values()):
        if not hasattr(training.hyper, remedy.setting):
            known = ", ".join(field.name for field in fields(training.algorithm.settings))
            training.refuse("symptoms", f"the setting {remedy.setting!r}", f"one of {known or 'none'}")


def _act(policy: Any, obs: Any, noise: Tensor | None) -> Tensor:
    """Return the actions of a policy, those of one with memory in the second step with the same observations."""
    worlds = leaves(obs)[0][1].shape[:2]
    memory = initial_memory(policy, *worlds)
    if memory is not None:
        memory = step_policy(policy, obs, noise, memory)[1]
    return step_policy(policy, obs, noise, memory)[0]


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), ROUNDING, ROUNDING)


def _kind(thing: Any) -> str:
    return f"shape {tuple(thing.shape)}" if isinstance(thing, Tensor) else type(thing).__name__
