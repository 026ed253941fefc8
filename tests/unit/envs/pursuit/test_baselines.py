"""The plan: ways against breadth-first search, moves by hand, and who catches whom."""

import math

import pytest
import torch
from torch import Tensor

from tests.support.reference_pursuit import Twin
from tests.unit.envs.pursuit.test_env import EAST, NORTH, SOUTH, STAY, WEST, starts, world
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.rng import Streams
from uavlab.envs.pursuit import Pursuit, State, after_moves, chase, ways
from uavlab.evaluation import Planner, episodes, summary
from uavlab.ops.action_sampling import random_moves

HALF = 0.5  # noise


def wrong_ways(env: Pursuit, way: Tensor) -> int:
    """Return how many lengths of ways differ from those of breadth-first search; far ones count as two sides + 1."""
    noise = torch.rand(len(way), env.spec.initial_noise, generator=torch.Generator().manual_seed(1), dtype=way.dtype)
    wrong = 0
    for lengths, numbers in zip(way, noise.tolist(), strict=True):
        twin, size, most = Twin(env, numbers), env.side + 2, 2 * env.side + 1
        for i, place in enumerate(twin.places):
            known = twin.ways(place)
            cells = [(number % size - 1, number // size - 1) for number in range(size**2)]
            wrong += sum(got != known.get(cell, most) for cell, got in zip(cells, lengths[i].tolist(), strict=True))
    return wrong


@pytest.mark.parametrize("env", [Pursuit(), Pursuit(side=4, obstacles=10), Pursuit(side=6, obstacles=0, pursuers=1)])
def test_ways_are_the_shortest(env: Pursuit) -> None:
    way = ways(env, starts(env, 20))
    assert wrong_ways(env, way) == 0
    assert wrong_ways(env, way.roll(1, 1)) > 0  # of another UAV


def test_lengths_after_moves_are_those_of_the_cells() -> None:
    way = torch.arange(2 * 3 * 16.0).view(2, 3, 16)
    cells = torch.tensor([[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]]).repeat(2, 1, 1)
    length = after_moves(way, cells)
    assert length.shape == (2, 3, 2, 5)
    assert length[1, 2, 1].tolist() == [85, 86, 87, 88, 89]  # 80 for the last UAV of the second world


PAIR = Pursuit(pursuers=1, evaders=1, side=4, obstacles=0)


def plan(env: Pursuit, state: State, noise: float = HALF) -> list[int]:
    return chase(env, state, torch.full((1, env.spec.agents), noise, dtype=torch.float64))[0].tolist()


def test_both_groups_move_along_a_line() -> None:
    assert plan(PAIR, world(4, [(0, 0), (2, 0)], 1), noise=0.9) == [EAST, EAST]
    assert plan(PAIR, world(4, [(3, 3), (3, 1)], 1), noise=0.9)[0] == SOUTH


def test_noise_chooses_among_equal_moves() -> None:
    state = world(4, [(0, 0), (3, 3)], 1)
    assert [plan(PAIR, state, noise)[0] for noise in (0.1, 0.9)] == [NORTH, EAST]
    assert plan(PAIR, state)[1] == STAY  # every other move leads nearer


def test_pursuers_go_around_obstacles() -> None:
    env = Pursuit(pursuers=1, evaders=1, side=3, obstacles=2)
    state = world(3, [(0, 0), (2, 0)], 1, obstacles=((1, 0), (2, 1)))
    assert plan(env, world(3, [(0, 0), (2, 1)], 1, obstacles=((1, 0), (2, 2))))[0] == NORTH
    assert all(env.legal(state)[0, i, move] for i, move in enumerate(plan(env, state)))  # no way leads there


def test_pursuers_head_for_the_nearest_free_evader() -> None:
    env = Pursuit(pursuers=1, evaders=2, side=5, obstacles=0)
    places = [(2, 0), (0, 0), (4, 1)]
    assert plan(env, world(5, places, 2))[0] == WEST
    assert plan(env, world(5, places, 2, caught=[True, False]))[0] in (NORTH, EAST)


def test_evaders_flee_from_the_nearest_pursuer() -> None:
    env = Pursuit(pursuers=2, evaders=1, side=5, obstacles=0)
    assert plan(env, world(5, [(1, 2), (4, 4), (2, 2)], 1))[2] in (EAST, SOUTH)  # not north, to the second pursuer


def test_moves_are_legal_also_past_the_end() -> None:
    env = Pursuit(side=5, obstacles=6)
    state = starts(env)
    generator = torch.Generator().manual_seed(7)
    for _ in range(60):
        move = chase(env, state, torch.rand(50, 6, generator=generator, dtype=torch.float64))
        assert env.legal(state).gather(2, move[..., None]).all()
        state = env.transition(state, move, torch.zeros(50, 0))
    assert state.caught.all(1).any()


def mixed(pursue: str, flee: str, count: int = 100) -> float:
    """Return the share of evaders that are caught if both groups follow these policies."""

    def play(env: Pursuit, state: State, noise: Tensor) -> Tensor:
        each = {"chase": chase(env, state, noise), "random": random_moves(env.observe(state), noise)}
        return torch.cat((env.groups(each[pursue])[0], env.groups(each[flee])[1]), 1)

    env = Pursuit()
    return summary(episodes(env, Planner(play), Streams([0]), count), env.metrics)["caught"]["mean"]


def test_the_plan_catches_most_and_random_pursuers_few() -> None:
    assert ENVIRONMENTS["pursuit"].baselines == {"chase": chase}
    assert mixed("chase", "random") > 0.97
    assert mixed("chase", "chase") > 0.7
    assert mixed("random", "chase") < 0.1
    assert math.isclose(mixed("random", "random"), 0.6, abs_tol=0.15)
