"""Belief maps by hand, beside OpenCV, and beside whole maps."""

import cv2
import numpy as np
import pytest
import torch

from uavlab.ops import grids

SIZES = [
    (493, 11),
    (493, 7),
    (493, 64),
    (170, 11),
    (114, 11),
    (56, 11),
    (85, 11),
    (57, 11),
    (28, 11),
    (100, 10),
    (12, 11),
]


def test_area_matrix_by_hand() -> None:
    """Five cells in two parts: each takes two and a half cells."""
    expected = [[0.4, 0.4, 0.2, 0.0, 0.0], [0.0, 0.0, 0.2, 0.4, 0.4]]
    torch.testing.assert_close(grids.area_matrix(5, 2), torch.tensor(expected))
    part = grids.area_matrix(5, 2, torch.tensor([1, 0]), torch.tensor([5, 1]))  # [1, 5) and [0, 1)
    torch.testing.assert_close(part[0], torch.tensor([[0, 0.5, 0.5, 0, 0], [0, 0, 0, 0.5, 0.5]]))
    torch.testing.assert_close(part[1], torch.tensor([[1.0, 0, 0, 0, 0], [1.0, 0, 0, 0, 0]]))


@pytest.mark.parametrize(("cells", "parts"), SIZES)
def test_area_resize_is_that_of_opencv(cells: int, parts: int) -> None:
    image = np.random.default_rng(0).random((cells, cells))
    expected = torch.from_numpy(cv2.resize(image, (parts, parts), interpolation=cv2.INTER_AREA))
    matrix = grids.area_matrix(cells, parts)
    got = grids.area_resize(torch.from_numpy(image).float(), matrix, matrix)
    assert (got - expected).abs().max() <= 1e-6
    mutant = torch.nn.functional.interpolate(torch.from_numpy(image)[None, None], (parts, parts), mode="bilinear")
    assert (mutant[0, 0] - expected).abs().max() > 1e-2


def test_area_resize_takes_rows_and_columns_apart() -> None:
    image = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    got = grids.area_resize(image, grids.area_matrix(2, 1), torch.eye(2))
    assert got.tolist() == [[3.0, 5.0]]


def test_steps_are_those_of_the_sensor_to_a_ten_thousandth() -> None:
    for flip in (0.01, 0.265, 0.375, 0.5, 0.9):
        told = grids.belief(torch.tensor(-grids.steps(flip)), torch.float64)
        assert float(told) == pytest.approx(flip, abs=1e-4)
    assert grids.steps(0.5) == 0
    assert [grids.steps(flip) for flip in (1e-4, 1e-9)] == [grids.LIMIT] * 2
    assert torch.iinfo(torch.int16).max >= 2 * grids.LIMIT


def test_beliefs_by_hand() -> None:
    """Limits, nothing known, and one measurement at 0.99; leanings are twice what is above 0.5."""
    logits = torch.tensor([-grids.LIMIT, 0, grids.steps(0.01), grids.LIMIT], dtype=torch.int16)
    for dtype in (torch.float32, torch.float64):
        belief, leaning = grids.belief(logits, dtype), grids.leaning(logits, dtype)
        assert belief.dtype == dtype
        assert belief.tolist() == pytest.approx([1e-4, 0.5, 0.99, 0.9999], abs=2e-6)
        torch.testing.assert_close(leaning, 2 * belief - 1, atol=1e-6, rtol=0)


def test_the_table_holds_every_belief() -> None:
    logits = torch.arange(-grids.LIMIT, grids.LIMIT + 1)
    chance = grids.belief(logits, torch.float64)
    found = grids.table(torch.device("cpu"), torch.float64)[logits]
    assert torch.equal(found.real, grids.interest(chance))
    assert torch.equal(found.imag, grids.entropy(chance))


def test_entropy_and_interest_by_hand() -> None:
    belief = torch.tensor([0.25, 0.4985, 0.4995, 0.5, 0.5005, 0.5015, 0.75])
    assert grids.entropy(belief)[[0, 3]].tolist() == pytest.approx([0.811278, 1.0], abs=1e-6)
    assert grids.interest(belief).tolist() == pytest.approx([0, 0, 0.4995, 0.5, 0.5005, 1, 1])
    assert grids.weighted_entropy(belief)[[0, 3, 6]].tolist() == pytest.approx([0, 0.5, 0.811278], abs=1e-6)


def test_above_by_hand() -> None:
    assert grids.above(torch.tensor([0.1, 0.5, 0.7]), 0.5).tolist() == [0, 0, 1]
    assert grids.above(torch.tensor([0.1, 0.5]), torch.tensor([0.0, 0.6])).tolist() == [1, 0]
