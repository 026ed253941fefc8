"""Leader-follower path planning, batched over worlds."""

from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.envs.leader_follower.env import LeaderFollower, SlowLeaderFollower

ENVIRONMENTS.register("leader_follower", Environment(LeaderFollower, learner="masac"))
ENVIRONMENTS.register("slow_leader_follower", Environment(SlowLeaderFollower, learner="masac"))
