"""Schedules at their ends and between; each pass shows every row once, in pieces of nearly equal size."""

import pytest
import torch

from uavlab.core.types import tensors
from uavlab.ops.schedules import linear, minibatches


@pytest.mark.parametrize(
    ("count", "last", "expected"),
    [(0, 0.2, 1.0), (1, 0.2, 0.8), (3, 0.2, 0.4), (4, 0.2, 0.2), (9, 0.2, 0.2), (2, 0, 0.5)],
)
def test_a_line_and_its_end(count: int, last: float, expected: float) -> None:
    assert linear(torch.tensor(count), 1, last, 4).item() == pytest.approx(expected)


@tensors
class Pair:
    row: torch.Tensor  # R N
    double: torch.Tensor  # R N 1


def pairs(order: torch.Tensor, count: int) -> list[Pair]:
    row = torch.tensor([[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]])
    return list(minibatches(Pair(row=row, double=2 * row[..., None]), order, count))


def test_rows_come_in_the_order_of_their_run() -> None:
    order = torch.tensor([[[4, 3, 2, 1, 0], [0, 1, 2, 3, 4]], [[0, 2, 4, 1, 3], [1, 0, 3, 2, 4]]])
    parts = pairs(order, 2)
    assert [part.row.tolist() for part in parts] == [
        [[4, 3], [10, 12]],
        [[2, 1, 0], [14, 11, 13]],
        [[0, 1], [11, 10]],
        [[2, 3, 4], [13, 12, 14]],
    ]
    assert all(torch.equal(part.double[..., 0], 2 * part.row) for part in parts)


def test_there_are_no_more_minibatches_than_rows() -> None:
    order = torch.arange(5).expand(2, 1, 5)
    assert [part.row.shape for part in pairs(order, 9)] == [(2, 1)] * 5
