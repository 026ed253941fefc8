"""The best policy of a run: loading, evaluation, flights and export; and scores of trained policies and baselines."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.protocols import Env, Policy
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.text import quote, suggest
from uavlab.core.types import tree_map
from uavlab.experiment import build
from uavlab.experiment.config import Config, Device, configure
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config, require_empty, run_folder
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles
from uavlab.storage import checkpoint
from uavlab.storage.files import read_json, write_json
from uavlab.storage.machine import describe, invocation


@dataclass(frozen=True)
class TrainedPolicy:
    """Settings and the best policy of each seed of a run.

    Attributes:
        config: Settings of the run.
        rt: Runtime on which the policy acts.
        update: Updates of the checkpoint or run; the policy dates from this update or an earlier one.
        parameters: Parameters of K networks for each of R seeds.
        score: Validation score of each seed; -inf if it was never evaluated.
    """

    config: Config
    rt: Runtime
    update: int
    parameters: Float[Tensor, "R K P"]
    score: Float[Tensor, " R"]

    def policy(self, env: Env, run: int | None = None) -> Policy:
        """Return the policies of all seeds, or of one, for ``env``, whose team may differ in size."""
        chosen = self.parameters if run is None else self.parameters[run : run + 1]
        return self.config.task.entry.load_policy(self.config.learner, self.config.env.spec, env.spec, chosen)


def load(folder: Path, device: Device | None = None) -> TrainedPolicy:
    """Load the best policy of a run or of an exported copy; ``device`` replaces the device of its settings.

    Raises:
        FileError: The folder is no run, has no intact checkpoint, or its policies are not finite or of another shape.
        ConfigError: The settings do not fit this machine.
    """
    config = read_config(folder)
    run = config.run if device is None else replace(config.run, device=device)
    rt = build.runtime(run, Toggles(threads=config.toggles.threads))
    saved = checkpoint.newest(folder / "checkpoints", only="best")
    best = saved.groups.get("best", {})
    if not {"parameters", "score"} <= set(best) or not best["parameters"].isfinite().all():
        raise FileError(f"{saved.path}: keeps no policy of finite numbers; evaluate another run, or train a new one.")
    stored, wanted = best["parameters"].shape, config.task.entry.size(config.learner, config.env.spec)
    if len(stored) != 3 or stored[0] != config.run.runs or stored[2] != wanted:
        raise FileError(
            f"{folder}: keeps policies of shape {tuple(stored)}, its settings describe {config.run.runs} run(s) of "
            f"networks with {wanted} parameters; was it written by another version, or its config.json edited?"
        )
    return TrainedPolicy(config, rt, saved.step, best["parameters"].to(rt.device), best["score"])


def from_run(run: Run) -> TrainedPolicy:
    """Return the best policy of a run in this process; before its first evaluation, the newest."""
    return TrainedPolicy(run.config, run.rt, run.number, run.best, run.best_score)


def export(folder: Path, out: Path) -> Path:
    """Copy settings and best policy of a run to ``out``, without replay and optimizers, and return ``out``.

    Raises:
        ConfigError: ``out`` is not empty.
        FileError: The folder is no run, or has no intact checkpoint.
    """
    trained = load(folder)
    require_empty(out).mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "run.json"):
        write_json(out / name, read_json(folder / name))
    best = {"best": {"parameters": trained.parameters, "score": trained.score}}
    checkpoint.save(out / "checkpoints", trained.update, best, {"exported": True}, keep=1)
    return out


def evaluate(
    trained: TrainedPolicy, count: int, seed: int, mean_action: bool, env: Env | None = None
) -> dict[str, Any]:
    """Evaluate a policy over ``count`` episodes per seed; equal arguments give equal figures."""
    config, env = trained.config, env or trained.config.evaluation
    return _evaluate(config, trained.rt, env, trained.policy(env), config.run.runs, count, seed, mean_action)


def _evaluate(
    config: Config, rt: Runtime, env: Env, policy: Any, runs: int, count: int, seed: int, mean_action: bool
) -> dict[str, Any]:
    evaluation = config.task.evaluation
    with rt.scope():
        rng = Streams([seed * 1_000_003 + config.run.seed + run for run in range(runs)], rt.device)
        figures = evaluation.figures(config, env, policy, rng, count, mean_action, build.EVALUATION)
    return evaluation.summary(env, figures)


@torch.no_grad()
def fly(
    trained: TrainedPolicy, seed: int, mean_action: bool = False, run: int = 0, env: Env | None = None
) -> Iterator[Any]:
    """Fly one episode; yield the state of its world before the first step and after each step.

    Raises:
        ConfigError: There is no such run, or its environment has no team that flies.
    """
    task = env or trained.config.evaluation
    if not 0 <= run < len(trained.parameters):
        raise ConfigError(f"fly: run {run} of {len(trained.parameters)}; expected 0 to {len(trained.parameters) - 1}.")
    if not trained.config.task.evaluation.flies:
        raise ConfigError(f"fly: {trained.config.preset} has no team that flies; see `uavlab evaluate`.")
    policy, spec = trained.policy(task, run), task.spec
    rng = Streams([seed], trained.rt.device)
    state = task.initial(rng.uniform("fly.start", 1, spec.initial_noise)[0])
    yield state
    for _ in range(spec.horizon):
        noise = None if mean_action else acting_noise(rng, "fly.act", 1, spec)
        action = policy(tree_map(lambda leaf: leaf[None], task.observe(state)), noise)[0]
        state = task.transition(state, action, rng.uniform("fly.step", 1, spec.step_noise)[0])
        yield state
        if task.terminated(state).all():
            return


def score(
    runs: Sequence[str],
    episodes: int,
    seed: int,
    mean_action: bool,
    device: Device | None,
    say: Callable[[str], Any],
) -> dict[str, Any]:
    """Evaluate the best policy of each run, given by its folder, over ``episodes`` episodes of its evaluation task.

    All runs are read before the first evaluation; ``say`` is called with each line of text.

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
        say(f"{run}: policy of update <= {policy.update}, {counted} x {len(policy.parameters)} run(s)")
        _print_figures(policy.config, result, say)
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
        evaluation, known = config.task.evaluation, config.task.environment.baselines
        if plan not in known:
            there = f"Known: {', '.join(known)}." if known else f"{name} has none."
            raise ConfigError(f"--policy {quote(plan)} for {name}: unknown{suggest(plan, known)}. {there}")
        rt = build.runtime(config.run, config.toggles)
        with rt.scope():
            baseline = evaluation.baseline(config, rt, known[plan])
        result = _evaluate(config, rt, config.evaluation, baseline, 1, count, seed, False)
        say(f"{name}: {plan}, {evaluation.count.format(count)}")
        _print_figures(config, result, say)
        rows.append({**result, "preset": name, "policy": plan, "episodes": count, "seed": seed})
    return {"command": invocation(), "machine": describe(rt.device), "rows": rows}


def _print_figures(config: Config, result: Mapping[str, Any], say: Callable[[str], Any]) -> None:
    units = config.task.evaluation.units(config.evaluation)
    flat = {name: row for name, row in result.items() if "mean" in row}
    flat |= {f"{kind}/{name}": row for kind, rows in result.items() if kind not in flat for name, row in rows.items()}
    width = max(18, *map(len, flat))
    for metric, figure in flat.items():
        interval = f"[{figure['low']:.3f}, {figure['high']:.3f}]"
        say(f"{metric:{width}} {figure['mean']:10.3f}   {interval} {units[metric]}".rstrip())
