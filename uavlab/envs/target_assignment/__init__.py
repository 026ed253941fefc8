"""Assignment: UAVs serve targets one decision after the other, batched over worlds."""

from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.envs.target_assignment.env import Assignment, greedy, nearest

ENVIRONMENTS.register(
    "assignment",
    Environment(Assignment, learner="mappo", baselines={"greedy": greedy, "nearest": nearest}),
)
