"""Replay buffers as a collector uses them: which rows are chosen, and where they are stored.

``choose`` turns int64 noise into slots, on the device of the rows, and into weights, on the training device. ``take``
copies the rows of slots to the training device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.types import Transition, Update
from uavlab.replay import ring
from uavlab.replay.ring import Ring


@dataclass(frozen=True)
class Transfer:
    """How rows get to the ring's memory and back to the training device; the identity by default.

    Attributes:
        put: Brings new rows (leading axes R W).
        take: Gathers the rows of slots (R N) out of the ring and brings them back.
    """

    put: Callable[[Transition], Transition] = lambda rows: rows
    take: Callable[[Ring, Tensor], Transition] = ring.take


IDENTITY = Transfer()


class Store:
    """A ring of rows and a rule that chooses among them; by default the rule has no state."""

    ring: Ring
    transfer: Transfer

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], Float[Tensor, "R N"] | None]:
        """Choose slots, and weigh them; slot 0 if the ring is empty, which the caller must prevent."""
        raise NotImplementedError

    def add(self, rows: Transition) -> None:
        """Write rows over the oldest."""
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

    def __init__(self, example: Transition, capacity: int, transfer: Transfer = IDENTITY) -> None:
        """Reserve ``capacity`` rows per run, shaped like ``example`` (leading axes R N), on its device."""
        self.ring, self.transfer = ring.allocate(example, capacity), transfer

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], None]:
        """Choose slots by chance, without weights."""
        return ring.choose(self.ring, noise), None
