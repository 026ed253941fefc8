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


def test_updated_by_hand() -> None:
    """0.99 sure: odds 1, 99, 9801, and then more than the limit of 9999."""
    ratio = grids.odds_ratio(torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor(0.99, dtype=torch.float64))
    once = grids.updated(torch.ones(2).double(), ratio)
    assert grids.belief(once).tolist() == pytest.approx([0.99, 0.01])
    assert grids.belief(grids.updated(once, ratio)).tolist() == pytest.approx([9801 / 9802, 1 / 9802])
    assert grids.belief(grids.updated(grids.updated(once, ratio), ratio)).tolist() == pytest.approx([0.9999, 0.0001])
    assert grids.belief(grids.updated(once, torch.tensor(1.0))).tolist() == pytest.approx([0.99, 0.01])


def test_updated_adds_log_odds() -> None:
    belief, ratio = torch.rand(1000, dtype=torch.float64), torch.tensor([0.6, 1 / 99, 2.8, 99.0]).double().repeat(250)
    expected = torch.sigmoid(torch.logit(belief) + ratio.log()).clamp(1e-4, 1 - 1e-4)
    torch.testing.assert_close(grids.belief(grids.updated(belief / (1 - belief), ratio)), expected)


def test_what_was_sure_can_be_turned_in_float32() -> None:
    """Sure by three measurements, then three against it: kept as a belief, 5e-4 would be lost."""
    for first in (99.0, 1 / 99):
        odds = {kind: torch.ones(1, dtype=kind) for kind in (torch.float32, torch.float64)}
        for ratio in (first,) * 3 + (1 / first,) * 3:
            odds = {kind: grids.updated(each, torch.tensor(ratio, dtype=kind)) for kind, each in odds.items()}
        near, exact = (grids.belief(odds[kind]).double() for kind in (torch.float32, torch.float64))
        assert (near - exact).abs().max() < 1e-6


def test_entropy_and_interest_by_hand() -> None:
    belief = torch.tensor([0.25, 0.4985, 0.4995, 0.5, 0.5005, 0.5015, 0.75])
    assert grids.entropy(belief)[[0, 3]].tolist() == pytest.approx([0.811278, 1.0], abs=1e-6)
    assert grids.interest(belief).tolist() == pytest.approx([0, 0, 0.4995, 0.5, 0.5005, 1, 1])
    assert grids.weighted_entropy(belief)[[0, 3, 6]].tolist() == pytest.approx([0, 0.5, 0.811278], abs=1e-6)


def test_within_by_hand() -> None:
    low, high = torch.tensor([[1, 0]]), torch.tensor([[3, 2]])
    rows, columns = grids.within(low, high, torch.arange(4)[None], torch.arange(3)[None])
    assert (rows.tolist(), columns.tolist()) == ([[0, 1, 1, 0]], [[1, 1, 0]])


def test_above_by_hand() -> None:
    assert grids.above(torch.tensor([0.1, 0.5, 0.7]), 0.5).tolist() == [0, 0, 1]
    assert grids.above(torch.tensor([0.1, 0.5]), torch.tensor([0.0, 0.6])).tolist() == [1, 0]


def test_chunks_are_windows_of_the_right_map() -> None:
    maps = torch.arange(2 * 20 * 64).view(2, 20, 64)
    index = grids.chunk_index(torch.tensor([3, 10]), torch.tensor([1, 0]), 5, 2, 4)
    index += torch.tensor([0, 20 * 4])[:, None, None]
    got = grids.read_chunks(maps, index)
    assert torch.equal(got, torch.stack((maps[0, 3:8, 16:48], maps[1, 10:15, :32])))
    before = maps.clone()
    grids.write_chunks(maps, index, -got)
    before[0, 3:8, 16:48] *= -1
    before[1, 10:15, :32] *= -1
    assert torch.equal(maps, before)
