"""Descriptions survive JSON, and arrays in shared memory neither overlap nor exceed it."""

import mmap
from dataclasses import asdict, replace

import numpy as np

from uavlab.workers.spaces import Agent, Description, difference, memory_bytes, rows_in

MOVES = Description((Agent("a", "a", 3, 0, 2), Agent("b", "b", 5, 0, 4)), 25, False)
ACTS = Description((Agent("a", "a", 3, 2, 0),), None, True)


def test_a_description_survives_json() -> None:
    for each in (MOVES, ACTS):
        assert Description.from_json(asdict(each)) == each
    assert (MOVES.widest("obs"), MOVES.widest("choices"), ACTS.widest("action")) == (5, 4, 2)


def test_the_first_difference_is_one_value() -> None:
    first, second = MOVES.agents
    assert difference(MOVES, MOVES) == ""
    for other, text in (
        (replace(MOVES, agents=(first,)), "1 agents; expected 2"),
        (replace(MOVES, agents=(first, replace(second, obs=4))), "obs=4 of agent b; expected 5"),
        (replace(MOVES, agents=(replace(first, name="c"), second)), "name=c of agent c; expected a"),
        (replace(MOVES, horizon=None), "episodes of None steps; expected 25"),
        (replace(MOVES, single=True), "another kind of environment; expected the same"),
    ):
        assert difference(other, MOVES) == text


def test_rows_fill_the_memory_without_overlap() -> None:
    for each, shapes in ((MOVES, [(7, 2, 1), (7, 2, 5), (7, 2, 4)]), (ACTS, [(7, 1, 2), (7, 1, 3), (7, 1, 0)])):
        memory = mmap.mmap(-1, memory_bytes(each, 7))
        rows = rows_in(memory, each)
        assert [array.shape for array in rows[:3]] == shapes
        assert rows.reward.shape == rows.end.shape == shapes[0][:2]
        for number, array in enumerate(rows):
            array[...] = number
        assert [np.unique(array).tolist() for array in rows if array.size] == [
            [True] if array.dtype == bool else [number] for number, array in enumerate(rows) if array.size
        ]
