"""The Python interface: train, load and evaluate teams in a few lines; ``import uavlab as ul`` exposes it."""

from uavlab.experiment.run import Run

__all__ = ["Run"]
