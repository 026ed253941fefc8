"""A check of the contract of ``uavlab.core.protocols.Learner`` for authors: ``print(check_learner("maddpg"))``.

The first violation raises ConfigError with the place, the value, the expected value and the next step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab import collectors, envs, learners
from uavlab.core.errors import ConfigError, DivergedError
from uavlab.core.protocols import Env, Policy
from uavlab.core.registry import COLLECTORS, ENVIRONMENTS, LEARNERS, LearnerEntry, Settings
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.text import quote, suggest
from uavlab.core.types import EnvSpec, Update, tree_map
from uavlab.runtime.finite_check import require_finite
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles, eager
from uavlab.testing.bandits import Bandit, MoveBandit
from uavlab.testing.rollout import refuse

BUILT_IN = (collectors, envs, learners)  # registered by their import
SMALL = {"worlds": 2, "batch": 16, "learning_starts": 32, "capacity": 128}  # settings of the collector, if it has them
PLAYED = {"worlds": 16, "batch": 64, "learning_starts": 64, "capacity": 4096}  # on a bandit
UPDATES = 3  # of learners with equal noise
WORLDS = 5  # in which policies act
SHARE = 0.01  # of its own change by which a run may differ beside another one
ROUNDING = 1e-4  # relative and absolute, of actions
SEEDS, EVERY, JUDGED = 4, 20, 256  # runs on a bandit, updates between their scores, worlds of a score
GAIN = 0.25  # least share of the way to the best reward


@dataclass(frozen=True)
class LearnerReport:
    """Figures of ``check_learner``; ``str`` formats them as a few lines."""

    learner: str
    env: str  # its class
    tensors: int  # of its state
    numbers: int  # in its state, for two runs
    policy: tuple[int, ...]  # shape of its parameters
    rounding: float  # largest difference of a run beside another one, as a share of its change
    bandit: str  # name of the task of one step; empty if the learner fits none
    updates: int  # on it
    before: float  # mean reward there, without updates
    after: float  # and with them
    spread: float  # standard deviation over seeds
    highest: float  # reward of the best action

    def __str__(self) -> str:
        """Describe the checks, one fact per line."""
        bandit = "no task of one step fits this learner; whether it improves was not checked"
        if self.bandit:
            bandit = (
                f"mean reward {self.before:.3g} -> {self.after:.3g} after {self.updates} updates, best "
                f"{self.highest:.3g}, +- {self.spread:.2g} over {SEEDS} seeds ({self.bandit})"
            )
        return (
            f"{self.learner} keeps the contract of a learner on {self.env}.\n"
            f"  state     {self.tensors} tensors of {self.numbers} numbers, all finite, guarded and restored\n"
            f"  policy    parameters of shape {self.policy}; actions in range with and without noise\n"
            f"  noise     equal noise gives equal bits; two runs differ from each alone by {self.rounding:.1e} of"
            " their change\n"
            f"  bandit    {bandit}"
        )


def check_learner(
    learner: str | LearnerEntry,
    env: Env | str | None = None,
    settings: Mapping[str, Any] | None = None,
    updates: int = 400,
) -> LearnerReport:
    """Train a learner for a few updates and raise at the first violation of the contract of ``Learner``.

    Equal noise gives equal bits; runs in one process are independent; ``state_dict`` is complete; ``tensors_to_check``
    covers it; updates change the policy, whose actions are in range; saved parameters act like the learner; and the
    learner improves on a bandit, a task of one step whose best action is known.

    Args:
        learner: Name of a registered learner, or its entry.
        env: An environment or the name of one; None takes the first registered one that the learner fits.
        settings: Changes of its hyper-parameters; small networks make the check fast.
        updates: Largest number of updates on the bandit; 0 leaves it out.

    Raises:
        ConfigError: The learner breaks the contract, there is no such learner, or it does not fit the environment.
    """
    trial = _trial(learner, env, settings or {})
    seeds = (0, 1)
    _check_policy(trial)
    first, again, alone = _Training(trial, seeds), _Training(trial, seeds), _Training(trial, seeds[1:])
    before, single = first.learner.parameters(), alone.learner.parameters()
    copy = before.clone()
    first.update()
    alone.update()  # later, rounding may change an action, and with it all that follows
    rounding = _check_runs(trial, before, first.learner.parameters(), single, alone.learner.parameters())
    for training, count in ((first, UPDATES - 1), (again, UPDATES)):
        for _ in range(count):
            training.update()
    if not torch.equal(before, copy):
        trial.refuse("parameters", "numbers that change with an update", "a copy", "Return a clone.")
    trial.same_bits("update", first.state(), again.state(), "on a second run with equal noise", OWN_NOISE)
    _check_state(trial, first)
    _check_guard(trial, first)
    bandit = next((each for each in (Bandit(), MoveBandit()) if updates and not trial.entry.refusal(each.spec)), None)
    played = {"bandit": "", "updates": 0, "before": 0.0, "after": 0.0, "spread": 0.0, "highest": 0.0}
    state = first.state()
    return LearnerReport(
        learner=trial.name,
        env=type(trial.env).__name__,
        tensors=len(state),
        numbers=sum(each.numel() for each in state.values()),
        policy=tuple(before.shape),
        rounding=rounding,
        **(played if bandit is None else _play(replace(trial, env=bandit, sizes=PLAYED), bandit, updates)),
    )


OWN_NOISE = "Draw all randomness in update_noise from the streams that are passed in."


@dataclass(frozen=True)
class _Run:
    """The setting that builders read of a run."""

    runs: int


@dataclass(frozen=True)
class _Trial:
    """A learner with its settings, the environment that it is checked on, and the sizes of its collector."""

    name: str
    entry: LearnerEntry
    hyper: Any
    env: Any
    sizes: Mapping[str, int]

    def refuse(self, what: str, got: str, expected: str, do: str) -> NoReturn:
        """Raise an error about one of the learner's results."""
        refuse(f"{self.name}.{what}", got, expected, do)

    def same_bits(self, what: str, one: Mapping[str, Tensor], other: Mapping[str, Tensor], when: str, do: str) -> None:
        """Check that two sets of tensors are equal."""
        for name in sorted(one.keys() | other.keys()):
            a, b = one.get(name), other.get(name)
            if a is None or b is None or a.shape != b.shape or not torch.equal(a, b):
                got = f"no {name}" if a is None or b is None else f"other numbers in {name}"
                self.refuse(what, f"{got} {when}", "the same bits", do)


class _Training:
    """A learner and its source, built for some seeds."""

    def __init__(self, trial: _Trial, seeds: tuple[int, ...]) -> None:
        self.trial, collector = trial, COLLECTORS[trial.entry.collector]
        rt, self.rng = Runtime(torch.device("cpu"), Toggles(**eager())), Streams(seeds)
        source = collector.settings()
        known = {field.name for field in fields(source)}
        source = replace(source, **{key: value for key, value in trial.sizes.items() if key in known})
        config = Settings(trial.name, _Run(len(seeds)), source, trial.hyper, rt.toggles, trial.env)
        data = collector.data(config, self.rng, rt)
        self.learner = trial.entry.build(config, data, self.rng, rt)

        def snapshot() -> Policy:
            return trial.entry.load_policy(trial.hyper, trial.env.spec, trial.env.spec, self.learner.parameters())

        self.source = collector.build(config, trial.env, data, self.learner, snapshot, self.rng, rt)

    def batch(self) -> tuple[Any, Any]:
        """Return the next batch, and the noise of an update on it."""
        batch = self.source.next()
        return batch, self.learner.update_noise(self.rng, batch.index.shape[1])

    def update(self) -> Update:
        """Update the learner once, and check the result."""
        batch, noise = self.batch()
        result = self.learner.update(batch, noise)
        if not isinstance(result, Update):
            self.trial.refuse("update", f"a {type(result).__name__}", "an Update", "Return uavlab.Update(metrics).")
        for name, value in result.metrics.items():
            if not isinstance(value, Tensor) or value.shape[:1] != (len(self.rng.seeds),):
                got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                self.trial.refuse(f"update.metrics[{name!r}]", got, "a tensor with a number per run", "Keep axis R.")
        try:
            require_finite(self.learner.tensors_to_check(result))
        except DivergedError as error:
            self.trial.refuse("update", str(error), "finite numbers", "Guard divisions and roots.")
        self.source.feedback(batch, result)
        return result

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the learner's state."""
        return {name: tensor.clone() for name, tensor in self.learner.state_dict().items()}

    def observations(self) -> Any:
        """Return observations of ``WORLDS`` new worlds per run."""
        env, lead = self.trial.env, (len(self.rng.seeds), WORLDS)
        state = env.initial(self.rng.uniform("check", WORLDS, env.spec.initial_noise).flatten(0, 1))
        return tree_map(lambda leaf: leaf.unflatten(0, lead), env.observe(state))


def _trial(learner: str | LearnerEntry, env: Env | str | None, settings: Mapping[str, Any]) -> _Trial:
    """Choose the learner, its settings and the environment."""
    if isinstance(learner, str) and learner not in LEARNERS:
        known = f"{suggest(learner, LEARNERS)}. Registered: {', '.join(LEARNERS)}"
        raise ConfigError(f"check_learner: no learner {quote(learner)}{known}; register it by `@ul.learner`.")
    if not isinstance(learner, str | LearnerEntry):
        refuse("check_learner", quote(learner), "the name of a learner", "Register the class by `@ul.learner(name)`.")
    entry = LEARNERS[learner] if isinstance(learner, str) else learner
    name = learner if isinstance(learner, str) else "the learner"
    names = {field.name for field in fields(entry.settings)}
    if unknown := sorted(settings.keys() - names):
        hint = suggest(unknown[0], names)
        raise ConfigError(f"check_learner: {name} has no setting {unknown[0]!r}{hint}; it has {', '.join(names)}.")
    task = _environment(env, entry)
    reason = "no registered environment fits it" if task is None else entry.refusal(task.spec)
    if reason:
        raise ConfigError(f"check_learner: {name} cannot learn this: {reason}. Pass an environment that it fits, env=.")
    return _Trial(name, entry, entry.settings(**settings), task, SMALL)


def _environment(env: Env | str | None, entry: LearnerEntry) -> Any:
    """Return the environment, or the first registered one that the learner fits; None if there is none."""
    if env is None:
        kinds = (each.kind for each in ENVIRONMENTS.values() if isinstance(getattr(each.kind(), "spec", None), EnvSpec))
        return next((kind() for kind in kinds if not entry.refusal(kind().spec)), None)
    if not isinstance(env, str):
        return env
    if env not in ENVIRONMENTS:
        raise ConfigError(f"check_learner: no environment {quote(env)}{suggest(env, ENVIRONMENTS)}.")
    return ENVIRONMENTS[env].kind()


def _check_policy(trial: _Trial) -> None:
    """Check actions, parameters, and the policy of saved parameters."""
    training = _Training(trial, (0, 1))
    learner, spec, obs = training.learner, trial.env.spec, training.observations()
    theta = learner.parameters()
    if theta.dim() != 3 or len(theta) != 2:
        trial.refuse("parameters", f"shape {tuple(theta.shape)}", "(runs, networks, numbers)", "Keep axis R first.")
    if (size := trial.entry.size(trial.hyper, spec)) != theta.shape[-1]:
        trial.refuse("size", f"{size}", f"{theta.shape[-1]}, the last axis of parameters", "Register another size.")
    loaded = trial.entry.load_policy(trial.hyper, spec, spec, theta)
    for noise in (None, acting_noise(training.rng, "check.act", WORLDS, spec)):
        for explore in (False, True):
            policy = learner.policy(spec, explore)
            action = policy(obs, noise)
            _check_action(trial, obs, noise, action)
            part = policy(tree_map(lambda leaf: leaf[:, :1], obs), None if noise is None else noise[:, :1])
            if part.shape != action[:, :1].shape or not _close(part, action[:, :1]):
                do = "Compute along the other axes only."
                trial.refuse("policy", "other actions without the other worlds", "worlds that are independent", do)
        if not _close(loaded(obs, noise), learner.policy(spec)(obs, noise)):
            do = "Keep all that a policy needs in parameters."
            trial.refuse("load_policy", "other actions than those of the learner", "the same policy", do)


def _check_action(trial: _Trial, obs: Any, noise: Tensor | None, action: Any) -> None:
    """Check shape, type and range of actions."""
    spec, what = trial.env.spec, "policy without noise" if noise is None else "policy with noise"
    shape = (2, WORLDS, spec.agents) if spec.choices else (2, WORLDS, spec.agents, spec.action)
    if not isinstance(action, Tensor) or action.shape != shape:
        got = f"shape {tuple(action.shape)}" if isinstance(action, Tensor) else type(action).__name__
        trial.refuse(what, got, f"a tensor of shape {shape}", "Act for every run, world and agent.")
    if spec.choices:
        if action.dtype != torch.int64 or ((action < 0) | (action >= spec.choices)).any():
            got = f"{action.dtype} from {action.min()} to {action.max()}"
            trial.refuse(what, got, f"int64 from 0 to {spec.choices - 1}", "Return numbers of moves.")
        if not obs.legal.gather(-1, action[..., None]).all():
            trial.refuse(what, "a move that is not legal", "moves that obs.legal allows", "Mask the other moves.")
    elif not action.is_floating_point() or not (action.abs() <= 1).all():  # nan compares as false
        got = f"{action.dtype} from {action.min():.3g} to {action.max():.3g}"
        trial.refuse(what, got, "numbers in [-1, 1]", "Use tanh, or clamp.")


def _check_runs(trial: _Trial, before: Tensor, after: Tensor, single: Tensor, alone: Tensor) -> float:
    """Check that updates change every run, and that run 1 is as it is alone; return the difference in its change."""
    for run, change in enumerate((after - before).flatten(1)):
        if not change.any():
            do = "Step on the parameters that policy and parameters read."
            trial.refuse("update", f"a policy of run {run} as before the update", "another one", do)
    change = (after - before)[1].norm()
    off = max(((before[1] - single[0]).norm() / change).item(), ((after[1] - alone[0]).norm() / change).item())
    if off > SHARE:
        do = "Compute means, norms and random numbers along the other axes, never over R."
        trial.refuse("update", f"a run that differs by {off:.2g} of its change beside another one", "the same run", do)
    return off


def _check_state(trial: _Trial, trained: _Training) -> None:
    """Check that another learner continues exactly from the state of this one."""
    fresh, state = _Training(trial, (7, 8)), trained.state()
    fresh.learner.load_state_dict(state)
    do = "Return every tensor that later updates depend on, and copy it back in load_state_dict."
    trial.same_bits("load_state_dict", state, fresh.state(), "in the state after it was loaded", do)
    for _ in range(UPDATES - 1):
        batch, noise = trained.batch()
        for each in (trained, fresh):
            each.learner.update(batch, noise)
        one, other = (
            {**each.state(), "parameters": each.learner.parameters()} for each in (trained, fresh)
        )  # fmt: skip
        trial.same_bits("state_dict", one, other, "after an update of a learner that loaded it", do)


def _check_guard(trial: _Trial, trained: _Training) -> None:
    """Check that all of the state is finite, and that ``tensors_to_check`` notices where it is not."""
    state = trained.state()
    for name, tensor in state.items():
        if not tensor.is_floating_point() or not tensor.dim() or not tensor.numel():
            continue
        if not tensor.isfinite().all():
            trial.refuse(f"state_dict[{name!r}]", "a number that is not finite", "finite numbers", "Guard divisions.")
        spoilt = tensor.clone()
        spoilt.view(-1)[-1] = torch.nan
        trained.learner.load_state_dict({**state, name: spoilt})
        if all(each.isfinite().all() for each, _ in trained.learner.tensors_to_check().values()):
            do = "Add it, so that a run stops at the first number that is not finite."
            trial.refuse("tensors_to_check", f"nothing about a nan in {name}", "every tensor of the state", do)
    trained.learner.load_state_dict(state)


def _play(trial: _Trial, bandit: Any, updates: int) -> dict[str, Any]:
    """Train on a bandit until the mean reward has risen clearly; return the figures of the report."""
    training = _Training(trial, tuple(range(SEEDS)))
    before = _mean_rewards(training)
    for number in range(1, updates + 1):
        training.update()
        if number % EVERY and number < updates:
            continue
        after = _mean_rewards(training)
        gain, spread = (after - before).mean().item(), max(before.std().item(), after.std().item())
        if gain > spread and gain > GAIN * (bandit.highest - before.mean().item()):
            first, last = before.mean().item(), after.mean().item()
            figures = {"before": first, "after": last, "spread": spread, "highest": bandit.highest}
            return {"bandit": type(bandit).__name__, "updates": number, **figures}
    got = f"mean reward {before.mean():.3g} -> {after.mean():.3g} (+- {spread:.2g}) after {updates} updates"
    do = "Check the signs of the losses, and that gradients reach the policy; a slow learner needs `updates=` or lr."
    trial.refuse("update", got, f"a clear rise towards {bandit.highest:g} on {type(bandit).__name__}", do)


def _mean_rewards(training: _Training) -> Float[Tensor, " R"]:
    """Return the mean reward of the present policy in worlds that are the same for each call."""
    env, rng = training.trial.env, Streams(training.rng.seeds)
    state = env.initial(rng.uniform("check.start", JUDGED, env.spec.initial_noise).flatten(0, 1))
    obs = tree_map(lambda leaf: leaf.unflatten(0, (len(rng.seeds), JUDGED)), env.observe(state))
    action = training.learner.policy(env.spec)(obs, acting_noise(rng, "check.act", JUDGED, env.spec)).flatten(0, 1)
    noise = rng.uniform("check.step", JUDGED, env.spec.step_noise).flatten(0, 1)
    reward = env.reward(state, action, env.transition(state, action, noise))
    return reward.unflatten(0, (len(rng.seeds), JUDGED)).mean((1, 2))


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), ROUNDING, ROUNDING)
