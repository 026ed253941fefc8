"""Replay stores: a ring of transitions, the rule that samples it, and the transfers to and from its memory.

``choose`` turns int64 noise into slots, on the device of the ring, and importance weights, on the training device.
``take`` copies the rows of slots to the training device.

Replay may lie in host memory while training runs on a GPU: new rows are copied down to the host, batches up to the GPU.
The CPU gathers a batch into a staging buffer, which is copied as a whole. Only staging buffers are pinned: no copy
engine gathers scattered rows, so a pinned ring would not be faster. Copies in one stream run in order, so the device
needs no synchronization. The host must not read a buffer before the copy into it has completed, nor overwrite one
before the copy out of it has completed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

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
        """Reserve the buffers for rows like ``example`` (R W) and batches; pinned ones need not wait for a batch."""
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
        ring.add(self.ring, self.transfer.put(rows))

    def take(self, index: Int[Tensor, "R N"]) -> Transition:
        return self.transfer.take(self.ring, index)

    def feedback(self, index: Int[Tensor, "R N"], update: Update, replaced: Bool[Tensor, "R N"] | None = None) -> None:
        """Use the result of an update on these slots for later choices, except for rows ``replaced`` since the draw."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the rule."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a ``state_dict``, before or after the rows are loaded."""

    def forget(self) -> None:
        """Reset the state of the rule; called before all rows are dropped."""


class Uniform(Store):
    """A store that samples rows uniformly."""

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], None]:
        return ring.choose(self.ring, noise), None


class ByStage(Store):
    """A store that draws a fixed share of each batch from rows of former stages of a curriculum, both parts uniformly.

    The stage of a row is that at which its world started. Where rows of one part are missing, those of the other fill
    the batch. Rows of a later stage, which a run has after a fallback, are not drawn, unless there are no others.
    """

    def __init__(self, example: Transition, capacity: int, transfer: Transfer | None = None) -> None:
        super().__init__(example, capacity, transfer)
        runs, device = example.reward.shape[0], self.ring.cursor.device
        self.former = torch.zeros(runs, dtype=torch.float64, device=device)  # share of a batch
        self.stage = torch.zeros(runs, dtype=torch.int64, device=device)
        self.number = cast(Tensor, self.ring.rows.stage_number)  # R capacity

    def set_stage(self, stage: Int[Tensor, " R"], former: Float[Tensor, " R"]) -> None:
        self.stage.copy_(stage)
        self.former.copy_(former)

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], None]:
        """Return slots, of former stages first; their number is the share of the batch, rounded."""
        noise, stage, number = noise.to(self.stage.device), self.stage[:, None], self.number
        written = torch.arange(self.ring.capacity, device=noise.device) < self.ring.size
        former, present = (number < stage) & written, (number == stage) & written
        some, any_former = (each.any(1, keepdim=True) for each in (former | present, former))
        present = torch.where(some, present, written)
        first = torch.arange(noise.shape[1], device=noise.device) < (self.former * noise.shape[1]).round()[:, None]
        from_former = (first & any_former) | ~present.any(1, keepdim=True)
        return torch.where(from_former, draw_marked(former, noise), draw_marked(present, noise)), None

    def state_dict(self) -> dict[str, Tensor]:
        return {"former": self.former, "present": self.stage}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.set_stage(state["present"], state["former"])


def draw_marked(mark: Bool[Tensor, "R C"], noise: Int[Tensor, "R N"]) -> Int[Tensor, "R N"]:
    """Turn int64 noise into uniformly distributed slots of those that are marked; any slot where none is."""
    rank = mark.cumsum(1, dtype=torch.int32)
    number = noise.remainder(rank[:, -1:].clamp_min(1)).int() + 1
    return torch.searchsorted(rank, number).clamp_max(mark.shape[1] - 1)


# Rows of several steps: rewards of the next steps of a world, and the observation after the last of them. Every step
# adds one row of each world to the ring, so the row k steps later is k times the number of worlds further.


@dataclass(frozen=True)
class Returns:
    """Returns of at most ``steps`` steps with the discount ``gamma`` per step, from a ring that ``worlds`` fill."""

    steps: int
    gamma: float
    worlds: int


def take_returns(
    returns: Returns, source: Ring, take: Callable[[Int[Tensor, "R N"]], Transition], index: Int[Tensor, "R N"]
) -> tuple[Transition, Float[Tensor, "R N"]]:
    """Return rows whose rewards are sums over steps, and the discount of the value after the last one.

    Rewards of an agent are added until its end. A row takes fewer steps where its world ends, or where later rows are
    not stored yet; its discount is gamma to the power of the steps that it took (host sync if the ring is on the host).
    The ring must be as it was when ``index``, the slots of the first rows, was drawn; ``take`` copies rows out of it.
    """
    rows = take(index)
    over, gamma = rows.truncated | rows.terminated.all(-1), returns.gamma
    discount = torch.full_like(rows.reward[..., 0], gamma)
    for step in range(1, returns.steps):
        slot, stored = later_slots(source, index, step * returns.worlds)
        after = take(slot)
        goes_on = ~over & stored.to(over.device)
        lives = goes_on[..., None] & ~rows.terminated
        rows = replace(
            rows,
            reward=rows.reward + gamma**step * after.reward.masked_fill(~lives, 0.0),
            next_obs=tree_map(lambda new, old, go=goes_on: where_row(go, new, old), after.next_obs, rows.next_obs),
            terminated=rows.terminated | (lives & after.terminated),
            truncated=rows.truncated | (goes_on & after.truncated),
        )
        discount = torch.where(goes_on, gamma ** (step + 1), discount)
        over = ~goes_on | after.truncated | after.terminated.all(-1)
    return rows, discount


def later_slots(source: Ring, index: Int[Tensor, "R N"], rows: int) -> tuple[Int[Tensor, "R N"], Bool[Tensor, "R N"]]:
    """Return the slots of rows that were added ``rows`` later, and whether they hold them."""
    place = index.to(source.cursor.device) - (source.cursor - source.size)  # after the oldest row
    return (index + rows).remainder(source.capacity), place.remainder(source.capacity) + rows < source.size


def where_row(mask: Bool[Tensor, "R N"], chosen: Tensor, other: Tensor) -> Tensor:
    return torch.where(mask.view(*mask.shape, *[1] * (chosen.dim() - 2)), chosen, other)
