"""Cooperative spread: a team covers landmarks that belong to nobody, batched over worlds."""

from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.envs.spread.baselines import assignment
from uavlab.envs.spread.env import Spread

ENVIRONMENTS.register("spread", Environment(Spread, learner="masac", baselines={"assignment": assignment}))
