"""Tools that measure where time and memory go: roofline, bottleneck, operator profile, batch size."""
