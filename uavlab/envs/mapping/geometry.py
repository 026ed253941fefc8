"""The lattice of places (x, y, altitude) in a mapping mission, footprints, measurements, and lattice maps (y by x)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.ops.belief_maps import area_matrix, area_resize
from uavlab.ops.geometry import constant

MOVES = ((0, 0, 1), (-1, 0, 0), (0, -1, 0), (0, 1, 0), (1, 0, 0), (0, 0, -1))
"""Up, west, south, north, east and down, as steps in (x, y, altitude)."""
DIGITS = 2.0**12  # a uniform float32 number has 24 random bits: 12 for each of two cells


@dataclass(frozen=True)
class Lattice:
    """Places over a map, and their footprints on it."""

    cells: int  # along each side of the map (H)
    cell: float  # m: side of a cell
    spacing: float  # m between neighbours, in each direction; the lowest altitude equals it
    size: int  # places along each side (L)
    altitudes: int  # number of altitudes (Z)
    view_deg: float  # degrees: field of view along both axes

    @property
    def widest(self) -> int:
        """Cells of the largest footprint."""
        return min(2 * self.half(self.altitudes - 1), self.cells - 1) ** 2

    def half(self, altitude: int) -> int:
        """Return half the side of a footprint at that altitude (cells)."""
        if not 0 <= altitude < self.altitudes:
            raise ConfigError(
                f"altitude {altitude}: expected 0 to {self.altitudes - 1}, for which the sensor is known."
            )
        reach = (altitude + 1) * self.spacing * math.tan(math.radians(self.view_deg / 2))
        return int(reach / self.cell + 1e-6)

    def centre(self, place: int) -> int:
        """Return the cell on an axis that contains a place, as published: up to a cell off the middle of footprints."""
        return int(place * self.spacing / self.cell + 1e-6)

    @property
    def edges(self) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """First cells and ends of footprints by altitude and place; as published, without the last row or column."""
        centres = [self.centre(place) for place in range(self.size)]
        halves = [self.half(altitude) for altitude in range(self.altitudes)]
        low = tuple(tuple(max(centre - half, 0) for centre in centres) for half in halves)
        return low, tuple(tuple(min(centre + half, self.cells - 1) for centre in centres) for half in halves)

    def footprint(self, place: Int[Tensor, "*lead 3"]) -> tuple[Int[Tensor, "*lead 2"], Int[Tensor, "*lead 2"]]:
        """Return the footprint of a place: first row and column, and end of rows and columns."""
        low, high = (constant(edge, place.device, torch.int64) for edge in self.edges)
        axes, altitude = place[..., :2].flip(-1), place[..., 2:]
        return low[altitude, axes], high[altitude, axes]

    def legal(self, place: Int[Tensor, "*lead 3"]) -> Bool[Tensor, "*lead 6"]:
        """Mark the moves that stay within the lattice."""
        target = place[..., None, :] + constant(MOVES, place.device, torch.int64)
        return ((target >= 0) & (target < self._shape(place.device))).all(-1)

    def move(self, place: Int[Tensor, "*lead 3"], move: Int[Tensor, "*lead"]) -> Int[Tensor, "*lead 3"]:
        """Return the places after a move; UAVs do not leave the lattice."""
        target = place + constant(MOVES, move.device, torch.int64)[move]
        return torch.minimum(target.clamp_min(0), self._shape(move.device) - 1)

    def _shape(self, device: torch.device) -> Tensor:
        return constant((self.size, self.size, self.altitudes), device, torch.int64)


class Measurement(NamedTuple):
    """Measurements of one step, and the sensor; in compiled loops the fields are arrays."""

    truth: Int[Tensor, "B H H"]  # 1 where targets are, else 0
    place: Int[Tensor, "B A 3"]  # of the UAVs
    box: Int[Tensor, "B A 4"]  # footprints of the UAVs: first row and column, end of rows and columns
    heard: Bool[Tensor, "B M A"]  # which UAVs' measurements each map receives; the team's map is the last
    noise: Float[Tensor, "B A N"]  # uniform, a number for two cells; cells of a footprint are numbered row by row
    flip: Sequence[float]  # probability that a cell is measured wrongly, by altitude
    whole: Float[Tensor, "L H"]  # averages an axis down to the lattice
    part: Float[Tensor, "Z L L H"]  # average the footprint of each place


@lru_cache
def averages(
    lattice: Lattice, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, "L H"], Float[Tensor, "Z L L H"]]:
    """Return the matrices that average an axis down to the lattice's size: the whole axis, and each footprint."""
    low, high = map(torch.tensor, lattice.edges)
    whole, parts = area_matrix(lattice.cells, lattice.size, dtype=dtype), (lattice.size, low, high, dtype)
    return whole.to(device), area_matrix(lattice.cells, *parts).to(device)


@lru_cache
def covers(lattice: Lattice, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "Z L H"]:
    """Return 1 for the cells of an axis that each footprint covers, else 0."""
    low, high = map(torch.tensor, lattice.edges)
    cell = torch.arange(lattice.cells)
    return ((cell >= low[..., None]) & (cell < high[..., None])).to(device, dtype)


@lru_cache
def bands(
    lattice: Lattice, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, "L bands"], Float[Tensor, "Z L bands"]]:
    """Cut an axis into bands wherever a footprint begins or ends, and return two matrices over the bands.

    The first averages bands down to the lattice, the second is 1 for the bands that each footprint covers, else 0.
    Masks of footprints are constant within bands, so one number per band suffices.
    """
    low, high = map(torch.tensor, lattice.edges)
    cuts = torch.tensor(sorted({0, lattice.cells}.union(*lattice.edges[0], *lattice.edges[1])))
    start, end = cuts[:-1], cuts[1:]
    cell = torch.arange(lattice.cells)
    member = ((cell >= start[:, None]) & (cell < end[:, None])).to(dtype)
    average = area_matrix(lattice.cells, lattice.size, dtype=dtype) @ member.T
    covered = (start >= low[..., None]) & (end <= high[..., None])
    return average.to(device), covered.to(device, dtype)


def local_positions(
    lattice: Lattice, place: Int[Tensor, "B A 3"], link: Bool[Tensor, "B A A"]
) -> Float[Tensor, "B A L L"]:
    """Draw the lattice around each UAV: 0 outside, (z + 1)/(Z + 1) at itself and UAVs that it heard, else 1."""
    offset = torch.arange(lattice.size, device=place.device) - lattice.size // 2
    x, y = place[..., 0, None] + offset, place[..., 1, None] + offset  # B A L
    rows, columns = (y >= 0) & (y < lattice.size), (x >= 0) & (x < lattice.size)
    inside = (rows[..., :, None] & columns[..., None, :]).float()
    at = (y[:, :, None] == place[:, None, :, 1, None])[..., :, None]
    at = at & (x[:, :, None] == place[:, None, :, 0, None])[..., None, :] & link[..., None, None]
    height = (place[..., 2] + 1) / (lattice.altitudes + 1)
    return torch.where(at.any(2), (at * height[:, None, :, None, None]).amax(2), inside)


def global_positions(lattice: Lattice, place: Int[Tensor, "B A 3"]) -> Float[Tensor, "B L L"]:
    """Draw the altitudes of all UAVs on the lattice, as (z + 1)/Z; 0 elsewhere."""
    grid = torch.arange(lattice.size, device=place.device)
    at = (place[..., 1, None] == grid)[..., :, None] & (place[..., 0, None] == grid)[..., None, :]
    return (at * ((place[..., 2] + 1) / lattice.altitudes)[..., None, None]).amax(1)


def last_footprints(
    lattice: Lattice, place: Int[Tensor, "B A 3"], link: Bool[Tensor, "B A A"], dtype: torch.dtype
) -> tuple[Float[Tensor, "B A L L"], Float[Tensor, "B L L"]]:
    """Draw last footprints: for each UAV 1 in its own, 0 in those that it heard of, else 0.5; for the team 1 or 0."""
    average, covered = bands(lattice, place.device, dtype)
    x, y, z = place.unbind(-1)
    rows, columns = covered[z, y], covered[z, x]  # B A bands
    own = rows[..., :, None] * columns[..., None, :]
    others = link & ~torch.eye(link.shape[1], dtype=torch.bool, device=link.device)
    heard = torch.einsum("bij,bjp,bjq->bipq", others.to(own.dtype), rows, columns)
    mask = torch.maximum(own, 0.5 - heard.clamp_max(0.5))  # products and maxima are cheaper than torch.where
    return area_resize(mask, average, average), area_resize(own.amax(1), average, average)
