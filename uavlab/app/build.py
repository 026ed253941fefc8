"""From valid settings to the objects of a run; the one place where alternatives are chosen."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
import torch

from uavlab.app.config import Config, RunConfig
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.protocols import Policy
from uavlab.core.rng import Streams
from uavlab.core.types import tree_map
from uavlab.envs.advance import fresh
from uavlab.learners.masac import MASAC, assign, kept_policy
from uavlab.learners.masac_loop import RUNGS, MASACLoop
from uavlab.learners.masac_vmap import MASACVmap
from uavlab.nets.stacked import StackedMLP
from uavlab.replay.host import on_host
from uavlab.replay.stores import HERE, ByPriority, Store, Uniform
from uavlab.runtime.memory import out_of_memory
from uavlab.runtime.monitor import Monitor
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles
from uavlab.sources import Replayed, blank_row, replay_bytes, survey

PLAIN = Toggles()


def runtime(run: RunConfig, toggles: Toggles = PLAIN) -> Runtime:
    """Choose the device, and tell which toggles cannot be used there.

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
    return Runtime(torch.device(device), toggles)


def streams(run: RunConfig, device: torch.device, dtype: torch.dtype = torch.float32) -> Streams:
    """Open the random streams of every run."""
    return Streams([run.seed + r for r in range(run.runs)], device, dtype)


def learner(config: Config, rng: Streams, rt: Runtime) -> MASAC:
    """Build the learner with its first parameters.

    Raises:
        ResourceError: It does not fit into free memory.
    """
    _require(learner_bytes(config), "learner", "hidden, batch or runs", rt.device)
    rungs = {name: partial(MASACLoop, rung=name) for name in RUNGS}
    kinds: dict[str, Callable[..., MASAC]] = {**rungs, "vmap": MASACVmap, "batched": MASAC}
    made, inputs = kinds[rt.toggles.update], survey(config.env, rng)
    return made(config.masac, config.env.spec, inputs, rng, rt, acting=rt.toggles.acting)


def source(config: Config, pupil: MASAC, rng: Streams, rt: Runtime) -> Replayed:
    """Build the worlds and the replay that feed the learner.

    Raises:
        ResourceError: The replay does not fit into free memory.
    """

    def snapshot() -> Policy:
        return kept_policy(config.masac, spec, spec, pupil.parameters())

    spec = config.env.spec
    return Replayed(config.env, pupil.policy(spec), config.replay, rng, rt, store(config, rng, rt), snapshot)


def store(config: Config, rng: Streams, rt: Runtime) -> Store:
    """Choose what keeps the rows, and where.

    Raises:
        ResourceError: They do not fit into the memory that is free there.
        ConfigError: There are more rows than priorities can serve.
    """
    toggles, replay, env, runs = rt.toggles, config.replay, config.env, len(rng.seeds)
    here = toggles.placement == "device"
    device = rt.device if here else torch.device("cpu")
    masses = 0 if toggles.priorities == "off" else 8 * replay.capacity * runs
    _require(replay_bytes(env, replay, runs) + masses, "replay", "capacity or runs", device)
    noise = torch.zeros(runs * replay.worlds, env.spec.initial_noise, dtype=rng.dtype, device=device)
    worlds = fresh(env, noise, torch.zeros(len(noise), dtype=torch.int64, device=device))
    example = tree_map(lambda leaf: leaf.unflatten(0, (runs, -1)), blank_row(env, worlds))
    place = HERE if here else on_host(example, replay.batch, rt, toggles.placement == "pinned")
    if toggles.priorities == "off":
        return Uniform(example, replay.capacity, place)
    return ByPriority(example, replay.capacity, replay, toggles.priorities, place)


def assembled(config: Config, monitor: Monitor | None = None) -> tuple[Runtime, Streams, MASAC, Replayed]:
    """Build all that a training loop needs; ``monitor`` times its stages.

    Raises:
        ConfigError: The settings do not fit this machine.
        ResourceError: Memory does not suffice.
    """
    rt = replace(runtime(config.run, config.toggles), monitor=monitor)
    rng = streams(config.run, rt.device)
    with rt.scope():
        pupil = learner(config, rng, rt)
        return rt, rng, pupil, source(config, pupil, rng, rt)


def learner_bytes(config: Config) -> int:
    """Count the bytes that a learner will take at least: networks, and what the critics keep for their gradients.

    Every parameter has a gradient and two moments; critics have targets, too.
    """
    spec, masac, batch = config.env.spec, config.masac, config.replay.batch
    networks = len(set(assign(spec, spec, masac.share)))
    actors = networks * StackedMLP(spec.obs, masac.hidden, 2 * spec.action).count
    critics = 2 * spec.agents * StackedMLP(spec.agents * (spec.obs + spec.action), masac.hidden, 1).count
    kept = 2 * 2 * spec.agents * batch * masac.hidden  # two critics of two layers
    return 4 * config.run.runs * (4 * actors + 5 * critics + kept)


def _require(needed: int, what: str, remedy: str, device: torch.device) -> None:
    on_cuda = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_cuda else psutil.virtual_memory().available
    if needed > free:
        raise ResourceError(f"{what}: {needed:,} bytes, {free:,} are free on {device}; lower {remedy}.")


@contextmanager
def enough_memory() -> Iterator[None]:
    """Say in one sentence that memory ran out, however torch said it.

    Raises:
        ResourceError: An allocation on the CPU or on a GPU was refused.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        what = str(error).splitlines()[0] if str(error) else "allocation refused"
        raise ResourceError(f"out of memory: {what}; lower capacity, worlds, batch or hidden.") from error


def plan(config: Config) -> dict[str, Any]:
    """Tell what a run would do and take, before anything is made."""
    replay, run = config.replay, config.run
    interval, ratio = config.toggles.interval, config.toggles.ratio
    cycles = -(-(run.updates or 0) // (interval * ratio)) * interval  # whole rounds
    steps = None if run.updates is None else cycles * replay.world_steps * replay.worlds + replay.learning_starts
    return {
        "preset": config.preset,
        "updates": run.updates,
        "minutes": run.minutes,
        "runs": run.runs,
        "world_steps_per_run": steps,
        "agent_steps_per_run": None if steps is None else steps * config.env.spec.agents,
        "replay_bytes": replay_bytes(config.env, replay, run.runs),
    }
