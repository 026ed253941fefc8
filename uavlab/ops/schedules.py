"""Schedules of training: numbers that change from update to update, and the minibatches of an update."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from uavlab.core.types import tree_map

T = TypeVar("T")


def linear(count: Shaped[Tensor, ""], first: float, last: float, updates: int | Tensor) -> Float[Tensor, ""]:
    """Return the line from ``first`` at ``count`` 0 to ``last`` at ``updates``, and then ``last``.

    It is a tensor, so that captured and compiled updates follow it.
    """
    return first + (last - first) * (count / updates).clamp_max(1)


def minibatches(samples: T, order: Int[Tensor, "R passes N"], count: int) -> Iterator[T]:
    """Yield rows (R N ...) of a tree of tensors, ``count`` minibatches (at most N) in each pass, in the order given.

    Run r takes its rows in its own order; minibatches differ by at most one row.
    """
    runs, _, rows = order.shape
    pieces = min(count, rows)
    first = torch.arange(runs, device=order.device)[:, None] * rows
    flat = tree_map(lambda leaf: leaf.flatten(0, 1), samples)
    for each in order.unbind(1):
        for start, end in pairwise(rows * k // pieces for k in range(pieces + 1)):
            index = (each[:, start:end] + first).flatten()
            yield tree_map(lambda leaf, i=index: leaf.index_select(0, i).unflatten(0, (runs, -1)), flat)
