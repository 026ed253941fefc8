"""Schedules of numbers that change during training, as tensors, so that captured and compiled updates follow them."""

from jaxtyping import Float, Int
from torch import Tensor


def linear(count: Int[Tensor, ""], last: float, updates: int) -> Float[Tensor, ""]:
    """Return 1 at ``count`` 0, ``last`` from ``count`` = ``updates`` on, and the line between them before."""
    return 1 + (last - 1) * (count / updates).clamp_max(1)
