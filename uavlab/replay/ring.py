"""Uniform replay on the training device: a ring of rows per run, written in place, drawn without a host sync."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from uavlab.core.types import Transition, leaves, tree_map


@dataclass(frozen=True)
class Ring:
    """The last ``capacity`` rows of each run; all runs write in step, so one cursor serves them.

    Attributes:
        rows: Stored rows, leading axes R and capacity.
        cursor: Next slot to be written.
        size: Slots written so far, at most the capacity.
    """

    rows: Transition
    cursor: Int[Tensor, ""]
    size: Int[Tensor, ""]

    @property
    def capacity(self) -> int:
        """Slots per run."""
        return self.rows.reward.shape[1]


def row_bytes(example: Transition) -> int:
    """Count the bytes of one stored row; ``example`` has leading axes R N."""
    return sum(leaf[0, 0].numel() * leaf.element_size() for _, leaf in leaves(example))


def allocate(example: Transition, capacity: int) -> Ring:
    """Reserve ``capacity`` rows per run, shaped like ``example`` (leading axes R N)."""

    def blank(leaf: Tensor) -> Tensor:
        return leaf.new_zeros((leaf.shape[0], capacity, *leaf.shape[2:]))

    zero = torch.zeros((), dtype=torch.int64, device=example.reward.device)
    return Ring(rows=tree_map(blank, example), cursor=zero.clone(), size=zero.clone())


def add(ring: Ring, rows: Transition) -> None:
    """Write W rows per run at the cursor, wrapping around; of more rows than fit, the last stay."""
    count, capacity = rows.reward.shape[1], ring.capacity
    slot = (ring.cursor + torch.arange(count, device=ring.cursor.device)).remainder(capacity)
    keep = slice(max(0, count - capacity), None)
    for (_, stored), (_, new) in zip(leaves(ring.rows), leaves(rows), strict=True):
        stored.index_copy_(1, slot[keep], new[:, keep])
    ring.cursor.add_(count).remainder_(capacity)
    ring.size.add_(count).clamp_(max=capacity)


def draw(ring: Ring, noise: Int[Tensor, "R N"]) -> tuple[Transition, Int[Tensor, "R N"]]:
    """Draw rows uniformly from int64 noise; an empty ring is the caller's mistake and yields slot 0."""
    index = noise.remainder(ring.size.clamp(min=1))
    run = torch.arange(index.shape[0], device=index.device)[:, None]
    return tree_map(lambda stored: stored[run, index], ring.rows), index
