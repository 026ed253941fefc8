"""Angles, distances and nearest points by hand."""

import math

import pytest
import torch

from uavlab.ops.geometry import distance, nearest_offsets, wrap_angle


def test_wrap_angle() -> None:
    got = wrap_angle(torch.tensor([0.0, 1.0, -1.0, 2 * math.pi, 7.0, -13.0], dtype=torch.float64))
    expected = [0.0, 1.0, 2 * math.pi - 1, 0.0, 7 - 2 * math.pi, 6 * math.pi - 13]
    assert got.tolist() == pytest.approx(expected, abs=1e-14)


def test_distance_of_pythagorean_triangles_broadcasts() -> None:
    a = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert distance(a, torch.tensor([3.0, 4.0])).tolist() == pytest.approx([5.0, math.sqrt(13)])
    assert distance(a[:, None], a[None]).shape == (2, 2)


def test_distance_neither_overflows_nor_underflows() -> None:
    far = distance(torch.tensor([3e30, 4e30]), torch.zeros(2))
    close = distance(torch.tensor([3e-30, 4e-30]), torch.zeros(2))
    assert far.item() == pytest.approx(5e30)  # the square would be 2.5e61, beyond float32
    assert close.item() == pytest.approx(5e-30)


def test_nearest_offsets_come_nearest_first() -> None:
    pos = torch.tensor([[[0.0, 0.0], [10.0, 0.0]]])
    points = torch.tensor([[[3.0, 4.0], [0.0, 1.0], [9.0, 0.0]]])  # 5, 1, 9 px from the first; 8.06, 10.05, 1 px
    got = nearest_offsets(pos, points, 2)
    assert got.tolist() == [[[[0, 1], [3, 4]], [[-1, 0], [-7, 4]]]]


def test_nearest_keeps_worlds_apart() -> None:
    pos = torch.zeros(2, 1, 2)
    points = torch.tensor([[[1.0, 0.0], [5.0, 0.0]], [[7.0, 0.0], [2.0, 0.0]]])
    assert nearest_offsets(pos, points, 1).flatten(1).tolist() == [[1, 0], [2, 0]]


def test_nearest_of_too_few_points() -> None:
    with pytest.raises(RuntimeError, match="out of range"):
        nearest_offsets(torch.zeros(1, 1, 2), torch.zeros(1, 2, 2), 3)
