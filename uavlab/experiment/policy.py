"""The policy that a run keeps: load it, score it, fly it, or copy it without the rest of the run."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.protocols import Env, Policy
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.types import tree_map
from uavlab.experiment import build
from uavlab.experiment.config import Config, Device
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config, require_empty
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles
from uavlab.storage import checkpoint
from uavlab.storage.files import read_json, write_json


@dataclass(frozen=True)
class Kept:
    """Settings and the best policy of each run, ready to fly any team of trained groups."""

    config: Config
    rt: Runtime
    update: int
    parameters: Float[Tensor, "R K P"]
    score: Float[Tensor, " R"]

    def policy(self, env: Env, run: int | None = None) -> Policy:
        """Give the policies of all runs, or of one, for the teams of ``env``."""
        chosen = self.parameters if run is None else self.parameters[run : run + 1]
        return self.config.task.load_policy(self.config, env, chosen)


def load(folder: Path, device: Device | None = None) -> Kept:
    """Read the kept policy of a run, or of an exported copy; ``device`` replaces the one it was trained on.

    Raises:
        FileError: The folder is no run, holds no intact checkpoint, or one of other networks.
        ConfigError: The settings do not fit this machine.
    """
    config = read_config(folder)
    run = config.run if device is None else replace(config.run, device=device)
    rt = build.runtime(run, Toggles(threads=config.toggles.threads))
    saved = checkpoint.newest(folder / "checkpoints", only="best")
    best = saved.groups.get("best", {})
    if not {"parameters", "score"} <= set(best) or not best["parameters"].isfinite().all():
        raise FileError(f"{saved.path}: keeps no policy of finite numbers; evaluate another run, or train a new one.")
    stored, wanted = best["parameters"].shape, config.task.policy_size(config)
    if len(stored) != 3 or stored[0] != config.run.runs or stored[2] != wanted:
        raise FileError(
            f"{folder}: keeps policies of shape {tuple(stored)}, its settings describe {config.run.runs} run(s) of "
            f"networks with {wanted} parameters; was it written by another version, or its config.json edited?"
        )
    return Kept(config, rt, saved.step, best["parameters"].to(rt.device), best["score"])


def of(run: Run) -> Kept:
    """Take the policy that a run in this process keeps; one that ended before its first score keeps the newest."""
    return Kept(run.config, run.rt, run.number, run.best, run.best_score)


def export(folder: Path, out: Path) -> Path:
    """Copy settings and kept policy of a run to ``out``, without replay and optimizers."""
    kept = load(folder)
    require_empty(out).mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "run.json"):
        write_json(out / name, read_json(folder / name))
    best = {"best": {"parameters": kept.parameters, "score": kept.score}}
    checkpoint.save(out / "checkpoints", kept.update, best, {"exported": True}, keep=1)
    return out


def evaluate(kept: Kept, count: int, seed: int, mean_action: bool, env: Env | None = None) -> dict[str, Any]:
    """Score a kept policy over ``count`` episodes per run; the same call gives the same figures."""
    env = env or kept.config.evaluation
    seeds = [seed * 1_000_003 + own for own in build.streams(kept.config.run, kept.rt.device).seeds]
    with kept.rt.scope():
        rng = Streams(seeds, kept.rt.device)
        evaluation = kept.config.task.evaluation
        figures = evaluation.figures(kept.config, env, kept.policy(env), rng, count, mean_action, build.EVALUATION)
    return evaluation.summary(env, figures)


@torch.no_grad()
def flight(kept: Kept, seed: int, mean_action: bool = False, run: int = 0, env: Env | None = None) -> Iterator[Any]:
    """Fly one episode and yield the state of its world before the first step and after each.

    Raises:
        ConfigError: There is no such run.
    """
    task = env or kept.config.evaluation
    if not 0 <= run < len(kept.parameters):
        raise ConfigError(f"fly: run {run} of {len(kept.parameters)}; expected 0 to {len(kept.parameters) - 1}.")
    if not kept.config.task.evaluation.flies:
        raise ConfigError(f"fly: {kept.config.preset} has no team that flies; see `uavlab evaluate`.")
    policy, spec = kept.policy(task, run), task.spec
    rng = Streams([seed], kept.rt.device)
    state = task.initial(rng.uniform("fly.start", 1, spec.initial_noise)[0])
    yield state
    for _ in range(spec.horizon):
        noise = None if mean_action else acting_noise(rng, "fly.act", 1, spec)
        action = policy(tree_map(lambda leaf: leaf[None], task.observe(state)), noise)[0]
        state = task.transition(state, action, rng.uniform("fly.step", 1, spec.step_noise)[0])
        yield state
        if task.terminated(state).all():
            return
