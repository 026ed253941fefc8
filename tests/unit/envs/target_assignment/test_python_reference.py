"""The reference against numbers by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.python_assignment import World
from uavlab.envs.target_assignment.env import Assignment

ENV = Assignment(uavs=(1, 1), targets=(2, 2), obstacles=(1, 1), sectors=4)


def world(**changes: Any) -> World:
    """Return a world of one UAV at (100, 100), with targets to the east and to the north, and an obstacle."""
    one = World(ENV, [0.5] * ENV.spec.initial_noise)
    values = {
        "at": [(100.0, 100.0)],
        "target_places": [(500.0, 100.0), (100.0, 400.0)],
        "obstacles": [((300.0, 100.0), 5.0)],
        "own": [[60.0, 20.0]],
        "demand": [[40.0, 30.0], [40.0, 50.0]],
        "rest": [[40.0, 30.0], [40.0, 50.0]],
        "left": [600.0],
        "speed": [20.0],
        "time": [0.0],
        **changes,
    }
    for name, value in values.items():
        setattr(one, name, value)
    return one


def test_a_way_leads_over_the_edge_of_the_approach() -> None:
    clear = world(obstacles=[])
    assert clear.leg(0, 0, 2) == pytest.approx(380 + 20)  # from the west: straight on
    assert clear.leg(0, 0, 0) == pytest.approx(420 + 20)  # from the east: past the target and back
    assert clear.leg(0, 1, 0) == pytest.approx(math.hypot(20, 300) + 20)


def test_an_obstacle_blocks_ways_across_it() -> None:
    assert world().leg(0, 0, 2) == math.inf
    assert world().leg(0, 0, 1) == pytest.approx(math.hypot(400, 20) + 20)  # passes it at 10 m
    assert world(obstacles=[((300.0, 100.0), 11.0)]).leg(0, 0, 1) == math.inf
    assert world(obstacles=[((40.0, 100.0), 50.0)]).leg(0, 0, 2) == pytest.approx(400)  # behind the UAV


def test_a_decision() -> None:
    one = world(obstacles=[])
    assert one.ideal(1) == 1
    reward = one.step(2)  # target 0 from the west gets 40 of 40 and 20 of 30
    assert (one.own, one.rest) == ([[20.0, 0.0]], [[0.0, 10.0], [40.0, 50.0]])
    assert (one.left, one.time, one.at) == ([200.0], [20.0], [(500.0, 100.0)])
    share, distance = (1 + 2 / 3) / 2 / 2, 400 / (2 * 1000)
    assert reward == pytest.approx(share - 0.5 * distance)
    assert one.ended()  # target 0 needs what the UAV lacks, target 1 is 500 m away


def test_crowds_and_ends() -> None:
    two = world(obstacles=[], served={(0, 1), (1, 1)}, rest=[[0.0, 0.0], [0.0, 0.0]])
    figures = two.figures()
    assert (figures["completion"], figures["congestion"], figures["normalized_score"]) == (1.0, 0.5, 0.5)
    assert two.ended()


def test_neighbours_by_hand() -> None:
    alone = world(p=SimpleNamespace(jitter=2, near=0))
    assert [alone.neighbours(count, unit) for count, unit in ((3, 0.99), (10, 0.0), (20, 0.5))] == [3, 2, 5]
