"""Final scores of trained policies and of baselines, with a record of command and machine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.text import quote, suggest
from uavlab.experiment import build, policy
from uavlab.experiment.config import Device, configure
from uavlab.experiment.run_dir import run_folder
from uavlab.storage.files import read_json
from uavlab.storage.machine import describe, invocation


def score(
    runs: Sequence[str],
    episodes: int,
    seed: int,
    mean_action: bool,
    device: Device | None,
    say: Callable[[str], Any],
) -> dict[str, Any]:
    """Evaluate the best policy of each run on its evaluation task; all runs are read before the first evaluation.

    Args:
        runs: Folders of the runs.
        episodes: Episodes per run.
        seed: Seed of the episodes.
        mean_action: Use the mean action instead of sampling.
        device: Replaces the device of the runs' settings.
        say: Called with each line of text as soon as it is known.

    Returns:
        A record with ``command``, ``machine``, ``rows`` (one for each run) and ``trained`` (their ``run.json``).

    Raises:
        ConfigError: An argument is no run.
        FileError: A folder is no run, or has no intact checkpoint.
    """
    folders = [run_folder(run) for run in runs]
    policies = [policy.load(folder, device) for folder in folders]
    trained = [read_json(folder / "run.json") for folder in folders]
    rows = []
    for run, loaded in zip(runs, policies, strict=True):
        result = policy.evaluate(loaded, episodes, seed, mean_action)
        evaluation = loaded.config.task.evaluation
        counted = evaluation.count.format(episodes)
        say(f"{run}: policy of update <= {loaded.update}, {counted} x {len(loaded.parameters)} run(s)")
        _print_figures(result, evaluation.units(loaded.config.evaluation), say)
        action = "mean" if mean_action else "sampled"
        rows.append({**result, "run": run, "episodes": episodes, "seed": seed, "action": action})
    machine = describe(policies[0].rt.device)
    return {"command": invocation(), "machine": machine, "rows": rows, "trained": trained}


def score_plan(
    names: Sequence[str], plan: str, count: int, seed: int, device: Device | None, say: Callable[[str], Any]
) -> dict[str, Any]:
    """Evaluate a baseline, by its name ``plan``, on the evaluation task of each preset, in the episodes of ``score``.

    Raises:
        ConfigError: A preset is unknown, or its environment has no such baseline.
    """
    layer = {} if device is None else {"device": device}
    rows = []
    for name in names:
        config = configure(name, layer)
        env, evaluation, known = config.evaluation, config.task.evaluation, config.task.environment.baselines
        if plan not in known:
            there = f"Known: {', '.join(known)}." if known else f"{name} has none."
            raise ConfigError(f"--policy {quote(plan)} for {name}: unknown{suggest(plan, known)}. {there}")
        rt = build.runtime(config.run, config.toggles)
        with rt.scope():
            rng = Streams([seed * 1_000_003 + config.run.seed], rt.device)
            baseline = evaluation.baseline(config, rt, known[plan])
            figures = evaluation.figures(config, env, baseline, rng, count, False, build.EVALUATION)
            result = evaluation.summary(env, figures)
        say(f"{name}: {plan}, {evaluation.count.format(count)}")
        _print_figures(result, evaluation.units(env), say)
        rows.append({**result, "preset": name, "policy": plan, "episodes": count, "seed": seed})
    return {"command": invocation(), "machine": describe(rt.device), "rows": rows}


def _print_figures(result: dict[str, Any], units: Mapping[str, str], say: Callable[[str], Any]) -> None:
    flat = {name: row for name, row in result.items() if "mean" in row}
    flat |= {f"{kind}/{name}": row for kind, rows in result.items() if kind not in flat for name, row in rows.items()}
    width = max(18, *map(len, flat))
    for metric, figure in flat.items():
        interval = f"[{figure['low']:.3f}, {figure['high']:.3f}]"
        say(f"{metric:{width}} {figure['mean']:10.3f}   {interval} {units[metric]}".rstrip())
