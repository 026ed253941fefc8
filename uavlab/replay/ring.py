"""Uniform replay on the training device: a ring of rows per run, written in place, drawn without a host sync."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from uavlab.core.errors import ConfigError
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
    """Write W rows per run at the cursor, wrapping around; of more rows than fit, the last stay.

    Raises:
        ConfigError: The rows' shapes, types or device are not the ring's, which is untouched.
    """
    pairs = [(name, old, new) for (name, old), (_, new) in zip(leaves(ring.rows), leaves(rows), strict=True)]
    count, capacity = rows.reward.shape[1] if rows.reward.dim() > 1 else 1, ring.capacity
    if not all(like(old, new, count) and new.device == old.device for _, old, new in pairs):
        raise _misfit(pairs, count)
    slot = (ring.cursor + torch.arange(count, device=ring.cursor.device)).remainder(capacity)
    keep = slice(max(0, count - capacity), None)
    for _, stored, new in pairs:
        stored.index_copy_(1, slot[keep], new[:, keep])
    ring.cursor.add_(count).remainder_(capacity)
    ring.size.add_(count).clamp_(max=capacity)


def draw(ring: Ring, noise: Int[Tensor, "R N"]) -> tuple[Transition, Int[Tensor, "R N"]]:
    """Draw rows uniformly from int64 noise; an empty ring is the caller's mistake and yields slot 0."""
    index = noise.remainder(ring.size.clamp(min=1))
    run = torch.arange(index.shape[0], device=index.device)[:, None]
    return tree_map(lambda stored: stored[run, index], ring.rows), index


def like(stored: Tensor, new: Tensor, count: int) -> bool:
    """Tell whether ``new`` has the shape and type of ``count`` rows of ``stored``; reads metadata alone."""
    runs, _, *rest = stored.shape
    return new.dtype == stored.dtype and new.shape == (runs, count, *rest)


def spell(leaf: Tensor, count: int | None = None) -> str:
    """Write type and shape for a message, as those of ``count`` rows if given: ``float32 2x64x3``."""
    shape = leaf.shape if count is None else (leaf.shape[0], count, *leaf.shape[2:])
    return f"{leaf.dtype} {'x'.join(map(str, shape)) or 'scalar'}".removeprefix("torch.")


def _misfit(pairs: list[tuple[str, Tensor, Tensor]], count: int) -> ConfigError:
    wrong = [
        f"{name} is {spell(new)} on {new.device}, expected {spell(old, count)} on {old.device}"
        for name, old, new in pairs
        if not like(old, new, count) or new.device != old.device
    ]
    return ConfigError(
        f"Replay: rows do not fit the ring: {'; '.join(wrong)}. Add rows like those that it was allocated for; "
        "`uavlab check` finds an environment that breaks its word."
    )
