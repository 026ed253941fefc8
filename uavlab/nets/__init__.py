"""Stacked networks: G equal ones evaluated as one."""
