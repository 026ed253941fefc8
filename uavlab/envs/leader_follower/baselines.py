"""A policy without learning: the leader steers to the goal past obstacles, followers steer to the leader.

Unlike a trained team, the plan sees all obstacles.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.envs.leader_follower.agents import FOLLOWER_LIMITS, LEADER_LIMITS
from uavlab.envs.leader_follower.env import LeaderFollower, State
from uavlab.ops.geometry import constant, wrap_angle

SIGHT = 120.0  # px of its way that the leader checks for obstacles
MARGIN = 45.0  # px from an obstacle at which the way is clear
AHEAD = 20.0  # px before the leader at which followers aim, so that they turn with it
TURNS = (0.0, *(sign * n * math.pi / 12 for n in range(1, 8) for sign in (1, -1)))  # rad from the goal, least first


def steer(env: LeaderFollower, state: State, noise: Float[Tensor, "B A"]) -> Float[Tensor, "B A 2"]:
    """Fly the leader to the goal as slowly as it can, around obstacles in its way, and followers to it.

    A follower's speed is such that it can slow down to the leader's speed by the time that it arrives.
    """
    heading = state.heading[:, :1]
    aim = state.pos[:, :1] + AHEAD * direction(heading) - state.pos[:, 1:]  # B F 2
    bearing = torch.cat((way(state)[:, None], torch.atan2(-aim[..., 1], aim[..., 0])), 1)
    away = wrap_angle(bearing - state.heading + math.pi) - math.pi
    (slow, turn, lowest, _), (brake, swing, _, _) = LEADER_LIMITS, FOLLOWER_LIMITS
    speed = state.speed[:, :1] + (2 * brake * state.gap).sqrt()
    change = torch.cat(((lowest - state.speed[:, :1]) / slow, (speed - state.speed[:, 1:]) / brake), 1)
    bend = torch.cat((away[:, :1] / turn, away[:, 1:] / swing), 1)
    return torch.stack((change, bend), -1).div(env.dt).clamp(-1, 1)


def way(state: State) -> Float[Tensor, " B"]:
    """Return the leader's heading (rad): of those that are clear the nearest to the goal's, else the clearest."""
    leader = state.pos[:, 0]
    goal = state.goal - leader
    bearing = torch.atan2(-goal[:, 1], goal[:, 0])[:, None] + constant(TURNS, goal.device, goal.dtype)  # B T
    reach = goal.norm(dim=-1, keepdim=True).clamp_max(SIGHT)
    along = direction(bearing)[:, :, None]  # B T 1 2
    offset = (state.obstacle - leader[:, None])[:, None]  # B 1 M 2
    passed = (offset * along).sum(-1).clamp_min(0).minimum(reach[..., None])  # B T M: where an obstacle is nearest
    clearance = (offset - passed[..., None] * along).norm(dim=-1).amin(-1)
    best = clearance.clamp_max(MARGIN).argmax(1, keepdim=True)  # the first one of several
    return bearing.gather(1, best)[:, 0]


def direction(heading: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead 2"]:
    """Return x and y of a heading; y points down."""
    return torch.stack((heading.cos(), -heading.sin()), -1)
