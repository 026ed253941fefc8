"""Multi-agent soft actor-critic (MASAC): batched, as a loop over agents, and by vmap."""

from uavlab.core.registry import LEARNERS
from uavlab.learners.masac import loop
from uavlab.learners.masac.masac import FORMS, MASAC

__all__ = ["FORMS", "MASAC", "loop"]

LEARNERS.register("masac", MASAC)
