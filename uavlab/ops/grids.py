"""Belief maps: what is known about each cell, what is not, and resizing by area.

A belief is the chance that a cell is a target, 0.5 where nothing is known. It is kept as log odds in whole ``STEP``:
sums of measurements are exact then, in whatever order, and no cell takes more than two bytes. Maps are H rows (y) by W
columns (x).
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Complex, Float, Real
from torch import Tensor

SURE = 1e-4  # beliefs stay in [SURE, 1 - SURE], so that a later measurement can still turn them
UNKNOWN = 1e-3  # a belief this close to 0.5 says nothing

LIMIT = 2**14 - 1  # most steps; int16 holds the sum of two such
STEP = math.log((1 - SURE) / SURE) / LIMIT  # what is measured wrongly by chance 0.375 counts as 0.37502


def area_matrix(
    cells: int,
    parts: int,
    low: Real[Tensor, "*lead"] | float = 0.0,
    high: Real[Tensor, "*lead"] | float | None = None,
) -> Float[Tensor, "*lead parts cells"]:
    """Make the matrix that averages cells over equal parts of [low, high), cell i being [i, i + 1).

    ``rows @ image @ columns.mT`` is the exact average over each rectangle, whatever the ratio of sizes: what OpenCV
    calls INTER_AREA where it shrinks. (OpenCV interpolates instead where it enlarges.)

    Args:
        cells: Cells that an axis has.
        parts: Cells that it shall have.
        low: Where the part of the axis that is looked at begins, in cells.
        high: Where it ends; None for the end of the axis.
    """
    low = torch.as_tensor(low, dtype=torch.float64)
    end = torch.full_like(low, cells) if high is None else torch.as_tensor(high, dtype=torch.float64, device=low.device)
    length = ((end - low) / parts)[..., None, None]
    start = low[..., None, None] + length * torch.arange(parts, dtype=torch.float64, device=low.device)[:, None]
    cell = torch.arange(cells, dtype=torch.float64, device=low.device)
    shared = torch.minimum(start + length, cell + 1) - torch.maximum(start, cell)
    return (shared.clamp_min(0) / length).float()


def area_resize(
    image: Float[Tensor, "*lead H W"], rows: Float[Tensor, "*#lead h H"], columns: Float[Tensor, "*#lead w W"]
) -> Float[Tensor, "*lead h w"]:
    """Resize by two matrices of ``area_matrix``."""
    return rows @ image @ columns.mT


def above(value: Float[Tensor, "*lead"], edge: Float[Tensor, "*#lead"] | float) -> Float[Tensor, "*lead"]:
    """Tell where values exceed an edge, as 1 and 0: on a CPU products are far cheaper than choices by truth values."""
    return torch.gt(value, edge, out=torch.empty_like(value))


def steps(flip: float) -> int:
    """Weigh a measurement that is wrong by that chance: how far it moves log odds, in whole steps."""
    return max(-LIMIT, min(LIMIT, round(math.log((1 - flip) / flip) / STEP)))


def leaning(logits: Real[Tensor, "*lead"], dtype: torch.dtype) -> Float[Tensor, "*lead"]:
    """Turn steps of log odds into twice what beliefs are above 0.5: where nothing is known, averages are 0 exactly."""
    return logits.to(dtype, copy=True).mul_(STEP / 2).tanh_()


def belief(logits: Real[Tensor, "*lead"], dtype: torch.dtype) -> Float[Tensor, "*lead"]:
    """Turn steps of log odds into beliefs."""
    return leaning(logits, dtype).add_(1).mul_(0.5)


def entropy(chance: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    """Measure what is unknown about each cell (bits)."""
    other = 1 - chance
    return -(chance * chance.log2() + other * other.log2())


def interest(chance: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    """Weigh cells by what they seem to be: 1 for targets, 0 for free ones, themselves where nothing is known."""
    target, maybe = above(chance, 0.5 + UNKNOWN), above(chance, 0.5 - UNKNOWN)
    return torch.addcmul(target, chance, maybe - target)


def weighted_entropy(chance: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    """Measure what is unknown about each cell that may matter (bits)."""
    return interest(chance) * entropy(chance)


@lru_cache
def table(device: torch.device, dtype: torch.dtype) -> Complex[Tensor, " K"]:
    """Give interest + i entropy of all beliefs by steps of log odds: one look-up instead of a dozen sums.

    Steps below 0 count from the end.
    """
    chance = belief(torch.cat((torch.arange(LIMIT + 1), torch.arange(-LIMIT, 0))), torch.float64)
    return torch.complex(interest(chance).to(dtype), entropy(chance).to(dtype)).to(device)
