"""The learners; each registers itself when it is imported here."""

from uavlab.learners import coma, masac, ppo

__all__ = ["coma", "masac", "ppo"]
