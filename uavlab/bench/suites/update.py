"""What this machine does: ratios of interleaved runs in one process, with the machine's description in the record."""

from collections.abc import Callable
from functools import partial
from typing import Any

from uavlab.bench.timing import interleaved, median
from uavlab.collectors.off_policy import POOL_DEPTH, POOL_STEPS
from uavlab.core.rng import Streams
from uavlab.core.types import Batch
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment import build
from uavlab.experiment.config import Device, RunConfig, configure
from uavlab.experiment.run import Run
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import count_operators
from uavlab.storage.machine import describe

ORIGINAL_MS = {2: 16.6, 4: 36.2, 8: 89.0}
"""Milliseconds per update of the program that the method was published with, on the CPU described in the README."""

CYCLES = 5  # updates per timed round of a run
STEPS = 64  # environment steps per timed round; a whole number of pool refills


def update_suite(rounds: int, device: Device) -> dict[str, Any]:
    """Time one update of the batched learner against the loop: batch 128, hidden 256, eager, float32."""
    rt = build.runtime(RunConfig(device=device))
    rows = []
    with rt.scope():
        for agents in (2, 4, 8):
            timed = {kind: _update(kind, agents, rt) for kind in ("loop", "batched")}
            seconds = interleaved(timed, rounds, rt.device)
            ratio = median([a / b for a, b in zip(seconds["loop"], seconds["batched"], strict=True)])
            for kind, call in timed.items():
                rows.append(
                    {
                        "agents": agents,
                        "setting": kind,
                        "threads": rt.toggles.threads,
                        "ms": round(1e3 * median(seconds[kind]), 3),
                        "ops": count_operators(call),
                        "batched_over_loop": round(ratio, 3),
                        "original_ms": ORIGINAL_MS[agents],
                    }
                )
        return {"suite": "update", "rounds": rounds, "machine": describe(rt.device), "rows": rows}


def env_suite(rounds: int, device: Device) -> dict[str, Any]:
    """Time whole steps of many worlds: transition, reward, observation, replacement and the pool's refills."""
    rt = build.runtime(RunConfig(device=device))
    settings = {
        "published constants": LeaderFollower(followers=4),
        "3 moving obstacles in sight": LeaderFollower(followers=4, obstacles=3, obstacle_speed=5.0, sight=2),
    }
    rows = []
    with rt.scope():
        for worlds in (64, 1024):
            calls = {name: _stepping(env, worlds, rt) for name, env in settings.items()}
            seconds = interleaved(calls, rounds, rt.device)
            for name, env in settings.items():
                rate = STEPS * worlds * env.spec.agents / median(seconds[name])
                rows.append(
                    {
                        "env": "leader_follower",
                        "agents": env.spec.agents,
                        "worlds": worlds,
                        "setting": name,
                        "threads": rt.toggles.threads,
                        "agent_steps_per_s": round(rate),
                    }
                )
        return {"suite": "env", "rounds": rounds, "machine": describe(rt.device), "rows": rows}


def guard_suite(rounds: int, device: Device) -> dict[str, Any]:
    """Time whole updates of one run, with and without the guard against numbers that are not finite."""
    rows = []
    for agents in (2, 8):
        run = Run(configure("leader_follower_quick", {"followers": agents - 1, "device": device}))
        with run.rt.scope():
            calls: dict[str, Callable[[], Any]] = {
                n: partial(_cycles, run, n == "guarded") for n in ("guarded", "plain")
            }
            seconds = interleaved(calls, rounds, run.rt.device)
            ratio = median([a / b for a, b in zip(seconds["guarded"], seconds["plain"], strict=True)])
            times = {f"{name}_ms": round(1e3 * median(each) / CYCLES, 3) for name, each in seconds.items()}
            row = {"agents": agents, "setting": "leader_follower_quick", "threads": run.rt.toggles.threads, **times}
            rows.append({**row, "guarded_over_plain": round(ratio, 4)})
            machine = describe(run.rt.device)
    return {"suite": "guard", "rounds": rounds, "machine": machine, "rows": rows}


SUITES = {"update": update_suite, "env": env_suite, "guard": guard_suite}


def table(record: dict[str, Any]) -> str:
    """Lay out a record's rows as text."""
    names = list(record["rows"][0])

    def text(value: Any) -> str:
        return f"{value:,}" if isinstance(value, int) else str(value)

    cells = [names, *([text(row[name]) for name in names] for row in record["rows"])]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _update(kind: str, agents: int, rt: Runtime) -> Callable[[], Any]:
    given = {"followers": agents - 1, "share": False, "update": kind, "batch": 128, "hidden": 256}
    config = configure("leader_follower", given)
    rt = build.runtime(config.run, config.toggles)
    rng = Streams([0], rt.device)
    pupil = build.learner(config, rng, rt)
    batch: Batch = build.source(config, pupil, rng, rt).next()
    noise = pupil.update_noise(rng, config.source.batch)
    return lambda: pupil.update(batch, noise)


def _cycles(run: Run, guarded: bool) -> None:
    check = run.rt.check if guarded else lambda numbers: None
    run.source._check = check
    for _ in range(CYCLES):
        if guarded:
            check(run.learner.numbers())
        batch = run.source.next()
        update = run.learner.update(batch, run.learner.update_noise(run.rng, batch.index.shape[1]))
        if guarded:
            check(run.learner.numbers(update))


def _stepping(env: LeaderFollower, worlds: int, rt: Runtime) -> Callable[[], Any]:
    rng, spec = Streams([0], rt.device), env.spec
    held = start_worlds(env, rng.uniform("start", worlds, spec.initial_noise)[0])
    action = 2 * rng.uniform("action", worlds, spec.agents, spec.action)[0] - 1
    noise = rng.uniform("step", worlds, spec.step_noise)[0]

    def call() -> None:
        nonlocal held
        for step in range(STEPS):
            if step % POOL_STEPS == 0:
                pool = make_pool(env, rng.uniform("pool", POOL_DEPTH, worlds, spec.initial_noise)[0])
            held, _ = advance(env, held, action, noise, pool)

    return call
