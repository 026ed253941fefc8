"""Belief maps: footprints, sensor updates, weighted entropy, and resizing by area.

A belief is the chance that a cell is a target, 0.5 where nothing is known. It is kept as odds, belief / (1 - belief):
float32 knows a belief near 1 too badly to learn from what speaks against it. Maps are H rows (y) by W columns (x).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

SURE = 1e-4  # beliefs stay in [SURE, 1 - SURE], so that a later measurement can still turn them
UNKNOWN = 1e-3  # a belief this close to 0.5 says nothing

CHUNK = 16  # cells in a row that windows are read and written by: one cache line, and one copy instead of 16


def area_matrix(
    cells: int,
    parts: int,
    low: Float[Tensor, "*lead"] | float = 0.0,
    high: Float[Tensor, "*lead"] | float | None = None,
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


def odds_ratio(found: Float[Tensor, "*lead"], accuracy: Float[Tensor, "*#lead"]) -> Float[Tensor, "*lead"]:
    """Weigh measurements, 1 or 0: how many times likelier each is over a target than elsewhere."""
    miss, hit = (1 - accuracy) / accuracy, accuracy / (1 - accuracy)
    return found * (hit - miss) + miss


def updated(odds: Float[Tensor, "*lead"], ratio: Float[Tensor, "*#lead"] | float) -> Float[Tensor, "*lead"]:
    """Learn from a measurement by Bayes' rule: log odds plus log ``ratio``, without logarithms; 1 changes nothing."""
    return update_(odds.clone(), ratio)


def update_(odds: Float[Tensor, "*lead"], ratio: Float[Tensor, "*#lead"] | float) -> Float[Tensor, "*lead"]:
    """Do so in place."""
    return odds.mul_(ratio).clamp_(SURE / (1 - SURE), (1 - SURE) / SURE)


def belief(odds: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    """Turn odds into beliefs."""
    return odds / (odds + 1)


def leaning(odds: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    """Turn odds into twice what beliefs are above 0.5: nothing known is 0, and averages of it are exact."""
    return (odds - 1).div_(odds + 1)


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


def within(
    low: Int[Tensor, "*#lead 2"],
    high: Int[Tensor, "*#lead 2"],
    row: Int[Tensor, "*lead h"],
    column: Int[Tensor, "*lead w"],
) -> tuple[Float[Tensor, "*lead h"], Float[Tensor, "*lead w"]]:
    """Tell which rows and which columns a rectangle [low, high) holds, as 1 and 0; their product is its mask."""
    rows = (row >= low[..., :1]) & (row < high[..., :1])
    columns = (column >= low[..., 1:]) & (column < high[..., 1:])
    return rows.float(), columns.float()


def chunk_index(
    top: Int[Tensor, "*lead"], left: Int[Tensor, "*lead"], rows: int, chunks: int, width: int
) -> Int[Tensor, "*lead rows chunks"]:
    """Number the chunks of windows ``rows`` high and ``chunks`` wide within a map of ``width`` chunks per row.

    Args:
        top: First row of each window.
        left: First chunk of each.
        rows: Rows of a window.
        chunks: Chunks in a row of a window.
        width: Chunks in a row of the map.
    """
    row = top[..., None] + torch.arange(rows, device=top.device)
    return (row * width + left[..., None])[..., None] + torch.arange(chunks, device=top.device)


def read_chunks(maps: Tensor, index: Int[Tensor, "*lead rows chunks"], out: Tensor | None = None) -> Tensor:
    """Copy windows out of maps (any leading axes, numbered through), in the shape ``*lead rows columns``."""
    window = maps.new_empty(*index.shape[:-1], index.shape[-1] * CHUNK) if out is None else out
    torch.index_select(maps.view(-1, CHUNK), 0, index.flatten(), out=window.view(-1, CHUNK))
    return window


def write_chunks(maps: Tensor, index: Int[Tensor, "*lead rows chunks"], window: Tensor) -> None:
    """Copy windows that do not overlap back into maps, in place."""
    maps.view(-1, CHUNK).index_copy_(0, index.flatten(), window.reshape(-1, CHUNK))
