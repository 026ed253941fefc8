"""The runtime: seams where optimizations wrap functions from outside, and the toggles that select them."""

from uavlab.runtime import toggle_records

__all__ = ["toggle_records"]
