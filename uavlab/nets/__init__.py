"""Stacked networks: G networks of the same architecture, evaluated together."""
