"""Sweeps: many runs of one file, at once, in processes of their own, to one table."""
