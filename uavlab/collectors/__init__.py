"""Collectors of batches from worlds: off-policy through replay, on-policy by whole episodes."""

from uavlab.collectors import entries

__all__ = ["entries"]
