"""A base class of sources with default methods."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from uavlab.core.protocols import CheckedTensors
from uavlab.core.types import Batch, Update


class CollectorBase:
    """A source without replay, priorities or host-side work around a captured cycle."""

    def before_cycle(self) -> None:
        """Run the work before a cycle that a CUDA graph must not capture."""

    def after_cycle(self) -> None:
        """Run the work after a cycle that a CUDA graph must not capture."""

    def feedback(self, batch: Batch, update: Update) -> None:
        """Use the result of the update on a batch, such as for priorities."""

    def tensors_to_check(self) -> CheckedTensors:
        """Return the saved tensors that were not checked when they were computed."""
        return {}

    def segments(self, saved: Iterable[str]) -> dict[str, dict[str, Tensor] | None]:
        """Return the rows of replay as immutable segments; None stands for a segment that is in ``saved``."""
        return {}

    def load_segments(self, segments: Mapping[str, Mapping[str, Tensor]] | None) -> None:
        """Restore the rows of replay; with None replay is empty."""

    def rows(self) -> dict[str, Tensor]:
        """Return replay as it lies in memory."""
        return {}
