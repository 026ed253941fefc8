"""Moving maps so that an agent is in their middle."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def centred(maps: Float[Tensor, "*lead C L L"], place: Int[Tensor, "*lead"]) -> Float[Tensor, "*lead C L L"]:
    """Shift maps so that cell ``place`` (row * L + column) is in the middle; what lay beyond their border is 0."""
    side = maps.shape[-1]
    offset = torch.arange(side, device=maps.device) - side // 2
    row, column = (place // side)[..., None] + offset, (place % side)[..., None] + offset
    inside = _within(row, side)[..., :, None] & _within(column, side)[..., None, :]
    index = row.clamp(0, side - 1)[..., :, None] * side + column.clamp(0, side - 1)[..., None, :]
    index = index.flatten(-2)[..., None, :].expand(*maps.shape[:-2], side * side)
    return maps.flatten(-2).gather(-1, index).unflatten(-1, (side, side)) * inside[..., None, :, :]


def _within(line: Tensor, side: int) -> Tensor:
    return (line >= 0) & (line < side)
