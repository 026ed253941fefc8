"""Where UAVs that map can be, and which cells of the map below they see from there.

Places are (x, y, altitude), whole numbers; maps are rows (y) by columns (x), padded on the right to whole cache lines.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.ops import grids

MOVES = ((0, 0, 1), (-1, 0, 0), (0, -1, 0), (0, 1, 0), (1, 0, 0), (0, 0, -1))
"""Up, west, south, north, east and down, as steps in (x, y, altitude)."""


@dataclass(frozen=True)
class Lattice:
    """Places over a map, and footprints on it.

    Attributes:
        cells: Cells along each side of the map (H).
        cell: Side of a cell (m).
        spacing: Distance between neighbours (m), in each direction; the lowest are that far above the ground.
        size: Places along each side (L).
        altitudes: Levels (Z).
        view_deg: Field of view, across and along.
    """

    cells: int
    cell: float
    spacing: float
    size: int
    altitudes: int
    view_deg: float

    @cached_property
    def width(self) -> int:
        """Columns of a map, padding included (W)."""
        return -(-self.cells // grids.CHUNK) * grids.CHUNK

    @cached_property
    def window(self) -> tuple[int, int]:
        """Rows and chunks of the window that holds any footprint."""
        rows = min(2 * self.half(self.altitudes - 1), self.cells)
        return rows, min(-(-(rows + grids.CHUNK - 1) // grids.CHUNK), self.width // grids.CHUNK)

    def half(self, altitude: int) -> int:
        """Give half the side of a footprint at that altitude (cells)."""
        reach = (altitude + 1) * self.spacing * math.tan(math.radians(self.view_deg / 2))
        return int(reach / self.cell + 1e-6)

    def footprint(self, place: Int[Tensor, "*lead 3"]) -> tuple[Int[Tensor, "*lead 2"], Int[Tensor, "*lead 2"]]:
        """Give the cells that are seen from a place: first and end of rows and of columns.

        As published, the last row and column of the map are never seen.
        """
        half = constant(tuple(self.half(z) for z in range(self.altitudes)), place.device)[place[..., 2]][..., None]
        centre = (place[..., :2].flip(-1) * (self.spacing / self.cell) + 0.5).long()
        return (centre - half).clamp_min(0), (centre + half).clamp_max(self.cells - 1)

    def legal(self, place: Int[Tensor, "*lead 3"]) -> Bool[Tensor, "*lead 6"]:
        """Tell which moves stay within the lattice."""
        there = place[..., None, :] + constant(MOVES, place.device)
        return ((there >= 0) & (there < self._shape(place.device))).all(-1)

    def moved(self, place: Int[Tensor, "*lead 3"], move: Int[Tensor, "*lead"]) -> Int[Tensor, "*lead 3"]:
        """Move; who would leave the lattice stays."""
        there = place + constant(MOVES, move.device)[move]
        return torch.minimum(there.clamp_min(0), self._shape(move.device) - 1)

    def _shape(self, device: torch.device) -> Tensor:
        return constant((self.size, self.size, self.altitudes), device)

    def edges(self) -> tuple[Int[Tensor, "Z L"], Int[Tensor, "Z L"]]:
        """Give where footprints begin and end on an axis, by altitude and place."""
        line = torch.arange(self.size)
        places = [torch.stack((line, line, torch.full_like(line, z)), -1) for z in range(self.altitudes)]
        low, high = self.footprint(torch.stack(places))
        return low[..., 0], high[..., 0]


@lru_cache
def constant(values: tuple, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Keep a tensor of numbers on the device: a copy per call would wait for it."""
    return torch.tensor(values, device=device, dtype=dtype)


@lru_cache
def averages(
    lattice: Lattice, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, "L W"], Float[Tensor, "Z L L W"]]:
    """Give the matrices that average an axis down to the lattice's size: the whole axis, and each footprint."""
    low, high = lattice.edges()
    pad = (0, lattice.width - lattice.cells)
    whole = torch.nn.functional.pad(grids.area_matrix(lattice.cells, lattice.size), pad)
    part = torch.nn.functional.pad(grids.area_matrix(lattice.cells, lattice.size, low, high), pad)
    return whole.to(device, dtype), part.to(device, dtype)


@lru_cache
def covers(lattice: Lattice, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "Z L W"]:
    """Give the cells of an axis that each footprint covers, as 1 and 0."""
    low, high = lattice.edges()
    cell = torch.arange(lattice.width)
    return ((cell >= low[..., None]) & (cell < high[..., None])).to(device, dtype)


@lru_cache
def bands(
    lattice: Lattice, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, "L bands"], Float[Tensor, "Z L bands"]]:
    """Cut an axis wherever a footprint begins or ends: how bands average to the lattice, and whose bands are whose.

    Footprints are constant within bands, so masks of them need no more cells than there are bands.
    """
    low, high = lattice.edges()
    cuts = torch.cat((low.flatten(), high.flatten(), torch.tensor([0, lattice.cells]))).unique()
    start, end = cuts[:-1], cuts[1:]
    cell = torch.arange(lattice.cells)
    member = ((cell >= start[:, None]) & (cell < end[:, None])).float()
    average = grids.area_matrix(lattice.cells, lattice.size) @ member.T
    covered = (start >= low[..., None]) & (end <= high[..., None])
    return average.to(device, dtype), covered.to(device, dtype)
