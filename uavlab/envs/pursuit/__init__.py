"""Pursuit: two opposing groups on a grid, of unequal size and with unequal observations, batched over worlds."""

from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.envs.pursuit.baselines import chase
from uavlab.envs.pursuit.env import Pursuit

ENVIRONMENTS.register("pursuit", Environment(Pursuit, learner="mappo", baselines={"chase": chase}))
