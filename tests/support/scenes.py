"""Flights of each environment, in a batch of two worlds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.support.fixtures_mapping import TINY_MISSION, random_step, start_missions
from uavlab.core.registry import ENVIRONMENTS
from uavlab.envs.leader_follower.env import PUBLISHED
from uavlab.envs.pursuit import Pursuit, chase
from uavlab.envs.spread import Spread, assignment
from uavlab.envs.target_assignment.env import Assignment, greedy

FOUR = replace(PUBLISHED, lagged=False, obstacles=2)
Plan = Callable[[Any, Any, Tensor], Tensor]


def fly(env: Any, plan: Plan, steps: int, worlds: int = 2) -> list[Any]:
    """Return the states of a flight by a plan."""
    states = [env.initial(torch.rand(worlds, env.spec.initial_noise, generator=torch.Generator().manual_seed(0)))]
    for _ in range(steps):
        action = plan(env, states[-1], torch.full((worlds, env.spec.agents), 0.5))
        states.append(env.transition(states[-1], action, torch.zeros(worlds, env.spec.step_noise)))
    return states


def straight(env: Any, state: Any, noise: Tensor) -> Tensor:
    return torch.zeros(len(noise), env.spec.agents, 2)


def missions(env: Any) -> list[Any]:
    """Return the states of random missions after each measurement."""
    state, dice = start_missions(env, 2)
    states = [state]
    for _ in range(env.measurements - 1):
        states.append(random_step(env, states[-1], dice)[1])
    return states


FLIGHTS: dict[str, tuple[Any, Callable[[], list[Any]]]] = {
    "leader_follower": (FOUR, lambda: fly(FOUR, straight, 1000)),
    "spread": (env := Spread(uavs=8, dt=0.1), lambda env=env: fly(env, assignment, 120)),
    "pursuit": (env := Pursuit(horizon=100, dt=0.5), lambda env=env: fly(env, chase, 100)),
    "assignment": (env := Assignment(uavs=(6, 6), targets=(4, 4)), lambda env=env: fly(env, greedy, 5)),
    "mapping": (TINY_MISSION, lambda: missions(TINY_MISSION)),
}
LEGENDS = {
    "leader_follower": ["goal", "obstacle", "formation radius", "leader", "followers"],
    "spread": ["landmark", "covered", "UAV", "collision"],
    "pursuit": ["obstacle", "pursuer", "evader", "caught"],
    "assignment": ["obstacle", "start", "target", "satisfied", "flown", "UAV"],
    "mapping": ["belief", "UAV 1", "UAV 2", "UAV 3", "edge of the targets"],
}
OWN = {name: type(env) for name, (env, _) in FLIGHTS.items()}
assert {*OWN} <= {*ENVIRONMENTS}
