"""Features of things in a vector, and slots."""

import torch

from uavlab.core.types import Entities, first_slots

PAIRS = Entities(rows=2, columns=3, features=4, moves=5)


def test_a_vector_holds_rows_then_columns_then_neighbours() -> None:
    assert PAIRS.width == 22
    row, column, near = PAIRS.split(torch.arange(44.0).view(2, 22))
    assert (row.shape, column.shape, near.shape) == ((2, 2, 4), (2, 3, 4), (2, 2))
    assert row[0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert column[1, 2].tolist() == [38, 39, 40, 41]
    assert near.tolist() == [[20, 21], [42, 43]]


def test_counts_are_uniform_within_the_limits() -> None:
    unit = torch.rand(60_000, generator=torch.Generator().manual_seed(0))
    mask = first_slots(unit, (2, 4), 6)
    counts = mask.sum(1).bincount(minlength=7)
    assert counts[[0, 1, 5, 6]].tolist() == [0, 0, 0, 0]
    assert (counts[2:5] - 20_000).abs().max() < 5 * 20_000**0.5
    assert torch.equal(mask, mask.cummin(1).values)  # the first ones
