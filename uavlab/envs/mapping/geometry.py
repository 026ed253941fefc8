"""Where UAVs that map can be, and which cells of the map below they see from there.

Places are (x, y, altitude), whole numbers; maps are rows (y) by columns (x).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.ops import belief_maps

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

    @property
    def widest(self) -> int:
        """Cells of the largest footprint."""
        return min(2 * self.half(self.altitudes - 1), self.cells - 1) ** 2

    def half(self, altitude: int) -> int:
        """Give half the side of a footprint at that altitude (cells).

        Raises:
            ConfigError: There is no such altitude.
        """
        if not 0 <= altitude < self.altitudes:
            raise ConfigError(
                f"altitude {altitude}: expected 0 to {self.altitudes - 1}, for which the sensor is known."
            )
        reach = (altitude + 1) * self.spacing * math.tan(math.radians(self.view_deg / 2))
        return int(reach / self.cell + 1e-6)

    @property
    def edges(self) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Give where footprints begin and end on an axis, by altitude and place.

        As published, the last row and column of the map are never seen.
        """
        centres = [int(place * self.spacing / self.cell + 0.5) for place in range(self.size)]
        halves = [self.half(altitude) for altitude in range(self.altitudes)]
        low = tuple(tuple(max(centre - half, 0) for centre in centres) for half in halves)
        return low, tuple(tuple(min(centre + half, self.cells - 1) for centre in centres) for half in halves)

    def footprint(self, place: Int[Tensor, "*lead 3"]) -> tuple[Int[Tensor, "*lead 2"], Int[Tensor, "*lead 2"]]:
        """Give the cells that are seen from a place: first and end of rows and of columns."""
        low, high = (constant(edge, place.device) for edge in self.edges)
        axes, altitude = place[..., :2].flip(-1), place[..., 2:]
        return low[altitude, axes], high[altitude, axes]

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


@lru_cache
def constant(values: tuple, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Keep a tensor of numbers on the device: a copy per call would wait for it."""
    return torch.tensor(values, device=device, dtype=dtype)


@lru_cache
def averages(
    lattice: Lattice, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, "L H"], Float[Tensor, "Z L L H"]]:
    """Give the matrices that average an axis down to the lattice's size: the whole axis, and each footprint."""
    low, high = map(torch.tensor, lattice.edges)
    whole = belief_maps.area_matrix(lattice.cells, lattice.size)
    part = belief_maps.area_matrix(lattice.cells, lattice.size, low, high)
    return whole.to(device, dtype), part.to(device, dtype)


@lru_cache
def covers(lattice: Lattice, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "Z L H"]:
    """Give the cells of an axis that each footprint covers, as 1 and 0."""
    low, high = map(torch.tensor, lattice.edges)
    cell = torch.arange(lattice.cells)
    return ((cell >= low[..., None]) & (cell < high[..., None])).to(device, dtype)


@lru_cache
def bands(
    lattice: Lattice, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, "L bands"], Float[Tensor, "Z L bands"]]:
    """Cut an axis wherever a footprint begins or ends: how bands average to the lattice, and whose bands are whose.

    Footprints are constant within bands, so masks of them need no more cells than there are bands.
    """
    low, high = map(torch.tensor, lattice.edges)
    cuts = torch.tensor(sorted({0, lattice.cells}.union(*lattice.edges[0], *lattice.edges[1])))
    start, end = cuts[:-1], cuts[1:]
    cell = torch.arange(lattice.cells)
    member = ((cell >= start[:, None]) & (cell < end[:, None])).float()
    average = belief_maps.area_matrix(lattice.cells, lattice.size) @ member.T
    covered = (start >= low[..., None]) & (end <= high[..., None])
    return average.to(device, dtype), covered.to(device, dtype)
