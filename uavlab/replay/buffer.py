"""Replay buffers as a collector uses them: which rows are chosen, and where they are stored.

``choose`` turns int64 noise into slots, on the device of the rows, and into weights, on the training device. ``take``
copies the rows of slots to the training device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.types import Transition, Update
from uavlab.replay import prioritized, ring
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


class ByPriority(Store):
    """A row is drawn the more often, the larger the TD errors of its agents were when it was learned last."""

    def __init__(
        self,
        example: Transition,
        capacity: int,
        config: prioritized.PriorityConfig,
        by: Literal["mean", "max"],
        transfer: Transfer = IDENTITY,
    ) -> None:
        """Reserve rows and the tree over them; ``by`` reduces the errors of all agents to one priority.

        Raises:
            ConfigError: The capacity is more than a tree can serve.
        """
        self.replay, self.by, self.transfer = prioritized.allocate(example, capacity, config), by, transfer
        self.ring = self.replay.ring

    def add(self, rows: Transition) -> None:
        """Write rows over the oldest, each with the largest priority so far."""
        prioritized.add(self.replay, self.transfer.put(rows))

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], Float[Tensor, "R N"]]:
        """Choose slots by priority, and weigh them."""
        index, weight = prioritized.choose(self.replay, noise.to(self.ring.size.device))
        return index, weight.to(noise.device)

    def feedback(self, index: Int[Tensor, "R N"], update: Update) -> None:
        """Set the priorities of rows by their TD errors.

        Raises:
            ConfigError: The learner returned no TD errors.
        """
        if update.td_error is None:
            raise ConfigError(
                "priorities: the learner returned no td_error; expected the error of each row and agent. Set "
                "priorities=off, or let the learner return it."
            )
        priority = prioritized.joint_priority(update.td_error, self.by)
        prioritized.set_priorities(self.replay, index, priority.to(index.device))

    def state_dict(self) -> dict[str, Tensor]:
        """Return priorities and counters (host sync)."""
        return prioritized.state(self.replay)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load priorities and counters."""
        prioritized.load(self.replay, state)

    def forget(self) -> None:
        """Clear the priorities."""
        prioritized.clear(self.replay)
