"""Tools that measure where time and memory go: roofline and bottleneck, operator profile, batch size."""
