"""A ring buffer of transitions per run on one device, written in place and sampled without a host sync.

The fields of a row are contiguous in one buffer, so that one operator gathers a batch or copies it to another device.
The learner gets views of a gathered batch.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.installation import program
from uavlab.core.types import Transition, leaves, tree_map
from uavlab.ops.sum_tree import offset_by_run

WORD = 8  # bytes; fields are aligned to words, as ``Tensor.view(dtype)`` requires


@dataclass(frozen=True)
class Ring:
    """The last ``capacity`` rows of each run; all runs add the same number of rows and share one cursor."""

    words: Int[Tensor, "R capacity words"]  # each row is padded to whole words
    rows: Transition  # fields of ``words`` as views, with leading axes R and capacity
    cursor: Int[Tensor, ""]  # next slot to be written
    size: Int[Tensor, ""]  # slots written so far

    @property
    def capacity(self) -> int:
        """Slots per run."""
        return self.rows.reward.shape[1]


def row_bytes(example: Transition) -> int:
    """Return the bytes of one stored row; ``example`` has leading axes R N."""
    return WORD * sum(_sizes(example))


def allocate(example: Transition, capacity: int) -> Ring:
    """Reserve ``capacity`` rows per run, shaped like ``example`` (leading axes R N)."""
    words, rows = allocate_words(example, capacity, device=example.reward.device)
    zero = torch.zeros((), dtype=torch.int64, device=words.device)
    return Ring(words, rows, cursor=zero.clone(), size=zero.clone())


def allocate_words(example: Transition, count: int, **options: Any) -> tuple[Int[Tensor, "R count words"], Transition]:
    """Reserve zeroed words for ``count`` rows per run like ``example`` (leading axes R N), and view their fields."""
    sizes = _sizes(example)
    words = torch.zeros((example.reward.shape[0], count, sum(sizes)), dtype=torch.int64, **options)
    parts = iter(words.split(sizes, -1))

    def field(leaf: Tensor) -> Tensor:
        own = next(parts).view(leaf.dtype)[..., : leaf[0, 0].numel()]
        return own.view(len(words), count, *leaf.shape[2:])

    return words, tree_map(field, example)


def view_fields(words: Int[Tensor, "R N words"], layout: Transition) -> Transition:
    """View rows of words as fields, at the same offsets in a row as the fields of ``layout``."""
    runs, count, _ = words.shape

    def field(leaf: Tensor) -> Tensor:
        size = WORD // leaf.element_size()
        stride = (*(size * step for step in words.stride()[:2]), *leaf.stride()[2:])
        begin = size * words.storage_offset() + leaf.storage_offset()
        return words.view(leaf.dtype).as_strided((runs, count, *leaf.shape[2:]), stride, begin)

    return tree_map(field, layout)


def add(ring: Ring, rows: Transition) -> None:
    """Write W rows per run at the cursor, wrapping around; if W exceeds the capacity, only the last rows."""
    capacity, count = ring.capacity, rows.reward.shape[1] if rows.reward.dim() > 1 else 1
    problems, pairs = [], list(zip(leaves(ring.rows), leaves(rows), strict=True))
    for (name, old), (_, new) in pairs:
        if not matches(old, new, count) or new.device != old.device:
            expected = f"{describe_leaf(old, count)} on {old.device}"
            problems.append(f"{name} is {describe_leaf(new)} on {new.device}, expected {expected}")
    if problems:
        raise ConfigError(
            f"Replay: rows do not fit the ring: {'; '.join(problems)}. Add rows like those that it was allocated for; "
            f"`{program()} check` finds an environment that violates its contract, `uavlab.check_learner` a learner."
        )
    slot = (ring.cursor + torch.arange(count, device=ring.cursor.device)).remainder(capacity)
    keep = slice(max(0, count - capacity), None)
    for (_, stored), (_, new) in pairs:
        stored.index_copy_(1, slot[keep], new[:, keep])
    ring.cursor.add_(count).remainder_(capacity)
    ring.size.add_(count).clamp_(max=capacity)


def choose(ring: Ring, noise: Int[Tensor, "R N"]) -> Int[Tensor, "R N"]:
    """Turn int64 noise into uniformly distributed slots of a ring with rows (host sync if it is on the host)."""
    return noise.to(ring.size.device).remainder(ring.size.clamp(min=1))


def take(ring: Ring, index: Int[Tensor, "R N"]) -> Transition:
    flat = offset_by_run(index, ring.capacity).view(-1)
    words = ring.words.flatten(0, 1).index_select(0, flat)
    return view_fields(words.view(*index.shape, -1), ring.rows)


def matches(stored: Tensor, new: Tensor, count: int) -> bool:
    """Return whether ``new`` has the shape and type of ``count`` rows of ``stored``."""
    runs, _, *rest = stored.shape
    return new.dtype == stored.dtype and new.shape == (runs, count, *rest)


def describe_leaf(leaf: Tensor, count: int | None = None) -> str:
    """Return type and shape for a message, with ``count`` rows if given: ``float32 2x64x3``."""
    shape = leaf.shape if count is None else (leaf.shape[0], count, *leaf.shape[2:])
    return f"{leaf.dtype} {'x'.join(map(str, shape)) or 'scalar'}".removeprefix("torch.")


def _sizes(example: Transition) -> list[int]:
    return [-(-leaf[0, 0].nbytes // WORD) for _, leaf in leaves(example)]
