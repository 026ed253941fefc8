"""The ladder: one update under one setting after the other, each over the one below and over the plain loop."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import Any

from torch._inductor import config as inductor

from uavlab.bench.compare import Call, prepared, update_call
from uavlab.bench.timing import interleaved, median, paid_back, ratio
from uavlab.core.errors import ResourceError
from uavlab.experiment import build
from uavlab.experiment.config import Config, Device, RunConfig, configure
from uavlab.profiling.roofline import ceilings
from uavlab.runtime.stage_timer import Work, count_work
from uavlab.runtime.toggles import EAGER, Toggles
from uavlab.storage.machine import describe, usable_cores

PATIENCE = 3600  # seconds for one thread count
SIZES = {"batch": 128, "hidden": 256, "share": False}
"""The published sizes: 128 rows, networks of width 256, one actor for each agent."""

RUNGS: dict[str, dict[str, Any]] = {
    "loop": {},
    "cached": {"update": "cached"},
    "merged": {"update": "merged", "optimizers": "one"},
    "vmap": {"update": "vmap", "optimizers": "one"},
    "batched": {"update": "batched", "optimizers": "one"},
    "batched, fused Adam": EAGER,
    "batched, bf16": {**EAGER, "precision": "bf16"},
    "batched, compiled": {**EAGER, "compile": "default"},
    "batched, compiled, bf16": {**EAGER, "compile": "default", "precision": "bf16"},
}
ON_CUDA: dict[str, dict[str, Any]] = {
    "batched, tf32": {**EAGER, "precision": "tf32"},
    "batched, graph": {**EAGER, "graph": "update"},
    "batched, graph, tf32": {**EAGER, "graph": "update", "precision": "tf32"},
    "batched, compiled, graph": {**EAGER, "compile": "default", "graph": "update"},
}


def ladder_suite(
    rounds: int, device: Device, threads: Iterable[int] = (), full: bool = False, say: Callable[[str], Any] = print
) -> dict[str, Any]:
    """Time the ladder at 2, 4 and 8 agents (16 too if ``full``), in a process of its own for each thread count.

    Compiled code on a CPU keeps the thread count that it was compiled for, hence the processes. By default the counts
    are 1 and all cores.

    Returns:
        Rows with ``agents, setting, threads, ms, over_loop`` (the loop's time with as many threads over this one's),
        ``over_below, ops, first_call_s, best`` (on the fastest row for these agents and threads), ``share`` (of the
        matrix rate measured at the update's own shapes and precision) and ``paid_back`` (updates after which the first
        call's extra seconds over those of the fastest row that is not compiled are earned; 0 where there are none,
        None where nothing is earned).

    Raises:
        ResourceError: A process failed.
    """
    counts = list(threads) or sorted({1, usable_cores()} if device != "cuda" else {1})
    if len(counts) == 1:
        return _in_this_process(rounds, device, counts[0], full, say)
    records = [_in_a_process(rounds, device, count, full) for count in counts]
    same = {name: records[0][name] for name in ("suite", "rounds", "machine")}
    return {**same, "rows": [row for record in records for row in record["rows"]]}


def _in_a_process(rounds: int, device: Device, threads: int, full: bool) -> dict[str, Any]:
    options = ["--rounds", str(rounds), "--device", device, "--threads", str(threads), *["--full"] * full, "--json"]
    command = [sys.executable, "-m", "uavlab", "bench", "ladder", *options]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    if done.returncode:
        raise ResourceError(
            f"bench ladder with {threads} threads ended with {done.returncode}; see what it said above."
        )
    return json.loads(done.stdout.splitlines()[-1])


def _in_this_process(rounds: int, device: Device, threads: int, full: bool, say: Callable) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    target = build.runtime(RunConfig(device=device)).device
    rungs = {**RUNGS, **ON_CUDA} if target.type == "cuda" else RUNGS
    for agents in (2, 4, 8, 16) if full else (2, 4, 8):
        layer = {**asdict(Toggles()), **SIZES, "followers": agents - 1, "device": device, "threads": threads}
        configs = {name: configure("leader_follower", layer, rung) for name, rung in rungs.items()}
        with inductor.patch(force_disable_caches=True):  # what a first call takes is what it takes the first time
            made, first = prepared({name: partial(update_call, config) for name, config in configs.items()})
        say(f"{agents} agents, {threads} threads: first calls took {sum(first.values()):.0f} s")
        seconds = interleaved({name: one.call for name, one in made.items()}, rounds, target)
        rows += _rows(agents, threads, configs, made, first, seconds)
    return {"suite": "ladder", "rounds": rounds, "machine": describe(target), "rows": rows}


def _rows(
    agents: int,
    threads: int,
    configs: dict[str, Config],
    made: dict[str, Call],
    first: dict[str, float],
    seconds: dict[str, list[float]],
) -> list[dict[str, Any]]:
    names = [name for name, one in made.items() if not one.rt.fell_back]
    work = count_work(made["batched, fused Adam"].call)
    rows: list[dict[str, Any]] = []
    for name, below in zip(names, [names[0], *names], strict=False):
        precision = configs[name].toggles.precision
        own = work if configs[name].toggles.update == "batched" else count_work(made[name].call)
        rows.append(
            {
                "agents": agents,
                "setting": name,
                "threads": threads,
                "ms": round(1e3 * median(seconds[name]), 3),
                "over_loop": ratio(seconds["loop"], seconds[name])["median"],
                "over_below": ratio(seconds[below], seconds[name])["median"],
                "ops": own.operators,
                "first_call_s": round(first[name], 2),
                "share": round(_floor(made[name], work, precision) / median(seconds[name]), 3),
            }
        )
    best = max(rows, key=lambda row: row["over_loop"])
    eager = [row for row in rows if configs[row["setting"]].toggles.compile == "off"]
    at_once = max(eager, key=lambda row: row["over_loop"])
    return [{**row, "best": row is best, "paid_back": paid_back(at_once, row)} for row in rows]


def _floor(one: Call, work: Work, precision: str) -> float:
    """Give the seconds that the matrix products alone take, at the rate of their own shapes and precision."""
    with one.rt.scope():
        return work.flops / ceilings(one.rt.device, precision, work).rate
