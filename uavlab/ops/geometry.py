"""Angles and distances in the plane over any leading axes, and constants on a device."""

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor


@lru_cache
def constant(values: tuple, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor of numbers that stays on the device: a copy per call would wait for it."""
    return torch.tensor(values, device=device, dtype=dtype)


def wrap_angle(angle: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    """Bring an angle (rad) into [0, 2 pi)."""
    return torch.remainder(angle, 2 * math.pi)


def distance(a: Float[Tensor, "*#lead 2"], b: Float[Tensor, "*#lead 2"]) -> Float[Tensor, "*#lead"]:
    """Return the Euclidean distance between points; the leading axes broadcast."""
    dx, dy = (a - b).unbind(-1)
    return torch.hypot(dx, dy)


def nearest_offsets(
    pos: Float[Tensor, "B A 2"], points: Float[Tensor, "B M 2"], count: int
) -> Float[Tensor, "B A count 2"]:
    """Return the offsets from each agent to its ``count`` nearest points, nearest first.

    Raises:
        RuntimeError: ``count`` exceeds the number of points M.
    """
    offset = points[:, None] - pos[:, :, None]
    order = offset.square().sum(-1).topk(count, dim=-1, largest=False).indices
    return offset.gather(2, order[..., None].expand(*order.shape, 2))
