"""Profiling of time and memory: roofline and bottleneck, operator profile, batch size."""
