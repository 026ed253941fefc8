"""The runtime: seams where optimizations wrap functions from outside, and the toggles that select them."""
