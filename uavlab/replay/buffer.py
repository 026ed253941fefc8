"""Replay buffers as a collector uses them: which rows are chosen, and where they are stored.

``choose`` turns int64 noise into slots, on the device of the rows, and into weights, on the training device. ``take``
copies the rows of slots to the training device.

Replay may lie in host memory while training runs on a GPU: new rows are copied down, batches are copied up. The CPU
gathers a batch into a staging buffer, which is copied as a whole. Only staging buffers are ever pinned: no copy engine
gathers scattered rows, so pinning the ring would take memory and gain nothing. The device makes the copies of a stream
in order and needs no waiting. The host must not read a buffer before a copy down has arrived, nor write into one before
a copy up has left.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.types import Transition, Update, tree_map
from uavlab.ops.sum_tree import offset_by_run
from uavlab.replay import ring
from uavlab.replay.ring import Ring
from uavlab.runtime.runtime import Runtime


class Transfer:
    """How rows get to the ring's memory and back to the training device; here both are one memory."""

    def put(self, rows: Transition) -> Transition:
        """Bring new rows (leading axes R W) to the ring's memory."""
        return rows

    def take(self, source: Ring, index: Int[Tensor, "R N"]) -> Transition:
        """Gather the rows of slots, at most a batch, and bring them to the training device."""
        return ring.take(source, index)


class HostTransfer(Transfer):
    """Staging buffers: two in host memory, one for each direction, and one on the device to pack new rows in."""

    def __init__(self, example: Transition, batch: int, rt: Runtime, pinned: bool) -> None:
        """Reserve the buffers.

        Args:
            example: New rows (leading axes R W).
            batch: Rows per run of a batch.
            rt: Where training runs; on the CPU rows are copied, and nothing else changes.
            pinned: Copy through pinned buffers, without waiting for a batch to arrive.
        """
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
        """Gather the rows of slots and copy them up."""
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


def host_transfer(example: Transition, batch: int, rt: Runtime, pinned: bool) -> HostTransfer:
    """Return a ``HostTransfer``; where memory cannot be pinned, one of ordinary memory, and record the fallback."""
    try:
        return HostTransfer(example, batch, rt, pinned)
    except RuntimeError as error:
        if not pinned or isinstance(error, torch.OutOfMemoryError):  # of the device, not of pinned memory
            raise
        rt.fall_back("placement", f"no memory could be pinned ({str(error).splitlines()[0]}); ordinary memory is used")
        return HostTransfer(example, batch, rt, pinned=False)


class Store:
    """A ring of rows and a rule that chooses among them; by default the rule has no state."""

    def __init__(self, example: Transition, capacity: int, transfer: Transfer | None = None) -> None:
        """Reserve ``capacity`` rows per run, shaped like ``example`` (leading axes R N), on its device."""
        self.ring, self.transfer = ring.allocate(example, capacity), transfer or Transfer()

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], Float[Tensor, "R N"] | None]:
        """Choose slots, and weigh them; slot 0 if the ring is empty, which the caller must prevent."""
        raise NotImplementedError

    def add(self, rows: Transition) -> None:
        """Write rows over the oldest.

        Raises:
            ConfigError: The rows' shapes, types or device are not the ring's; nothing is changed.
        """
        ring.add(self.ring, self.transfer.put(rows))

    def take(self, index: Int[Tensor, "R N"]) -> Transition:
        """Copy the rows of slots."""
        return self.transfer.take(self.ring, index)

    def feedback(self, index: Int[Tensor, "R N"], update: Update) -> None:
        """Use the result of an update on these slots for later choices."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return what the next choices depend on beside the rows."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken, before or after the rows are loaded.

        Raises:
            FileError: The state is not that of such a store.
        """

    def forget(self) -> None:
        """Start again without rows."""


class Uniform(Store):
    """Every row is drawn with the same chance."""

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], None]:
        """Choose slots by chance, without weights."""
        return ring.choose(self.ring, noise), None
