"""Cost of steps and updates: worlds, the batched learner against the loop, the guard, and the ladder of settings."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

from torch._inductor import config as inductor

from uavlab.benchmarks import Option, Record, suite
from uavlab.collectors.off_policy import POOL_DEPTH, POOL_STEPS
from uavlab.core.errors import ResourceError
from uavlab.core.protocols import CheckedTensors
from uavlab.core.rng import Streams
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment import build
from uavlab.experiment.config import Config, Device, RunConfig, configure
from uavlab.profiling.roofline import ceilings, count_work
from uavlab.profiling.timing import median, ratio, time_in_turn
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import EAGER, Toggles, as_dict, with_toggles
from uavlab.storage.machine import usable_cores
from uavlab.training import make_cycle
from uavlab_lab.measure.compare import Call, Row, Settings, break_even_calls, compare_calls, prepare

ORIGINAL_MS = {2: 16.6, 4: 36.2, 8: 89.0}
"""Milliseconds per update of a fork of the published program by number of agents, once on another machine."""

SIZES = {"batch": 128, "hidden": 256, "share": False, "n_step": 1}
"""The published sizes: 128 rows, networks of width 256, one actor for each agent, targets of one step."""

CYCLES = 5  # cycles per timed round of the guard
STEPS = 64  # environment steps per timed round; a whole number of pool refills
PATIENCE = 3600  # seconds for one thread count of the ladder


@suite("update", about="batched learner over the loop")
def update_suite(rounds: int, device: Device, sizes: Mapping[str, Any] = SIZES) -> Record:
    """Time an update as the loop, which evaluates all actors again for each agent, without that waste, and batched.

    All three are eager and in float32; the rows are those of the ladder, with ``original_ms``.
    """
    rows = []
    for agents in (2, 4, 8):
        layer = {**sizes, "followers": agents - 1, "device": device}
        configs = {
            kind: configure("leader_follower", layer, {"update": kind}) for kind in ("loop", "cached", "batched")
        }
        compared = compare_rungs(agents, prepare(configs, "update"), rounds)
        rows += [{**row, "original_ms": ORIGINAL_MS[agents]} for row in compared]
    return {"rows": rows}


class Unguarded(Runtime):
    """A runtime that checks no numbers."""

    def check(self, numbers: CheckedTensors) -> None:
        """Accept all numbers."""


@suite("guard", about="what checking numbers costs")
def guard_suite(rounds: int, device: Device, preset: str = "leader_follower_quick") -> Record:
    """Time whole cycles of a run, with and without the guard against numbers that are not finite."""
    rows = []
    for agents in (2, 8):
        config = configure(preset, {"followers": agents - 1, "device": device})
        guarded = build.runtime(config.run, config.toggles)
        runtimes = {"guarded": guarded, "plain": Unguarded(guarded.device, config.toggles)}
        with guarded.scope():
            calls = {name: _cycles(config, rt) for name, rt in runtimes.items()}
            seconds = time_in_turn(calls, rounds, guarded.device)
        rows.append(
            {
                "agents": agents,
                "setting": preset,
                "threads": config.toggles.threads,
                **{f"{name}_ms": round(1e3 * median(each) / CYCLES, 3) for name, each in seconds.items()},
                **ratio(seconds["guarded"], seconds["plain"], "guarded_over_plain"),
            }
        )
    return {"rows": rows}


def _cycles(config: Config, rt: Runtime) -> Callable[[], Any]:
    rng = build.streams(config.run, rt.device)
    learner, source = config.task.build(config, rng, rt)
    cycle = make_cycle(source, learner, rng, rt)
    return lambda: [cycle() for _ in range(CYCLES)]


@suite("env", about="steps per second, and what compiling them gains")
def env_suite(rounds: int, device: Device) -> Record:
    """Time whole steps of many worlds: transition, reward, observation, autoreset and refills of its pool."""
    rows = []
    runtimes = {
        name: build.runtime(RunConfig(device=device), with_toggles(Toggles(), {"update": "batched", "compile": mode}))
        for name, mode in (("plain", "off"), ("compiled", "default"))
    }
    rt = runtimes["plain"]
    settings = {  # each does more than the one before
        "published constants": LeaderFollower(followers=4),
        "3 moving obstacles in sight": LeaderFollower(followers=4, obstacles=3, obstacle_speed=5.0, sight=2),
    }
    with rt.scope():
        for worlds in (64, 1024):
            forms = product(settings, runtimes)
            calls = {each: _steps(settings[each[0]], worlds, runtimes[each[1]]) for each in forms}
            seconds = time_in_turn(calls, rounds, rt.device)  # all in turn: their rates are compared
            for setting, env in settings.items():
                own = {name: seconds[setting, name] for name in runtimes}
                rate = {name: round(STEPS * worlds * env.spec.agents / median(each)) for name, each in own.items()}
                rows.append(
                    {
                        "env": "leader_follower",
                        "agents": env.spec.agents,
                        "worlds": worlds,
                        "setting": setting,
                        "threads": rt.toggles.threads,
                        "agent_steps_per_s": rate["plain"],
                        "compiled_agent_steps_per_s": rate["compiled"],
                        **ratio(own["plain"], own["compiled"], "compiled_over_plain"),
                    }
                )
    return {"rows": rows}


def _steps(env: LeaderFollower, count: int, rt: Runtime) -> Callable[[], Any]:
    rng, spec, step_worlds = Streams([0], rt.device), env.spec, rt.kernel(advance, "environment")
    worlds = start_worlds(env, rng.uniform("start", count, spec.initial_noise)[0])
    action = 2 * rng.uniform("action", count, spec.agents, spec.action)[0] - 1
    noise = rng.uniform("step", count, spec.step_noise)[0]

    def call() -> None:
        nonlocal worlds
        for step in range(STEPS):
            if step % POOL_STEPS == 0:
                pool = make_pool(env, rng.uniform("pool", POOL_DEPTH, count, spec.initial_noise)[0])
            worlds, _ = step_worlds(env, worlds, action, noise, pool)

    return call


RUNGS: Settings = {
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
ON_CUDA: Settings = {
    "batched, tf32": {**EAGER, "precision": "tf32"},
    "batched, graph": {**EAGER, "graph": "update"},
    "batched, graph, tf32": {**EAGER, "graph": "update", "precision": "tf32"},
    "batched, compiled, graph": {**EAGER, "compile": "default", "graph": "update"},
}


@suite(
    "ladder",
    about="every rung of the update",
    options=[Option("threads", "thread counts", (1, 256)), Option("full", "16 agents too")],
)
def ladder_suite(
    rounds: int,
    device: Device,
    threads: Iterable[int] = (),
    full: bool = False,
    say: Callable[[str], Any] = print,
    rungs: Settings = RUNGS,
    sizes: Mapping[str, Any] = SIZES,
    teams: Iterable[int] = (2, 4, 8),
    cache: bool = False,
) -> Record:
    """Time the ladder with ``teams`` of agents (16 too if ``full``), in a process of its own for each thread count.

    Compiled code on a CPU keeps the thread count that it was compiled for, hence the processes. By default the counts
    are 1 and all cores. With ``cache`` code that was compiled before is used, which makes first calls shorter.

    Returns:
        The rows of ``compare_rungs`` with ``share`` (of the matrix rate measured at the update's own shapes and
        precision), ``best`` (whether it is the fastest for these agents and threads) and ``paid_back`` (updates after
        which its longer first call pays off against the fastest row that is not compiled).
    """
    counts = list(threads) or sorted({1, usable_cores()} if device != "cuda" else {1})
    if len(counts) > 1:
        return {"rows": [row for count in counts for row in _rows_of_process(rounds, device, count, full)]}
    rows: list[Row] = []
    if build.runtime(RunConfig(device=device)).device.type == "cuda":
        rungs = {**rungs, **ON_CUDA}
    for agents in (*teams, 16) if full else teams:
        layer = {**as_dict(Toggles()), **sizes, "followers": agents - 1, "device": device, "threads": counts[0]}
        configs = {name: configure("leader_follower", layer, rung) for name, rung in rungs.items()}
        with inductor.patch(force_disable_caches=not cache):  # kept code would shorten the first call
            calls = prepare(configs, "update")
        first_s = sum(one.first_s for one in calls.values())
        say(f"{agents} agents, {counts[0]} threads: first calls took {first_s:.0f} s")
        for name in [name for name, one in calls.items() if one.rt.fell_back]:
            say(f"{name}: left out, {calls.pop(name).rt.fell_back}")
        rows += _ladder_rows(agents, calls, rounds)
    return {"sizes": dict(sizes), "rows": rows}


def _rows_of_process(rounds: int, device: Device, threads: int, full: bool) -> list[Row]:
    options = ["--rounds", str(rounds), "--device", device, "--threads", str(threads), *["--full"] * full, "--json"]
    command = [sys.executable, "-m", "uavlab", "bench", "ladder", *options]
    ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    if ended.returncode:
        raise ResourceError(f"bench ladder with {threads} threads ended with {ended.returncode}; see its output above.")
    return json.loads(ended.stdout.splitlines()[-1])["rows"]


def compare_rungs(agents: int, calls: Mapping[str, Call], rounds: int) -> list[Row]:
    """Time prepared updates in turn; ``over_loop`` is to the first, with its interval, ``over_cached`` to that rung."""
    return [
        {
            "agents": agents,
            "setting": row["setting"],
            "threads": calls[row["setting"]].rt.toggles.threads,
            "ms": row["ms"],
            "over_loop": row["over_first"],
            **{name: row[name] for name in ("low", "high", "over_cached", "over_below", "ops")},
            "first_call_s": round(row["first_call_s"], 2),
        }
        for row in compare_calls(calls, rounds, over=["cached"])
    ]


def _ladder_rows(agents: int, calls: Mapping[str, Call], rounds: int) -> list[Row]:
    work = count_work(calls["batched, fused Adam"].call)  # operators inside compiled code are not visible
    rows = compare_rungs(agents, calls, rounds)
    for row in rows:
        rt = calls[row["setting"]].rt
        with rt.scope():  # the matrix products alone, at the rate of their own shapes and precision
            floor = work.flops / ceilings(rt.device, rt.toggles.precision, work).rate
        row["share"] = round(1e3 * floor / row["ms"], 3)
        if rt.toggles.update == "batched":
            row["ops"] = work.operators
    best = max(rows, key=lambda row: row["over_loop"])
    eager = [row for row in rows if calls[row["setting"]].rt.toggles.compile == "off"]
    fastest = max(eager, key=lambda row: row["over_loop"])
    return [{**row, "best": row is best, "paid_back": break_even_calls(fastest, row)} for row in rows]
