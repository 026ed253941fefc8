"""Stacked networks: G of them evaluated as one."""
