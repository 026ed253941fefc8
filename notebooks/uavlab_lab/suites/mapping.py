"""Cost of the published mapping task: a team step on the host, in a pool of processes and batched; a training step.

``maps`` leaves the policy out; ``missions`` times whole training steps: episodes, returns and every pass of learning.
"""

import cProfile
import pstats
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch

from uavlab.benchmarks import Record, suite
from uavlab.collectors.on_policy import step_and_observe
from uavlab.collectors.world_source import world_bytes
from uavlab.core.types import tree_map
from uavlab.envs.mapping.env import Mapping as MappingEnv
from uavlab.envs.mapping.env import OverwrittenMapping, State
from uavlab.envs.mapping.numpy_reference import HostMapping
from uavlab.experiment import build
from uavlab.experiment.config import Device, RunConfig, configure
from uavlab.profiling.timing import median, ratio, time_in_turn
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import EAGER, Toggles, as_dict
from uavlab_lab.measure.compare import compare

MISSIONS = (1, 8, 64)
WORKERS = 2  # processes of the pool, and missions on the host, where the time grows in proportion to their number
TRAINING = {"worlds": 6, "updates": 1}
"""Missions of a training step: 336 moves of UAVs, of which the published program took 300."""

ORIGINAL_MS, ORIGINAL_STEP_S = 47.0, 13.0
"""Of the published program, on another machine: a team step without the policy, and 300 moves with 5 passes."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "beliefs from log odds": ("belief",),
    "entropy and weights": ("entropy", "target_weight"),
    "resizing": ("resize",),
    "map of who is where": ("_local_positions",),
    "the sensor": ("_sense",),
    "adding measurements up": ("_fuse",),
    "constant channels": ("_constant",),
}
"""Functions of a step on the host, by purpose; none of them calls another, so their times add up."""


@suite("maps", about="belief maps on the host and batched")
def maps_suite(
    rounds: int,
    device: Device,
    missions: Sequence[int] = MISSIONS,
    workers: int = WORKERS,
    compiled: bool = True,
    cells: int = MappingEnv.cells,
) -> Record:
    """Time one team step of 4 UAVs on 493 x 493 maps: measurements, beliefs, all channels, reward; without the policy.

    Figures are per mission. A batch of each size in ``missions`` is timed on the device, the last one also
    ``compiled``. The pool sends the maps of each mission to one of ``workers`` processes and back; ``over_pool``
    compares with it as ``over_host`` with one process. A map covers the published area with ``cells`` along each side.
    """
    side = MappingEnv.cell * MappingEnv.cells / cells
    env, over, host = (kind(cells=cells, cell=side) for kind in (MappingEnv, OverwrittenMapping, HostMapping))
    rt = build.runtime(RunConfig(device=device))
    fast = build.runtime(RunConfig(device=device), Toggles(update="batched", compile="default"))
    with rt.scope(), ProcessPoolExecutor(workers, get_context("spawn"), initializer=one_thread) as pool:
        calls: dict[tuple[str, str, int], Callable[[], Any]] = {
            ("host", "one process", workers): team_step(host, workers, Runtime()),
            ("host", f"{workers} processes", workers): team_step(host, workers, Runtime(), pool),
        }
        for count in missions:
            calls["device", "eager", count] = team_step(over, count, rt)
        calls["device", "eager, fresh memory", missions[-1]] = team_step(env, missions[-1], rt)
        if compiled:
            calls["device", "compiled", missions[-1]] = team_step(over, missions[-1], fast)
        seconds = time_in_turn(calls, rounds, rt.device, warm_up=1)
    each = {key: [step / key[2] for step in steps] for key, steps in seconds.items()}
    plain, pooled = (each["host", how, workers] for how in ("one process", f"{workers} processes"))
    rows = [
        {
            "path": path,
            "setting": setting,
            "missions": count,
            "threads": rt.toggles.threads,
            "team_step_ms": round(1e3 * median(steps), 3),
            **ratio(plain, steps, "over_host"),
            "over_pool": ratio(pooled, steps)["median"],
            "over_original": round(ORIGINAL_MS / 1e3 / median(steps), 2),
            "bytes_per_mission": world_bytes(env),
            "fell_back": fast.fell_back if setting == "compiled" else {},
        }
        for (path, setting, count), steps in each.items()
    ]
    return {"rows": rows}


@suite("missions", about="training steps of the published mapping network")
def missions_suite(rounds: int, device: Device, training: Mapping[str, Any] = TRAINING) -> Record:
    """Time whole training steps of the published network: missions, returns, and 5 passes over them.

    A row whose ``fell_back`` is not empty was measured without these toggles: on a GPU, ``plain`` has no maps on the
    host, so that ``over_plain`` is smaller there.
    """
    settings = {"plain": as_dict(Toggles()), "eager": EAGER, "eager, bf16": {**EAGER, "precision": "bf16"}}
    comparison = compare("mapping_published", settings, training, {"device": device}, call="cycle", rounds=rounds)
    config = configure("mapping_published", training)
    moves = config.task.collector.data_per_update(config)[0] // config.run.runs
    rows = [
        {
            "setting": row["setting"],
            "moves": moves,
            "passes": config.learner.passes,
            "s": round(row["ms"] / 1e3, 3),
            "s_per_300": round(0.3 * row["ms"] / moves, 3),
            "over_plain": row["over_first"],
            "low": row["low"],
            "high": row["high"],
            "over_original": round(ORIGINAL_STEP_S / (0.3 * row["ms"] / moves), 2),
            "moves_per_s": round(1e3 * moves / row["ms"]),
            "fell_back": row["fell_back"],
        }
        for row in comparison
    ]
    return {"rows": rows}


def team_step(env: MappingEnv, missions: int, rt: Runtime, pool: Executor | None = None) -> Callable[[], Any]:
    """Build a call that makes one team step of random moves, noise included; with a pool, each mission in a process."""
    dice = torch.Generator(rt.device).manual_seed(0)

    def uniform(count: int) -> torch.Tensor:
        return torch.rand(missions, count, generator=dice, device=rt.device)

    state = env.initial(uniform(env.spec.initial_noise))
    step = partial(_step_in_pool, pool) if pool else rt.kernel(step_and_observe, "environment")

    def call() -> None:
        nonlocal state
        action = (uniform(env.uavs) * env.spec.choices).long()
        state, *_ = step(env, state, action, uniform(env.spec.step_noise))

    return call


def _step_in_pool(
    pool: Executor, env: MappingEnv, state: State, action: torch.Tensor, noise: torch.Tensor
) -> tuple[State]:
    parts = [tree_map(lambda leaf, i=i: leaf[i : i + 1].clone(), state) for i in range(len(action))]
    states = pool.map(partial(_next_state, env), parts, action.split(1), noise.split(1))
    return (tree_map(lambda *leaf: torch.cat(leaf), *states),)


def _next_state(env: MappingEnv, state: State, action: torch.Tensor, noise: torch.Tensor) -> State:
    return step_and_observe(env, state, action, noise)[0]


def one_thread() -> None:
    """Limit torch to one thread in a process of the pool."""
    torch.set_num_threads(1)


def profile_host(env: HostMapping, steps: int) -> dict[str, Any]:
    """Profile team steps of one mission on the host.

    Returns:
        ``step_ms`` (median without the profiler) and ``parts`` (rows ``name, share, mean_ms``, the last for all else).
    """
    call, profile = team_step(env, 1, Runtime()), cProfile.Profile()
    call()
    calls = {"plain": call, "profiled": lambda: profile.runcall(call)}
    seconds = time_in_turn(calls, steps, torch.device("cpu"), warm_up=0)
    report: Any = pstats.Stats(profile)
    rows = []
    for part, functions in PARTS.items():
        total = sum(entry[3] for key, entry in report.stats.items() if _own_name(*key) in functions)
        rows.append({"name": part, "share": total / report.total_tt, "mean_ms": 1e3 * total / steps})
    rest = 1 - sum(row["share"] for row in rows)
    rows.sort(key=lambda row: -row["share"])
    rows.append({"name": "all else", "share": rest, "mean_ms": 1e3 * rest * report.total_tt / steps})
    return {"step_ms": 1e3 * median(seconds["plain"]), "parts": rows}


def _own_name(file: str, line: int, name: str) -> str:
    """Return the name in a profile of a function of the task on the host or of compiled code; empty for others."""
    return name.strip("{}<>") if file == "~" or file.endswith("numpy_reference.py") else ""
