"""Flight logs: readers of four formats, columns, units and resampling."""
