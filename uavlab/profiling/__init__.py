"""Profiling of time and memory: roofline and bottleneck, batch size."""
