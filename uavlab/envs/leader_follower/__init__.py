"""Leader-follower path planning, batched over worlds."""

from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.envs.leader_follower.delayed import SlowLeaderFollower
from uavlab.envs.leader_follower.env import LeaderFollower

ENVIRONMENTS.register("leader_follower", Environment(LeaderFollower, learner="masac"))
ENVIRONMENTS.register("slow_leader_follower", Environment(SlowLeaderFollower, learner="masac"))
