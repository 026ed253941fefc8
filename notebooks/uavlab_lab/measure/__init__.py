"""What measures a run: calls in turn, the profile of a preset, and what this machine offers."""
