"""Everything about speed and files of state: the seams, gradient steps, checkpoints."""
