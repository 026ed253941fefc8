"""Places and footprints of the published sizes, by hand."""

import torch

from uavlab.envs.mapping.env import Mapping
from uavlab.envs.mapping.geometry import bands, covers

PLACES = Mapping().places


def test_footprints() -> None:
    assert [2 * PLACES.half(z) for z in range(3)] == [56, 114, 170]
    low, high = PLACES.footprint(torch.tensor([[0, 10, 2], [2, 5, 0]]))
    assert low.tolist() == [[493 - 85, 0], [246 - 28, 98 - 28]]  # rows first: y = 50 m is within cell 493
    assert high.tolist() == [[492, 85], [246 + 28, 98 + 28]]
    assert PLACES.widest == 170**2


def test_legal_moves_stay_within_the_lattice() -> None:
    places = torch.tensor([[0, 0, 0], [10, 10, 2], [5, 5, 1]])
    up, west, south, north, east, down = range(6)
    expected = [{up, north, east}, {west, south, down}, set(range(6))]
    assert [set(row.nonzero().flatten().tolist()) for row in PLACES.legal(places)] == expected


def test_uavs_do_not_leave_the_lattice() -> None:
    places = torch.tensor([[0, 0, 0], [10, 10, 2], [5, 5, 1]])
    places_after = [PLACES.move(places, torch.full((3,), move)).tolist() for move in (1, 4, 5)]
    assert places_after[0] == [[0, 0, 0], [9, 10, 2], [4, 5, 1]]
    assert places_after[1] == [[1, 0, 0], [10, 10, 2], [6, 5, 1]]
    assert places_after[2] == [[0, 0, 0], [10, 10, 1], [5, 5, 0]]


def test_bands_average_masks_as_cells_do() -> None:
    average, covered = bands(PLACES, torch.device("cpu"), torch.float32)
    per_cell = covers(PLACES, torch.device("cpu"), torch.float32) @ _shares().T
    torch.testing.assert_close(covered @ average.T, per_cell, atol=1e-6, rtol=0)
    assert covered.shape[-1] < 80


def test_covers_are_the_footprints_of_an_axis() -> None:
    got = covers(PLACES, torch.device("cpu"), torch.float32)
    assert got[0, 2].nonzero().flatten().tolist() == list(range(98 - 28, 98 + 28))
    assert got[2, 10].nonzero().flatten().tolist() == list(range(493 - 85, 492))


def _shares() -> torch.Tensor:
    """Return the share of each cell in each eleventh of 493 cells, in plain loops."""
    shares = torch.zeros(11, 493)
    for part in range(11):
        begin, end = part * 493 / 11, (part + 1) * 493 / 11
        for cell in range(493):
            shares[part, cell] = max(0.0, min(end, cell + 1) - max(begin, cell)) / (end - begin)
    return shares
