"""Starts, limits and units against numbers by hand."""

import pytest
import torch

from uavlab.envs.leader_follower.env import limits, start_agents, start_obstacles, units, whole_numbers


def test_both_ends_are_included() -> None:
    unit = torch.tensor([[0.0], [0.26], [0.74], [0.99]])
    assert whole_numbers(unit, (5, 3)).flatten().tolist() == [5, 6, 7, 8]  # four numbers, each a quarter


def test_starts_of_leader_and_followers() -> None:
    unit = torch.tensor([0.0, 0.5, 1 - 2**-24]).expand(1, 3, 3)
    assert start_agents(unit).tolist() == [[[300, 525, 20], [400, 525, 30], [400, 525, 30]]]


def test_the_first_obstacle_stands_where_the_published_one_does() -> None:
    place, velocity = start_obstacles(torch.tensor([[[0.5, 0.0, 0.0], [0.0, 0.5, 0.25]]], dtype=torch.float64), 3.0)
    assert place.tolist() == [[[350, 400], [200, 350]]]
    torch.testing.assert_close(velocity, torch.tensor([[[3, 0], [0, 3]]], dtype=torch.float64))


def test_limits_are_those_of_a_step() -> None:
    gain, low, high = limits(3, 0.5, torch.device("cpu"), torch.float64)
    assert gain.tolist() == [pytest.approx([0.15, 0.3]), *[pytest.approx([0.3, 0.6])] * 2]
    assert (low.tolist(), high.tolist()) == ([10, 10, 10], [20, 40, 40])


def test_the_last_unit_of_a_follower_is_a_speed() -> None:
    own = units(2, torch.zeros((), dtype=torch.float64))
    assert own[:, -1].tolist() == [1, 30, 30]
    assert (own[0, :3] == own[2, :3]).all()
