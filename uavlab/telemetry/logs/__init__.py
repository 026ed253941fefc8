"""Flight logs: readers of four formats, units, columns, resampling."""
