"""Scores of trained policies, baselines and a user's own functions, with 95 % intervals."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.cards import Table, card, interval_bar
from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Env, Policy
from uavlab.core.rng import Streams
from uavlab.core.text import quote, suggest
from uavlab.core.types import EnvSpec, leaves, padded_actions, tree_map
from uavlab.evaluation import random_policy, require_actions
from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.experiment.policy import TrainedPolicy, fly_policy
from uavlab.runtime.runtime import Runtime

Figures = Mapping[str, Float[Tensor, "R E"]]
"""Figures by name, a number for each seed and episode."""


class Scores(dict[str, Any]):
    """Figures by name, each with ``mean`` and its 95 % interval ``low`` to ``high``; ``str`` formats them as a table.

    Figures of telemetry are grouped by kind. With several seeds, ``each`` holds the mean of every seed. ``count`` says
    on what they were measured, such as ``200 episodes``, and ``device`` where. Intervals are over the episodes of one
    seed, or over several seeds (``uavlab.evaluation.interval``).

    >>> print(ul.evaluate(run, episodes=4))  # doctest: +ELLIPSIS
    completion ...
    """

    def __init__(self, figures: Mapping[str, Any], units: Mapping[str, str], count: str, device: torch.device) -> None:
        super().__init__(figures)
        self.units, self.count, self.device = units, count, device

    def __repr__(self) -> str:
        """Return one line for each figure: name, mean, interval, unit."""
        table = self._table()
        return "\n".join(table.lines(f"{{:{table.width(0, 18)}}} {{:>10}}   {{}} {{}}", with_heads=False))

    def _repr_html_(self) -> str:
        return card("Scores", {"measured on": self.count, "device": self.device}, self._table().html())

    def _table(self) -> Table:
        rows = [
            (name, f"{mean:.3f}", f"[{low:.3f}, {high:.3f}]", self.units[name], interval_bar(low, mean, high))
            for name, row in self.flat().items()
            for mean, low, high in [(row["mean"], row["low"], row["high"])]
        ]
        return Table(("figure", "mean", "95 % interval", "unit", ""), rows)

    def flat(self) -> dict[str, Any]:
        """Return each figure by its name, with its kind before it where there are kinds: ``r2/payload``."""
        rows = {name: row for name, row in self.items() if "mean" in row}
        return rows | {
            f"{kind}/{name}": row for kind, group in self.items() if kind not in rows for name, row in group.items()
        }


def evaluate(trained: TrainedPolicy, count: int, seed: int, mean_action: bool, env: Env | None = None) -> Scores:
    """Evaluate a policy over ``count`` episodes per seed; equal arguments give equal figures."""
    figures = measure(trained, count, seed, mean_action, env)
    return summarize(trained.config, figures, count, trained.rt.device, env)


def measure(trained: TrainedPolicy, count: int, seed: int, mean_action: bool, env: Env | None = None) -> Figures:
    """Return the figures of a policy in each of ``count`` episodes per seed; ``summarize`` returns their means."""
    config, env = trained.config, env or trained.config.evaluation
    return measure_policy(
        config, trained.rt, env, trained.batched_policy(env), config.run.runs, count, seed, mean_action
    )


def pool(figures: Sequence[Figures]) -> Figures:
    """Return the figures of several runs of one task as those of one run with all their seeds."""
    return {name: torch.cat([run[name] for run in figures]) for name in figures[0]}


def summarize(config: Config, figures: Figures, count: int, device: torch.device, env: Env | None = None) -> Scores:
    """Return the means of figures over ``count`` episodes per seed, with their intervals."""
    evaluation, env = config.task.evaluation, env or config.evaluation
    return Scores(evaluation.summary(env, figures), evaluation.units(env), evaluation.count.format(count), device)


def evaluate_baseline(
    config: Config, policy: str | Callable[[Any], Tensor], count: int, seed: int, env: Env | None = None
) -> Scores:
    """Evaluate a baseline, by its name, or a function of observations (B A O), in the episodes of ``evaluate``."""
    figures = measure_baseline(config, policy, count, seed, env)
    return summarize(config, figures, count, next(iter(figures.values())).device, env)


def measure_baseline(
    config: Config, policy: str | Callable[[Any], Tensor], count: int, seed: int, env: Env | None = None
) -> Figures:
    """Return the figures of a baseline, as of one seed, in each of ``count`` episodes; see ``evaluate_baseline``."""
    env, rt = env or config.evaluation, build.runtime(config.run, config.toggles)
    return measure_policy(config, rt, env, baseline_policy(config, policy, env, rt), 1, count, seed, False)


def weigh(score: Mapping[str, float], figures: Figures) -> Float[Tensor, "R E"]:
    """Return the score of each episode: its figures with these weights, such as ``env.score``; higher is better."""
    return torch.stack([weight * figures[name] for name, weight in score.items()]).sum(0)


def fly_baseline(
    config: Config, policy: str | Callable[[Any], Tensor], seed: int, env: Env | None = None
) -> Iterator[Any]:
    """Fly one episode of a baseline, or of a function of observations; yield the states of its world."""
    if not config.task.evaluation.flies:
        raise ConfigError(f"fly: {config.preset} has no team that flies.")
    env, rt = env or config.evaluation, build.runtime(config.run, config.toggles)
    yield from fly_policy(env, baseline_policy(config, policy, env, rt), Streams([seed], rt.device))


def baseline_policy(config: Config, policy: str | Callable[[Any], Tensor], env: Env, rt: Runtime) -> Any:
    """Return a baseline, or a function of observations, in the form that evaluation needs."""
    if not isinstance(policy, str):
        return _with_run_axis(policy, env.spec)
    evaluation, known = config.task.evaluation, baselines(config)
    if policy not in known:
        there = f"Known: {', '.join(known)}." if known else f"{config.preset} has none."
        raise ConfigError(f"policy {quote(policy)} for {config.preset}: unknown{suggest(policy, known)}. {there}")
    plan = known[policy]
    if plan is random_policy:
        return partial(plan, padding=padded_actions(env.spec, rt.device))
    with rt.scope():
        return evaluation.baseline(config, rt, _checked(policy, plan) if evaluation.flies else plan)


def baselines(config: Config) -> dict[str, Any]:
    """Return the baselines of an environment by name; random actions need no registration where a team acts."""
    own = config.task.environment.baselines
    return {**({"random": random_policy} if config.task.evaluation.flies else {}), **own}


def _with_run_axis(policy: Callable[[Any], Tensor], spec: EnvSpec) -> Policy:
    """Return a function of observations as a policy with an axis of runs; its actions are checked."""

    def act(obs: Any, noise: Any) -> Tensor:
        action = policy(tree_map(lambda leaf: leaf[0], obs))
        leaf = leaves(obs)[0][1]
        require_actions("policy", action, leaf.shape[1:2], spec)
        return action[None] if spec.choices else action[None].to(leaf)

    return act


def _checked(name: str, plan: Callable[[Any, Any, Tensor], Tensor]) -> Callable[[Any, Any, Tensor], Tensor]:
    """Return a registered baseline whose actions are checked."""

    def act(env: Any, state: Any, noise: Tensor) -> Tensor:
        action = plan(env, state, noise)
        require_actions(f"baseline {name}", action, noise.shape[:1], env.spec)
        return action

    return act


def measure_policy(
    config: Config, rt: Runtime, env: Env, policy: Any, runs: int, count: int, seed: int, mean_action: bool
) -> Figures:
    """Return the figures of a policy with an axis of ``runs``, a plan, or ``Sides``, in ``count`` episodes each."""
    if count < 1:
        raise ConfigError(f"evaluate: got episodes={count}; expected at least 1.")
    with rt.scope():
        rng = Streams([seed * 1_000_003 + config.run.seed + run for run in range(runs)], rt.device)
        return config.task.evaluation.figures(config, env, policy, rng, count, mean_action, build.EVALUATION)
