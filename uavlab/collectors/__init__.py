"""From worlds to batches: off-policy through replay, on-policy by whole episodes."""

from uavlab.collectors import entries

__all__ = ["entries"]
