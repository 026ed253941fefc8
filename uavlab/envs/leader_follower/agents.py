"""Where leader, followers and obstacles start, how fast agents move, and the units of what they observe."""

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.ops.geometry import constant

LENGTH, SPEED, TURN = 1000.0, 30.0, 360 / 57.3  # units of observations: px, px/s, and the published turn in radians
LEADER_UNITS, FOLLOWER_UNITS = ((LENGTH, LENGTH, SPEED, TURN, LENGTH, LENGTH, last) for last in (1.0, SPEED))
LEADER_LIMITS, FOLLOWER_LIMITS = (0.3, 0.6, 10.0, 20.0), (0.6, 1.2, 10.0, 40.0)
"""Largest acceleration (px/s^2), largest turn rate (rad/s), lowest and highest speed (px/s)."""
LEADER_START, FOLLOWER_START = (300, 500, 10, 100, 50, 10), (400, 500, 20, 100, 50, 10)
"""Least x, y (px) and speed (px/s) of published starts, then their ranges; starts are integers, both ends included."""


def whole_numbers(unit: Tensor, ranges: tuple) -> Tensor:
    """Turn uniform numbers into integers; ``ranges`` hold the least ones, then the largest minus the least."""
    low, width = constant(ranges, unit.device, unit.dtype).chunk(2, -1)
    return low + (unit * (width + 1)).floor()


def start_agents(unit: Float[Tensor, "B A 3"]) -> Float[Tensor, "B A 3"]:
    """Return x, y (px) and speed (px/s) of leader and followers."""
    return whole_numbers(unit, (LEADER_START, *[FOLLOWER_START] * (unit.shape[1] - 1)))


def start_obstacles(
    unit: Float[Tensor, "B M 3"], speed: float
) -> tuple[Float[Tensor, "B M 2"], Float[Tensor, "B M 2"]]:
    """Return places (px) and velocities (px/s) of obstacles; the first one is where the published one stands."""
    first = whole_numbers(unit[:, :1, :2], (350, 400, 0, 50))
    others = whole_numbers(unit[:, 1:, :2], (200, 250, 400, 200))
    angle = unit[..., 2] * (2 * math.pi)
    return torch.cat((first, others), 1), speed * torch.stack((angle.cos(), angle.sin()), -1)


def units(followers: int, like: Tensor) -> Float[Tensor, "A 7"]:
    """Return the units of observations, in the type of ``like``."""
    return constant((LEADER_UNITS, *[FOLLOWER_UNITS] * followers), like.device, like.dtype)


@lru_cache
def limits(agents: int, dt: float, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gains of (acceleration, turn rate) per step, lowest and highest speed, by agent."""
    rows = torch.tensor([LEADER_LIMITS] + [FOLLOWER_LIMITS] * (agents - 1), device=device, dtype=dtype)
    return rows[:, :2] * dt, rows[:, 2], rows[:, 3]
