"""Replay in host memory while training runs on a GPU: new rows are copied down, batches are copied up.

The CPU gathers a batch into a staging buffer, which is copied as a whole. Only staging buffers are ever pinned: no copy
engine gathers scattered rows, so pinning the ring would take memory and gain nothing. The device makes the copies of a
stream in order and needs no waiting. The host must not read a buffer before a copy down has arrived, nor write into one
before a copy up has left.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from uavlab.core.types import Transition, tree_map
from uavlab.ops.sum_tree import offset_by_run
from uavlab.replay import ring
from uavlab.replay.buffer import Transfer
from uavlab.replay.ring import Ring
from uavlab.runtime.runtime import Runtime


def host_transfer(example: Transition, batch: int, rt: Runtime, pinned: bool) -> Transfer:
    """Return the transfer to host memory; on the CPU rows are copied, and nothing else changes.

    Where memory cannot be pinned, ordinary memory is used and the run records the fallback.

    Args:
        example: New rows (leading axes R W).
        batch: Rows per run of a batch.
        rt: Where training runs.
        pinned: Copy through pinned buffers, without waiting for a batch to arrive.
    """
    try:
        staging = StagingBuffers(example, batch, rt, pinned)
    except RuntimeError as error:
        if not pinned or isinstance(error, torch.OutOfMemoryError):  # of the device, not of pinned memory
            raise
        rt.fall_back("placement", f"no memory could be pinned ({str(error).splitlines()[0]}); ordinary memory is used")
        staging = StagingBuffers(example, batch, rt, pinned=False)
    return Transfer(staging.put, staging.take)


class StagingBuffers:
    """Two buffers in host memory, one for each direction, and one on the device in which new rows are packed."""

    def __init__(self, example: Transition, batch: int, rt: Runtime, pinned: bool) -> None:
        """Reserve the buffers."""
        self.device, self.pinned = rt.device, pinned
        self.down, self.new = ring.allocate_words(example, example.reward.shape[1], pin_memory=pinned)
        self.up = ring.allocate_words(example, batch, pin_memory=pinned)[0].flatten(0, 1)
        self.packed, self.packing = ring.allocate_words(example, example.reward.shape[1], device=rt.device)
        self._up_copied: torch.cuda.Event | None = None  # when the last batch had left its buffer
        self._copy_down, self._copy_up = rt.time_stage(self._downward, "copy"), rt.time_stage(self._upward, "copy")

    def put(self, rows: Transition) -> Transition:
        """Copy new rows down (host sync)."""
        self._copy_down(rows)
        return self.new

    def take(self, source: Ring, index: Int[Tensor, "R N"]) -> Transition:
        """Gather the rows of slots, at most a batch, and copy them up."""
        if self._up_copied is not None:
            self._up_copied.synchronize()
        flat = offset_by_run(index, source.capacity).view(-1)
        words = torch.index_select(source.words.flatten(0, 1), 0, flat, out=self.up[: len(flat)])
        return ring.view_fields(self._copy_up(words).view(*index.shape, -1), source.rows)

    def _downward(self, rows: Transition) -> None:
        tree_map(lambda field, leaf: field.copy_(leaf), self.packing, rows)
        self.down.copy_(self.packed, non_blocking=self.pinned)
        if self.pinned:
            torch.cuda.current_stream(self.device).synchronize()

    def _upward(self, words: Int[Tensor, "RN words"]) -> Int[Tensor, "RN words"]:
        copy = words.to(self.device, non_blocking=self.pinned, copy=True)
        if self.pinned:
            self._up_copied = torch.cuda.current_stream(self.device).record_event()
        return copy
