"""What a source asks of replay, whatever chooses among its rows and wherever they are kept.

``choose`` turns int64 noise into slots, where the rows are kept, and into weights, where training runs. ``take`` copies
the rows of slots to where training runs.
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
class Place:
    """How rows come to where they are kept, and from there to where training runs; by default there is no way to go.

    Attributes:
        put: Brings new rows (leading axes R W).
        take: Gathers the rows of slots (R N) out of the ring and brings them back.
    """

    put: Callable[[Transition], Transition] = lambda rows: rows
    take: Callable[[Ring, Tensor], Transition] = ring.take


HERE = Place()


class Uniform:
    """Every row is drawn with the same chance."""

    def __init__(self, example: Transition, capacity: int, place: Place = HERE) -> None:
        """Reserve ``capacity`` rows per run, shaped like ``example`` (leading axes R N), on its device."""
        self.ring, self.place = ring.allocate(example, capacity), place

    def add(self, rows: Transition) -> None:
        """Write rows over the oldest."""
        ring.add(self.ring, self.place.put(rows))

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], None]:
        """Choose slots; an empty ring is the caller's mistake and yields slot 0."""
        size = self.ring.size.clamp(min=1)
        return noise.to(size.device).remainder(size), None

    def take(self, index: Int[Tensor, "R N"]) -> Transition:
        """Copy the rows of slots."""
        return self.place.take(self.ring, index)

    def feedback(self, index: Int[Tensor, "R N"], update: Update) -> None:
        """Learn nothing from an update."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return what the next choices depend on beside the rows: nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""

    def forget(self) -> None:
        """Start anew, without rows."""


class ByPriority:
    """A row is drawn the more often the more its agents' values erred when it was learned last."""

    def __init__(
        self,
        example: Transition,
        capacity: int,
        config: prioritized.PriorityConfig,
        by: Literal["mean", "max"],
        place: Place = HERE,
    ) -> None:
        """Reserve rows and the tree over them; ``by`` makes one priority of the errors of all agents.

        Raises:
            ConfigError: The capacity is more than a tree can serve.
        """
        self.replay, self.by, self.place = prioritized.allocate(example, capacity, config), by, place

    @property
    def ring(self) -> Ring:
        """The rows."""
        return self.replay.ring

    def add(self, rows: Transition) -> None:
        """Write rows over the oldest, each with the largest priority so far."""
        prioritized.add(self.replay, self.place.put(rows))

    def choose(self, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], Float[Tensor, "R N"]]:
        """Choose slots by priority, and weigh them."""
        index, weight = prioritized.choose(self.replay, noise.to(self.ring.size.device))
        return index, weight.to(noise.device)

    def take(self, index: Int[Tensor, "R N"]) -> Transition:
        """Copy the rows of slots."""
        return self.place.take(self.ring, index)

    def feedback(self, index: Int[Tensor, "R N"], update: Update) -> None:
        """Give rows their new priorities.

        Raises:
            ConfigError: The learner does not tell its errors.
        """
        if update.td_error is None:
            raise ConfigError(
                "priorities: the learner returned no td_error; expected the error of each row and agent. Set "
                "priorities=off, or let the learner return it."
            )
        priority = prioritized.joint(update.td_error, self.by)
        prioritized.reweight(self.replay, index, priority.to(index.device))

    def state_dict(self) -> dict[str, Tensor]:
        """Return what the next choices depend on beside the rows: priorities and counters (host sync)."""
        return prioritized.state(self.replay)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken, before or after the ring is given the rows.

        Raises:
            FileError: The state is not that of such a store.
        """
        prioritized.load(self.replay, state)

    def forget(self) -> None:
        """Start anew, without rows."""
        prioritized.forget(self.replay)


Store = Uniform | ByPriority
