"""Benchmarks: timing, comparison, profiles and the machine report."""
