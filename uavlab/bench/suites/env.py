"""How many agents step in a second."""

from collections.abc import Callable
from typing import Any

from uavlab.bench.registry import Record, suite
from uavlab.bench.timing import median, time_in_turn
from uavlab.collectors.off_policy import POOL_DEPTH, POOL_STEPS
from uavlab.core.rng import Streams
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment import build
from uavlab.experiment.config import Device, RunConfig
from uavlab.runtime.runtime import Runtime

STEPS = 64  # environment steps per timed round; a whole number of pool refills


@suite("env", about="steps per second")
def env_suite(rounds: int, device: Device) -> Record:
    """Time whole steps of many worlds: transition, reward, observation, autoreset and refills of its pool."""
    rt = build.runtime(RunConfig(device=device))
    settings = {
        "published constants": LeaderFollower(followers=4),
        "3 moving obstacles in sight": LeaderFollower(followers=4, obstacles=3, obstacle_speed=5.0, sight=2),
    }
    rows = []
    with rt.scope():
        for worlds in (64, 1024):
            calls = {name: _steps(env, worlds, rt) for name, env in settings.items()}
            seconds = time_in_turn(calls, rounds, rt.device)
            rows += [
                {
                    "env": "leader_follower",
                    "agents": env.spec.agents,
                    "worlds": worlds,
                    "setting": name,
                    "threads": rt.toggles.threads,
                    "agent_steps_per_s": round(STEPS * worlds * env.spec.agents / median(seconds[name])),
                }
                for name, env in settings.items()
            ]
    return {"rows": rows}


def _steps(env: LeaderFollower, count: int, rt: Runtime) -> Callable[[], Any]:
    rng, spec = Streams([0], rt.device), env.spec
    worlds = start_worlds(env, rng.uniform("start", count, spec.initial_noise)[0])
    action = 2 * rng.uniform("action", count, spec.agents, spec.action)[0] - 1
    noise = rng.uniform("step", count, spec.step_noise)[0]

    def call() -> None:
        nonlocal worlds
        for step in range(STEPS):
            if step % POOL_STEPS == 0:
                pool = make_pool(env, rng.uniform("pool", POOL_DEPTH, count, spec.initial_noise)[0])
            worlds, _ = advance(env, worlds, action, noise, pool)

    return call
