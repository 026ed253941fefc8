"""Measurements and figures of single notebooks, which are not part of the library."""
