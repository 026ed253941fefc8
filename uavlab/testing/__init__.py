"""Checks for authors of environments and of learners."""

from uavlab.testing.environment import EnvReport, check_env
from uavlab.testing.learner import LearnerReport, check_learner

__all__ = ["EnvReport", "LearnerReport", "check_env", "check_learner"]
