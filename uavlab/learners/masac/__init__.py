"""Multi-agent soft actor-critic: the update, and its networks as a matrix, as lists and through ``vmap``."""
