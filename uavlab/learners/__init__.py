"""The learners by name; a new one is its file with one registration, and its name here."""

from uavlab.learners import coma, masac

__all__ = ["coma", "masac"]
