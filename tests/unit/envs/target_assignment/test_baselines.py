"""Rules against slow ones, in random worlds."""

import math

import pytest
import torch

from uavlab.envs.target_assignment.env import Assignment, State, greedy, nearest

ENV = Assignment(uavs=(2, 4), targets=(2, 3), obstacles=(0, 3), sectors=3)
WORLDS = 60


def ways(state: State, world: int) -> dict[tuple[int, int, int], float]:
    """Return the length of each legal move of a world."""
    legs = state.way[world]
    return {(u, t, s): float(legs[u, t, s]) for u, t, s in state.legal[world].nonzero().tolist()}


def shortest(state: State, world: int) -> tuple[int, int, int]:
    way = ways(state, world)
    return min(way, key=lambda move: way[move])


def in_turn(state: State, world: int) -> tuple[int, int, int]:
    """Return the shortest way of the UAV that has served the fewest, the first of several."""
    way = ways(state, world)
    uav = min({u for u, _, _ in way}, key=lambda u: (int(state.served[world, u].sum()), u))
    return min((move for move in way if move[0] == uav), key=lambda move: way[move])


@pytest.mark.parametrize(("rule", "slow", "other"), [(greedy, in_turn, shortest), (nearest, shortest, in_turn)])
def test_decisions_of_whole_episodes(rule, slow, other) -> None:  # type: ignore[no-untyped-def]
    noise = torch.rand(WORLDS, ENV.spec.initial_noise, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    state, unlike = ENV.initial(noise), 0
    for _ in range(ENV.spec.horizon):
        action = rule(ENV, state, noise[:, :1])
        for world in (~ENV.terminated(state)[:, 0]).nonzero().flatten().tolist():
            pair, sector = divmod(int(action[world]), ENV.sectors)
            move = (*divmod(pair, ENV.columns), sector)
            assert move == slow(state, world)
            unlike += move != other(state, world)
        state = ENV.transition(state, action, noise[:, :0])
    assert ENV.terminated(state).all()
    assert unlike > WORLDS / 2  # the other rule would have been noticed
    assert math.isfinite(float(ENV.measure(state, action, state)["normalized_score"].sum()))
