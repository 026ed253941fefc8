"""What the published mapping task costs: a team step on the host, by a pool of processes, and batched; a training step.

``maps`` leaves the policy out, ``missions`` is all of it: episodes flown, returns, and every pass of learning.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch

from uavlab.bench.compare import compare
from uavlab.bench.timing import interleaved, median, ratio
from uavlab.collectors.on_policy import moved
from uavlab.core.types import tree_map
from uavlab.envs.mapping.env import Mapping, OverwrittenMapping, State
from uavlab.envs.mapping.numpy_reference import HostMapping
from uavlab.experiment import build
from uavlab.experiment.config import Device, RunConfig, configure
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import EAGER, Toggles, turned
from uavlab.storage.machine import describe

MISSIONS = (1, 8, 64)
WORKERS = 2  # and missions of the slow paths: they work them off one by one, so that more would only take longer
ORIGINAL_MS = 47.0
"""Milliseconds of a team step without the policy in the published program, on one core of another machine."""


def maps_suite(
    rounds: int,
    device: Device,
    missions: Sequence[int] = MISSIONS,
    workers: int = WORKERS,
    compiled: bool = True,
    cells: int = Mapping.cells,
) -> dict[str, Any]:
    """Time one team step of 4 UAVs on 493 x 493 maps: measurements, beliefs, all channels, reward; without the policy.

    Figures are per mission. The pool sends each mission's maps to one of its processes and back.

    Args:
        rounds: Interleaved repetitions.
        device: Where batches are computed.
        missions: How many are flown at once.
        workers: Processes of the pool.
        compiled: Also compile the step of the last number of missions.
        cells: Cells along each side of the map, of the published size.
    """
    side = Mapping.cell * Mapping.cells / cells
    env, over, host = (kind(cells=cells, cell=side) for kind in (Mapping, OverwrittenMapping, HostMapping))
    rt = build.runtime(RunConfig(device=device), turned(Toggles(), {"threads": 1}))
    fast = build.runtime(RunConfig(device=device), turned(Toggles(), {"update": "batched", "compile": "default"}))
    with rt.scope(), ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(workers, get_context("spawn"), initializer=one_thread))
        calls: dict[tuple[str, str, int], Callable[[], Any]] = {
            ("host", "one process", workers): stepping(host, workers, Runtime()),
            ("host", f"{workers} processes", workers): pooled(host, pool, workers),
        }
        for count in missions:
            calls["device", "eager", count] = stepping(over, count, rt)
        calls["device", "eager, fresh memory", missions[-1]] = stepping(env, missions[-1], rt)
        if compiled:
            calls["device", "compiled", missions[-1]] = stepping(over, missions[-1], fast)
        named = {str(key): call for key, call in calls.items()}
        seconds = interleaved(named, rounds, rt.device, warm_up=1)
    each = {key: [taken / key[2] for taken in seconds[str(key)]] for key in calls}
    plain = each["host", "one process", workers]
    rows = [
        {
            "path": path,
            "setting": setting,
            "missions": count,
            "threads": rt.toggles.threads,
            "team_step_ms": round(1e3 * median(taken), 3),
            "over_host": over["median"],
            "low": over["low"],
            "high": over["high"],
            "over_original": round(ORIGINAL_MS / 1e3 / median(taken), 2),
            "bytes_per_mission": build.world_bytes(env),
        }
        for (path, setting, count), taken in each.items()
        for over in (ratio(plain, taken),)
    ]
    return {"suite": "maps", "rounds": rounds, "machine": describe(rt.device), "rows": rows}


TRAINING = {"worlds": 6, "updates": 1}
"""Missions of a training step: 336 moves of UAVs, of which the published program took 300."""

ORIGINAL_STEP_S = 13.0
"""Seconds of the published program for 300 moves and 5 passes over them, on one core of another machine."""


def missions_suite(rounds: int, device: Device) -> dict[str, Any]:
    """Time whole training steps of the published network: fly missions, work out returns, go over them 5 times."""
    low = {**EAGER, "precision": "bf16"}
    settings = {"plain": {**asdict(Toggles())}, "eager": dict(EAGER), "eager, bf16": low}
    made = compare("mapping_published", settings, TRAINING, {"device": device}, call="cycle", rounds=rounds)
    config = configure("mapping_published", TRAINING)
    moves = build.steps_per_update(config) * config.env.spec.agents
    rows = [
        {
            "setting": row["setting"],
            "moves": moves,
            "passes": config.learner.passes,
            "s": round(row["ms"] / 1e3, 3),
            "s_per_300": round(0.3 * row["ms"] / moves, 3),
            "over_plain": row["over_first"],
            "over_original": round(ORIGINAL_STEP_S / (0.3 * row["ms"] / moves), 2),
            "moves_per_s": round(1e3 * moves / row["ms"]),
        }
        for row in made
    ]
    machine = describe(build.runtime(RunConfig(device=device)).device)
    return {"suite": "missions", "rounds": rounds, "machine": machine, "rows": rows}


def _start(env: Mapping, missions: int, device: torch.device) -> tuple[State, Callable[[int], torch.Tensor]]:
    dice = torch.Generator(device).manual_seed(0)

    def uniform(count: int) -> torch.Tensor:
        return torch.rand(missions, count, generator=dice, device=device)

    return env.initial(uniform(env.spec.initial_noise)), uniform


def stepping(env: Mapping, missions: int, rt: Runtime) -> Callable[[], Any]:
    """Fly on and on at random, noise included."""
    state, uniform = _start(env, missions, rt.device)
    step = rt.kernel(moved, "environment")

    def call() -> None:
        nonlocal state
        action = (uniform(env.uavs) * env.spec.choices).long()
        state, *_ = step(env, state, action, uniform(env.spec.step_noise))

    return call


def pooled(env: Mapping, pool: Executor, missions: int) -> Callable[[], Any]:
    """Fly on and on at random, each mission in some process of a pool."""
    state, uniform = _start(env, missions, torch.device("cpu"))

    def call() -> None:
        nonlocal state
        action = (uniform(env.uavs) * env.spec.choices).long()
        noise = uniform(env.spec.step_noise)
        parts = [tree_map(lambda leaf, i=i: leaf[i : i + 1].clone(), state) for i in range(missions)]
        made = list(pool.map(partial(_moved, env), parts, action.split(1), noise.split(1)))
        state = tree_map(lambda *leaf: torch.cat(leaf), *made)

    return call


def _moved(env: Mapping, state: State, action: torch.Tensor, noise: torch.Tensor) -> State:
    return moved(env, state, action, noise)[0]


def one_thread() -> None:
    """Let a process of a pool use one core."""
    torch.set_num_threads(1)
