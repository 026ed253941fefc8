"""What every collector shares: answers for the parts of the ``Source`` protocol that it has no use for."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from uavlab.core.protocols import CheckedTensors
from uavlab.core.types import Batch, Update


class CollectorBase:
    """A source without replay, priorities or host-side work around a captured cycle."""

    def before_cycle(self) -> None:
        """Run what a captured cycle must not contain, before the cycle."""

    def after_cycle(self) -> None:
        """Run what a captured cycle must not contain, after the cycle."""

    def feedback(self, batch: Batch, update: Update) -> None:
        """Use the errors of an update, for priorities."""

    def tensors_to_check(self) -> CheckedTensors:
        """Return the tensors of a checkpoint that must be finite and were not checked before."""
        return {}

    def segments(self, saved: Iterable[str]) -> dict[str, dict[str, Tensor] | None]:
        """Return replay in segments; None stands for a segment that is in ``saved``."""
        return {}

    def load_segments(self, segments: Mapping[str, Mapping[str, Tensor]] | None) -> None:
        """Restore replay from its segments; None leaves it empty."""

    def rows(self) -> dict[str, Tensor]:
        """Return replay as it lies in memory, for digests."""
        return {}
