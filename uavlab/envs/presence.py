"""Agents that take no part in a world, as ``takes_part`` of an environment says."""

from typing import TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.protocols import Env

S = TypeVar("S")


def may_lack_agents(env: Env[S]) -> bool:
    """Return whether some agents may take no part in a world (``takes_part`` of the environment)."""
    return env.spec.deaths and hasattr(env, "takes_part")


def live_at_start(env: Env[S], state: S, worlds: int, device: torch.device) -> Bool[Tensor, "B A"]:
    """Return which agents go on in new worlds: all, or those that take part."""
    if may_lack_agents(env):
        return env.takes_part(state)  # type: ignore[attr-defined]
    return torch.ones(worlds, env.spec.agents, dtype=torch.bool, device=device)


def mean_reward(env: Env[S], state: S, reward: Float[Tensor, "B A"]) -> Float[Tensor, " B"]:
    """Return the mean reward of the agents that take part in each world."""
    if not may_lack_agents(env):
        return reward.mean(-1)
    there = env.takes_part(state)  # type: ignore[attr-defined]
    return (reward * there).sum(-1) / there.sum(-1).clamp_min(1)
