"""Schedules at their ends and between."""

import pytest
import torch

from uavlab.ops.schedules import linear


@pytest.mark.parametrize(
    ("count", "last", "expected"),
    [(0, 0.2, 1.0), (1, 0.2, 0.8), (3, 0.2, 0.4), (4, 0.2, 0.2), (9, 0.2, 0.2), (2, 0, 0.5)],
)
def test_a_line_and_its_end(count: int, last: float, expected: float) -> None:
    assert linear(torch.tensor(count), last, 4).item() == pytest.approx(expected)
