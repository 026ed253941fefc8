"""Collectors of batches from worlds: off-policy through replay, on-policy by episodes or steps of fixed length."""

from uavlab.collectors import fixed_length, off_policy, on_policy

__all__ = ["fixed_length", "off_policy", "on_policy"]
