"""Live runs: training on a thread of its own, and what a change of a setting does to its speed."""
