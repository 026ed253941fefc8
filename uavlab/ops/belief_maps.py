"""Belief maps: probabilities of targets, their entropy, averages over areas, and views centred on an agent.

A belief is the probability that a cell is a target, 0.5 where nothing is known. Maps store it as log odds, in integer
multiples of ``STEP``, so that sums of measurements are exact in any order and a cell takes two bytes. Maps are H rows
(y) by W columns (x).
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Complex, Float, Int, Real
from torch import Tensor

MIN_BELIEF = 1e-4  # beliefs stay in [MIN_BELIEF, 1 - MIN_BELIEF], so that later measurements can still change them
UNKNOWN_MARGIN = 1e-3  # a belief this close to 0.5 counts as unknown

LIMIT = 2**14 - 1  # largest number of steps; int16 holds the sum of two
STEP = math.log((1 - MIN_BELIEF) / MIN_BELIEF) / LIMIT  # so fine that an error probability of 0.375 becomes 0.37502


def area_matrix(
    cells: int,
    parts: int,
    low: Real[Tensor, "*lead"] | float = 0.0,
    high: Real[Tensor, "*lead"] | float | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*lead parts cells"]:
    """Return the matrix that averages cells over equal parts of [low, high), where cell i is [i, i + 1).

    ``rows @ image @ columns.mT`` is the exact average over each rectangle, for any ratio of sizes: OpenCV's INTER_AREA
    where it shrinks. (OpenCV interpolates instead where it enlarges.) ``low`` and ``high`` are in cells, by default the
    ends of the axis.
    """
    low = torch.as_tensor(low, dtype=torch.float64)
    end = torch.full_like(low, cells) if high is None else torch.as_tensor(high, dtype=torch.float64, device=low.device)
    length = ((end - low) / parts)[..., None, None]
    start = low[..., None, None] + length * torch.arange(parts, dtype=torch.float64, device=low.device)[:, None]
    cell = torch.arange(cells, dtype=torch.float64, device=low.device)
    overlap = torch.minimum(start + length, cell + 1) - torch.maximum(start, cell)
    return (overlap.clamp_min(0) / length).to(dtype)


def area_resize(
    image: Float[Tensor, "*lead H W"], rows: Float[Tensor, "*#lead h H"], columns: Float[Tensor, "*#lead w W"]
) -> Float[Tensor, "*lead h w"]:
    return rows @ image @ columns.mT


def above(value: Float[Tensor, "*lead"], edge: Float[Tensor, "*#lead"] | float) -> Float[Tensor, "*lead"]:
    """Return 1.0 where values exceed an edge, else 0.0; on a CPU products are far cheaper than ``torch.where``."""
    return torch.gt(value, edge, out=torch.empty_like(value))


def log_odds_steps(flip: float) -> int:
    """Return the whole steps by which a measurement with error probability ``flip`` changes log odds."""
    return max(-LIMIT, min(LIMIT, round(math.log((1 - flip) / flip) / STEP)))


def signed_belief(logits: Real[Tensor, "*lead"], dtype: torch.dtype) -> Float[Tensor, "*lead"]:
    """Turn steps of log odds L into 2 p - 1 = tanh(L / 2); averages are exactly 0 where nothing is known."""
    return logits.to(dtype, copy=True).mul_(STEP / 2).tanh_()


def belief(logits: Real[Tensor, "*lead"], dtype: torch.dtype) -> Float[Tensor, "*lead"]:
    return signed_belief(logits, dtype).add_(1).mul_(0.5)


def entropy(chance: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    """Return the entropy -p log2 p - (1 - p) log2 (1 - p) of each cell (bits)."""
    other = 1 - chance
    return -(chance * chance.log2() + other * other.log2())


def target_weight(chance: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    """Return each cell's weight: 1 for likely targets, 0 for likely free cells, the belief itself where unknown."""
    target, maybe = above(chance, 0.5 + UNKNOWN_MARGIN), above(chance, 0.5 - UNKNOWN_MARGIN)
    return torch.addcmul(target, chance, maybe - target)


def weighted_entropy(chance: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    return target_weight(chance) * entropy(chance)


@lru_cache
def weight_entropy_table(device: torch.device, dtype: torch.dtype) -> Complex[Tensor, " K"]:
    """Return target weight + i entropy (bits) by steps of log odds, those below 0 from the end: one look-up of both."""
    chance = belief(torch.cat((torch.arange(LIMIT + 1), torch.arange(-LIMIT, 0))), torch.float64)
    return torch.complex(target_weight(chance).to(dtype), entropy(chance).to(dtype)).to(device)


def centre_maps(maps: Float[Tensor, "*lead C L L"], place: Int[Tensor, "*lead"]) -> Float[Tensor, "*lead C L L"]:
    """Shift maps so that cell ``place`` (row * L + column) is in the middle; cells beyond the border are 0."""
    side = maps.shape[-1]
    offset = torch.arange(side, device=maps.device) - side // 2
    row, column = (place // side)[..., None] + offset, (place % side)[..., None] + offset
    down, across = row.clamp(0, side - 1), column.clamp(0, side - 1)
    inside = (down == row)[..., :, None] & (across == column)[..., None, :]
    index = down[..., :, None] * side + across[..., None, :]
    index = index.flatten(-2)[..., None, :].expand(*maps.shape[:-2], side * side)
    return maps.flatten(-2).gather(-1, index).unflatten(-1, (side, side)) * inside[..., None, :, :]
