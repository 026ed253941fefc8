"""Scenarios: how many neighbours things have. Whole scenarios are compared with plain Python in ``test_env.py``."""

import pytest
import torch

from uavlab.envs.target_assignment.env import Assignment
from uavlab.envs.target_assignment.scenarios import neighbours


@pytest.mark.parametrize(
    ("near", "jitter", "expected"),
    [(0, 0, [[4, 3], [5, 16]]), (2, 0, [[2, 2], [2, 2]]), (6, 0, [[6, 3], [6, 6]]), (2, 1, [[1, 3], [3, 1]])],
)
def test_numbers_of_neighbours(near: int, jitter: int, expected: list[list[int]]) -> None:
    count, unit = torch.tensor([[9, 3], [20, 100]]), torch.tensor([[0.1, 0.9], [0.9, 0.1]])
    assert neighbours(count, unit, Assignment(near=near, jitter=jitter)).tolist() == expected
