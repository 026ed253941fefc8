"""Proximal policy optimization of teams: ``mappo`` with critics of the whole team, ``ippo`` with those of one agent."""

from uavlab.core.registry import LEARNERS
from uavlab.learners.ppo.ppo import IPPO, PPO

LEARNERS.register("mappo", PPO)
LEARNERS.register("ippo", IPPO)
