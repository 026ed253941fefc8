"""Belief maps by hand, against OpenCV, and against plain loops."""

import cv2
import numpy as np
import pytest
import torch

from uavlab.ops import belief_maps

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
    torch.testing.assert_close(belief_maps.area_matrix(5, 2), torch.tensor(expected))
    part = belief_maps.area_matrix(5, 2, torch.tensor([1, 0]), torch.tensor([5, 1]))  # [1, 5) and [0, 1)
    torch.testing.assert_close(part[0], torch.tensor([[0, 0.5, 0.5, 0, 0], [0, 0, 0, 0.5, 0.5]]))
    torch.testing.assert_close(part[1], torch.tensor([[1.0, 0, 0, 0, 0], [1.0, 0, 0, 0, 0]]))


@pytest.mark.parametrize(("cells", "parts"), SIZES)
def test_area_resize_equals_opencv(cells: int, parts: int) -> None:
    image = np.random.default_rng(0).random((cells, cells))
    expected = torch.from_numpy(cv2.resize(image, (parts, parts), interpolation=cv2.INTER_AREA))
    matrix = belief_maps.area_matrix(cells, parts)
    got = belief_maps.area_resize(torch.from_numpy(image).float(), matrix, matrix)
    assert (got - expected).abs().max() <= 1e-6
    mutant = torch.nn.functional.interpolate(torch.from_numpy(image)[None, None], (parts, parts), mode="bilinear")
    assert (mutant[0, 0] - expected).abs().max() > 1e-2


def test_area_resize_takes_rows_and_columns_apart() -> None:
    image = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    got = belief_maps.area_resize(image, belief_maps.area_matrix(2, 1), torch.eye(2))
    assert got.tolist() == [[3.0, 5.0]]


def test_log_odds_steps_are_accurate_to_a_ten_thousandth() -> None:
    for flip in (0.01, 0.265, 0.375, 0.5, 0.9):
        error = belief_maps.belief(torch.tensor(-belief_maps.log_odds_steps(flip)), torch.float64)
        assert float(error) == pytest.approx(flip, abs=1e-4)
    assert belief_maps.log_odds_steps(0.5) == 0
    assert [belief_maps.log_odds_steps(flip) for flip in (1e-4, 1e-9)] == [belief_maps.LIMIT] * 2
    assert torch.iinfo(torch.int16).max >= 2 * belief_maps.LIMIT


def test_beliefs_by_hand() -> None:
    """Limits, nothing known, and one measurement at 0.99; signed beliefs are 2 p - 1."""
    logits = torch.tensor(
        [-belief_maps.LIMIT, 0, belief_maps.log_odds_steps(0.01), belief_maps.LIMIT], dtype=torch.int16
    )
    for dtype in (torch.float32, torch.float64):
        belief, signed = belief_maps.belief(logits, dtype), belief_maps.signed_belief(logits, dtype)
        assert belief.dtype == dtype
        assert belief.tolist() == pytest.approx([1e-4, 0.5, 0.99, 0.9999], abs=2e-6)
        torch.testing.assert_close(signed, 2 * belief - 1, atol=1e-6, rtol=0)


def test_the_table_holds_every_belief() -> None:
    logits = torch.arange(-belief_maps.LIMIT, belief_maps.LIMIT + 1)
    chance = belief_maps.belief(logits, torch.float64)
    table = belief_maps.weight_entropy_table(torch.device("cpu"), torch.float64)[logits]
    assert torch.equal(table.real, belief_maps.target_weight(chance))
    assert torch.equal(table.imag, belief_maps.entropy(chance))


def test_entropy_and_target_weight_by_hand() -> None:
    belief = torch.tensor([0.25, 0.4985, 0.4995, 0.5, 0.5005, 0.5015, 0.75])
    assert belief_maps.entropy(belief)[[0, 3]].tolist() == pytest.approx([0.811278, 1.0], abs=1e-6)
    assert belief_maps.target_weight(belief).tolist() == pytest.approx([0, 0, 0.4995, 0.5, 0.5005, 1, 1])
    assert belief_maps.weighted_entropy(belief)[[0, 3, 6]].tolist() == pytest.approx([0, 0.5, 0.811278], abs=1e-6)


def test_above_by_hand() -> None:
    assert belief_maps.above(torch.tensor([0.1, 0.5, 0.7]), 0.5).tolist() == [0, 0, 1]
    assert belief_maps.above(torch.tensor([0.1, 0.5]), torch.tensor([0.0, 0.6])).tolist() == [1, 0]


def test_centre_maps_equals_a_plain_loop() -> None:
    maps = torch.rand(3, 2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    place = torch.tensor([[0, 24], [12, 3], [7, 20]])
    result = belief_maps.centre_maps(maps, place)
    for world in range(3):
        for agent in range(2):
            row, column = divmod(int(place[world, agent]), 5)
            for y in range(5):
                for x in range(5):
                    r, c = row + y - 2, column + x - 2
                    inside = 0 <= r < 5 and 0 <= c < 5
                    expected = maps[world, agent, :, r, c] if inside else torch.zeros(4)
                    assert torch.equal(result[world, agent, :, y, x], expected)
    assert torch.equal(result[1, 0], maps[1, 0])  # the agent in the middle sees the map as it is
    assert not torch.equal(result[0, 0], maps[0, 0])
