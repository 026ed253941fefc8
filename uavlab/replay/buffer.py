"""Replay stores: a ring of transitions, the rule that samples it, and the transfers to and from its memory.

``choose`` turns int64 noise into slots, on the device of the ring, and importance weights, on the training device.
``take`` copies the rows of slots to the training device.

Replay may lie in host memory while training runs on a GPU: new rows are copied down to the host, batches up to the GPU.
The CPU gathers a batch into a staging buffer, which is copied as a whole. Only staging buffers are pinned: no copy
engine gathers scattered rows, so a pinned ring would not be faster. Copies in one stream run in order, so the device
needs no synchronization. The host must not read a buffer before the copy into it has completed, nor overwrite one
before the copy out of it has completed.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.types import Transition, Update, tree_map
from uavlab.ops.sum_tree import offset_by_run
from uavlab.replay import ring
from uavlab.replay.ring import Ring
from uavlab.runtime.runtime import Runtime


class Transfer:
    """Copies of rows to the ring's memory and back to the training device; in this class both are the same memory."""

    def put(self, rows: Transition) -> Transition:
        """Copy new rows (leading axes R W) to the ring's memory."""
        return rows

    def take(self, source: Ring, index: Int[Tensor, "R N"]) -> Transition:
        """Gather the rows of slots, at most a batch, and copy them to the training device."""
        return ring.take(source, index)


class HostTransfer(Transfer):
    """Transfers through staging buffers: one in host memory for each direction, one on the device to pack new rows."""

    def __init__(self, example: Transition, batch: int, rt: Runtime, pinned: bool) -> None:
        """Reserve the buffers.

        Args:
            example: New rows (leading axes R W).
            batch: Rows per run of a batch.
            rt: Runtime of the training device, which may also be the CPU.
            pinned: Copy through pinned buffers, without waiting for a batch to arrive.
        """
        self.device, self.pinned = rt.device, pinned
        self.down, self.new = ring.allocate_words(example, example.reward.shape[1], pin_memory=pinned)
        self.up = ring.allocate_words(example, batch, pin_memory=pinned)[0].flatten(0, 1)
        self.packed, self.packing = ring.allocate_words(example, example.reward.shape[1], device=rt.device)
        self._up_copied: torch.cuda.Event | None = None  # the last copy out of ``up``
        self._copy_down, self._copy_up = rt.time_stage(self._downward, "copy"), rt.time_stage(self._upward, "copy")

    def put(self, rows: Transition) -> Transition:
        """Copy new rows to the host (host sync)."""
        self._copy_down(rows)
        return self.new

    def take(self, source: Ring, index: Int[Tensor, "R N"]) -> Transition:
        """Gather the rows of slots and copy them to the device (host sync: the copy before has to be over)."""
        if self._up_copied is not None:
            self._up_copied.synchronize()
        flat = offset_by_run(index, source.capacity).view(-1)
        words = torch.index_select(source.words.flatten(0, 1), 0, flat, out=self.up[: len(flat)])
        return ring.view_fields(self._copy_up(words).view(*index.shape, -1), source.rows)

    def _downward(self, rows: Transition) -> None:
        tree_map(lambda field, leaf: field.copy_(leaf), self.packing, rows)
        self.down.copy_(self.packed, non_blocking=self.pinned)  # host sync, here or below
        if self.pinned:
            torch.cuda.current_stream(self.device).synchronize()

    def _upward(self, words: Int[Tensor, "RN words"]) -> Int[Tensor, "RN words"]:
        copy = words.to(self.device, non_blocking=self.pinned, copy=True)  # host sync, unless pinned
        if self.pinned:
            self._up_copied = torch.cuda.current_stream(self.device).record_event()
        return copy


def host_transfer(example: Transition, batch: int, rt: Runtime, pinned: bool) -> HostTransfer:
    """Return a ``HostTransfer``; if memory cannot be pinned, use pageable memory and record the fallback."""
    try:
        return HostTransfer(example, batch, rt, pinned)
    except RuntimeError as error:
        if not pinned or isinstance(error, torch.OutOfMemoryError):  # of the device, not of pinned memory
            raise
        rt.fall_back("placement", f"no memory could be pinned ({str(error).splitlines()[0]}); ordinary memory is used")
        return HostTransfer(example, batch, rt, pinned=False)


class Store:
    """A ring of rows and a rule that samples it; the rule of this base class has no state."""

    def __init__(self, example: Transition, capacity: int, transfer: Transfer | None = None) -> None:
        """Reserve ``capacity`` rows per run, shaped like ``example`` (leading axes R N), on its device."""
        self.ring, self.transfer = ring.allocate(example, capacity), transfer or Transfer()

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], Float[Tensor, "R N"] | None]:
        """Return slots and importance weights (None if all are equal). The ring must not be empty."""
        raise NotImplementedError

    def add(self, rows: Transition) -> None:
        """Overwrite the oldest rows.

        Raises:
            ConfigError: Shapes, types or device of the rows differ from the ring's; nothing is changed.
        """
        ring.add(self.ring, self.transfer.put(rows))

    def take(self, index: Int[Tensor, "R N"]) -> Transition:
        """Return a copy of the rows of slots."""
        return self.transfer.take(self.ring, index)

    def feedback(self, index: Int[Tensor, "R N"], update: Update, replaced: Bool[Tensor, "R N"] | None = None) -> None:
        """Use the result of an update on these slots for later choices, except for rows ``replaced`` since the draw."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the rule."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a ``state_dict``, before or after the rows are loaded.

        Raises:
            FileError: The state does not fit the store.
        """

    def forget(self) -> None:
        """Reset the state of the rule; called before all rows are dropped."""


class Uniform(Store):
    """A store that samples rows uniformly."""

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], None]:
        """Return uniformly distributed slots, without weights."""
        return ring.choose(self.ring, noise), None


class ByStage(Store):
    """A store that draws a fixed share of each batch from rows of former stages of a curriculum, both parts uniformly.

    Rows of the present stage are those that were added since it began, also by worlds that had started before; all
    others count as former ones, after a fallback those of a later stage, too. Where there are no others, all rows of a
    batch are of the present stage.

    Attributes:
        former: Share of a batch that is of former stages (R).
        since: Rows of each run that were added since its stage began (R), at most the capacity.
    """

    def __init__(self, example: Transition, capacity: int, transfer: Transfer | None = None) -> None:
        """Start all runs at their first stage."""
        super().__init__(example, capacity, transfer)
        runs, device = example.reward.shape[0], self.ring.cursor.device
        self.former = torch.zeros(runs, dtype=torch.float64, device=device)
        self.since = torch.zeros(runs, dtype=torch.int64, device=device)

    def set_former(self, share: Float[Tensor, " R"], moved: Bool[Tensor, " R"]) -> None:
        """Set the share of former stages; a new stage begins in the runs that ``moved``."""
        self.former.copy_(share)
        self.since.masked_fill_(moved.to(self.since.device), 0)

    def add(self, rows: Transition) -> None:
        """Overwrite the oldest rows by rows of the present stage."""
        super().add(rows)
        self.since.add_(rows.reward.shape[1]).clamp_(max=self.ring.capacity)

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], None]:
        """Return slots, of former stages first; their number is the share of the batch, rounded."""
        noise, ring_ = noise.to(self.since.device), self.ring
        others = ring_.size - self.since
        count = (self.former * noise.shape[1]).round()[:, None]
        from_former = (torch.arange(noise.shape[1], device=noise.device) < count) & (others > 0)[:, None]
        from_former = from_former | (self.since == 0)[:, None]  # nothing of the present stage yet
        back_former = self.since[:, None] + noise.remainder(others.clamp_min(1)[:, None])
        back = torch.where(from_former, back_former, noise.remainder(self.since.clamp_min(1)[:, None]))
        return (ring_.cursor - 1 - back).remainder(ring_.capacity), None

    def state_dict(self) -> dict[str, Tensor]:
        """Return shares and counts of rows."""
        return {"former": self.former, "since": self.since}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a ``state_dict``."""
        self.former.copy_(state["former"])
        self.since.copy_(state["since"])

    def forget(self) -> None:
        """Begin the present stage anew; called before all rows are dropped."""
        self.since.zero_()
