"""From valid settings to the objects of a run; the one place where alternatives are chosen."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch

from uavlab.app.config import Config, RunConfig
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.rng import Streams
from uavlab.learners.masac import MASAC, assign
from uavlab.learners.masac_loop import MASACLoop
from uavlab.nets.stacked import StackedMLP
from uavlab.runtime.runtime import Runtime
from uavlab.sources import Replayed, replay_bytes, survey


def runtime(run: RunConfig) -> Runtime:
    """Choose the device.

    Raises:
        ConfigError: CUDA is asked for and not there.
    """
    cuda = torch.cuda.is_available()
    if run.device == "cuda" and not cuda:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"torch {torch.__version__}" + ("" if visible is None else f", CUDA_VISIBLE_DEVICES={visible!r}")
        raise ConfigError(
            f"device: cuda requested, but torch.cuda.is_available() is False ({why}); use device=auto or cpu, and see "
            "`uavlab doctor`."
        )
    device = "cuda" if cuda and run.device != "cpu" else "cpu"
    return Runtime(device=torch.device(device), threads=run.threads)


def streams(run: RunConfig, device: torch.device, dtype: torch.dtype = torch.float32) -> Streams:
    """Open the random streams of every run."""
    return Streams([run.seed + r for r in range(run.runs)], device, dtype)


def learner(config: Config, rng: Streams, rt: Runtime) -> MASAC | MASACLoop:
    """Build the learner with its first parameters.

    Raises:
        ResourceError: It does not fit into free memory.
    """
    _require(learner_bytes(config), "learner", "hidden, batch or runs", rt)
    kind = MASACLoop if config.run.learner == "loop" else MASAC
    return kind(config.masac, config.env.spec, survey(config.env, rng), rng, rt)


def source(config: Config, pupil: MASAC | MASACLoop, rng: Streams, rt: Runtime) -> Replayed:
    """Build the worlds and the replay that feed the learner.

    Raises:
        ResourceError: The replay does not fit into free memory.
    """
    _require(replay_bytes(config.env, config.replay, config.run.runs), "replay", "capacity or runs", rt)
    return Replayed(config.env, pupil.policy(config.env.spec), config.replay, rng, rt)


def learner_bytes(config: Config) -> int:
    """Count the bytes that a learner will take at least: networks, and what the critics keep for their gradients.

    Every parameter has a gradient and two moments; critics have targets, too.
    """
    spec, masac, batch = config.env.spec, config.masac, config.replay.batch
    networks = len(set(assign(spec, spec, masac.share)))
    actors = networks * StackedMLP(spec.obs, masac.hidden, 2 * spec.action).count
    critics = 2 * spec.agents * StackedMLP(spec.agents * (spec.obs + spec.action), masac.hidden, 1).count
    at_once = 1 if config.run.learner == "loop" else spec.agents
    kept = 2 * 2 * at_once * batch * masac.hidden  # two critics of two layers
    return 4 * config.run.runs * (4 * actors + 5 * critics + kept)


def _require(needed: int, what: str, remedy: str, rt: Runtime) -> None:
    on_cuda = rt.device.type == "cuda"
    free = torch.cuda.mem_get_info(rt.device)[0] if on_cuda else psutil.virtual_memory().available
    if needed > free:
        raise ResourceError(f"{what}: {needed:,} bytes, {free:,} are free on {rt.device}; lower {remedy}.")


@contextmanager
def enough_memory() -> Iterator[None]:
    """Say in one sentence that memory ran out, however torch said it.

    Raises:
        ResourceError: An allocation on the CPU or on a GPU was refused.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        what = str(error).splitlines()[0] if str(error) else "allocation refused"
        raise ResourceError(f"out of memory: {what}; lower capacity, worlds, batch or hidden.") from error


def plan(config: Config) -> dict[str, Any]:
    """Tell what a run would do and take, before anything is made."""
    replay, run = config.replay, config.run
    steps = None if run.updates is None else run.updates * replay.world_steps * replay.worlds + replay.learning_starts
    return {
        "preset": config.preset,
        "updates": run.updates,
        "minutes": run.minutes,
        "runs": run.runs,
        "world_steps_per_run": steps,
        "agent_steps_per_run": None if steps is None else steps * config.env.spec.agents,
        "replay_bytes": replay_bytes(config.env, replay, run.runs),
    }
