"""Scores of trained policies, baselines and a user's own functions, with bootstrap intervals."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.installation import invocation
from uavlab.core.protocols import Env
from uavlab.core.rng import Streams
from uavlab.core.text import quote, suggest
from uavlab.core.types import tree_map
from uavlab.evaluation import random_policy
from uavlab.experiment import build
from uavlab.experiment.config import Config, Device, configure
from uavlab.experiment.names import run_folder
from uavlab.experiment.policy import TrainedPolicy, load
from uavlab.runtime.runtime import Runtime
from uavlab.storage.files import read_json
from uavlab.storage.machine import describe


class Scores(dict[str, Any]):
    """Figures by name, each with ``mean`` and its 95 % interval ``low`` to ``high``; ``str`` formats them as a table.

    Figures of telemetry are grouped by kind. With several seeds, ``each`` holds the mean of every seed.

    >>> print(ul.evaluate(run, episodes=4))  # doctest: +ELLIPSIS
    completion ...
    """

    def __init__(self, figures: Mapping[str, Any], units: Mapping[str, str]) -> None:
        """Hold these figures, in these units."""
        super().__init__(figures)
        self.units = units

    def __str__(self) -> str:
        """Return one line for each figure: name, mean, interval, unit."""
        flat = {name: row for name, row in self.items() if "mean" in row}
        flat |= {f"{kind}/{name}": row for kind, rows in self.items() if kind not in flat for name, row in rows.items()}
        width = max(18, *map(len, flat))
        return "\n".join(
            f"{name:{width}} {row['mean']:10.3f}   [{row['low']:.3f}, {row['high']:.3f}] {self.units[name]}".rstrip()
            for name, row in flat.items()
        )


def evaluate(trained: TrainedPolicy, count: int, seed: int, mean_action: bool, env: Env | None = None) -> Scores:
    """Evaluate a policy over ``count`` episodes per seed; equal arguments give equal figures."""
    config, env = trained.config, env or trained.config.evaluation
    return _evaluate(config, trained.rt, env, trained.batched_policy(env), config.run.runs, count, seed, mean_action)


def evaluate_baseline(config: Config, policy: str | Callable[[Any], Tensor], count: int, seed: int) -> Scores:
    """Evaluate a baseline, by its name, or a function of observations (B A O), in the episodes of ``evaluate``.

    Raises:
        ConfigError: The environment has no such baseline.
    """
    evaluation, rt = config.task.evaluation, build.runtime(config.run, config.toggles)
    known = baselines(config)
    if isinstance(policy, str) and policy not in known:
        there = f"Known: {', '.join(known)}." if known else f"{config.preset} has none."
        raise ConfigError(f"--policy {quote(policy)} for {config.preset}: unknown{suggest(policy, known)}. {there}")
    chosen: Any = known[policy] if isinstance(policy, str) else _with_run_axis(policy)
    if isinstance(policy, str) and chosen is not random_policy:
        with rt.scope():
            chosen = evaluation.baseline(config, rt, chosen)
    return _evaluate(config, rt, config.evaluation, chosen, 1, count, seed, False)


def baselines(config: Config) -> dict[str, Any]:
    """Return the baselines of an environment by name; random actions need no registration where a team acts."""
    own = config.task.environment.baselines
    return {**({"random": random_policy} if config.task.evaluation.flies else {}), **own}


def _with_run_axis(policy: Callable[[Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    return lambda obs, noise: policy(tree_map(lambda leaf: leaf[0], obs))[None]


def _evaluate(
    config: Config, rt: Runtime, env: Env, policy: Any, runs: int, count: int, seed: int, mean_action: bool
) -> Scores:
    evaluation = config.task.evaluation
    with rt.scope():
        rng = Streams([seed * 1_000_003 + config.run.seed + run for run in range(runs)], rt.device)
        figures = evaluation.figures(config, env, policy, rng, count, mean_action, build.EVALUATION)
    return Scores(evaluation.summary(env, figures), evaluation.units(env))


def score(
    runs: Sequence[str],
    episodes: int,
    seed: int,
    mean_action: bool,
    device: Device | None,
    say: Callable[[str], Any],
) -> dict[str, Any]:
    """Evaluate the best policy of each run, given by its folder, over ``episodes`` episodes of its evaluation task.

    All runs are read before the first evaluation; ``say`` is called with each line of text as soon as it is known.

    Returns:
        A record with ``command``, ``machine``, ``rows`` (one for each run) and ``trained`` (their ``run.json``).

    Raises:
        ConfigError: An argument is no run.
        FileError: A folder is no run, or has no intact checkpoint.
    """
    folders = [run_folder(run) for run in runs]
    policies = [load(folder, device) for folder in folders]
    trained = [read_json(folder / "run.json") for folder in folders]
    rows = []
    for run, policy in zip(runs, policies, strict=True):
        result = evaluate(policy, episodes, seed, mean_action)
        counted = policy.config.task.evaluation.count.format(episodes)
        age = f"<= {policy.update}" if min(policy.updates) < 0 else ", ".join(map(str, policy.updates))
        _print(f"{run}: policy of update {age}, {counted} x {len(policy.parameters)} run(s)", result, say)
        action = "mean" if mean_action else "sampled"
        rows.append({**result, "run": run, "episodes": episodes, "seed": seed, "action": action})
    machine = describe(policies[0].rt.device)
    return {"command": invocation(), "machine": machine, "rows": rows, "trained": trained}


def score_plan(
    names: Sequence[str], plan: str, count: int, seed: int, device: Device | None, say: Callable[[str], Any]
) -> dict[str, Any]:
    """Evaluate the baseline named ``plan`` on the evaluation task of each preset, with the random streams of ``score``.

    Raises:
        ConfigError: A preset is unknown, or its environment has no such baseline.
    """
    rows = []
    for name in names:
        config = configure(name, {} if device is None else {"device": device})
        result = evaluate_baseline(config, plan, count, seed)
        _print(f"{name}: {plan}, {config.task.evaluation.count.format(count)}", result, say)
        rows.append({**result, "preset": name, "policy": plan, "episodes": count, "seed": seed})
    return {"command": invocation(), "machine": describe(build.runtime(config.run).device), "rows": rows}


def _print(title: str, result: Scores, say: Callable[[str], Any]) -> None:
    for line in (title, *str(result).splitlines()):
        say(line)
