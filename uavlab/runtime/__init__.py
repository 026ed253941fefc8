"""Speed: the seams at which optimizations act on functions from outside, and the toggles that switch them."""

from uavlab.runtime import toggle_records

__all__ = ["toggle_records"]
