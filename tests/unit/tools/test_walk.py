"""A reader can follow a cycle: what its walk counts, and how long it may be."""

import torch

from tools import walk
from uavlab.ops.schedules import linear


def test_calls_of_the_package_are_counted() -> None:
    assert walk.walk(lambda: [linear(torch.tensor(step), 1, 2.0, 10) for step in range(3)]) == ["ops/schedules.py"] * 3
    assert walk.moves(["a", "a", "b", "a"]) == 2


def test_a_cycle_is_short() -> None:
    cycle, update = walk.walk_cycle().values()
    assert len(cycle) <= 600
    assert len(set(cycle)) <= 18
    assert walk.moves(cycle) <= 160
    assert len(set(update)) <= 4


def test_few_files_know_the_size_of_a_batch() -> None:
    named = walk.files_that_name("batch")
    assert "collectors/off_policy.py" in named
    assert len(named) <= 12
