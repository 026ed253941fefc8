"""Leader-follower path planning, batched over worlds."""

from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.envs.leader_follower.env import LeaderFollower, SlowLeaderFollower, steer

PLANS = {"steer": steer}

ENVIRONMENTS.register("leader_follower", Environment(LeaderFollower, learner="masac", baselines=PLANS))
ENVIRONMENTS.register("slow_leader_follower", Environment(SlowLeaderFollower, learner="masac", baselines=PLANS))
