"""A policy without learning: every UAV is assigned a landmark and flies there.

Unlike a trained team, the plan sees all and decides for all.
"""

from itertools import permutations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.envs.spread.env import Spread, State
from uavlab.ops.geometry import constant

MOST = 4  # UAVs whose assignments are all compared, 24 of them
RESPONSE = 0.2  # s: time constant of the approach; at least two steps, because actions are held for one


def assignment(env: Spread, state: State, noise: Float[Tensor, "B A"]) -> Float[Tensor, "B A 2"]:
    """Fly every UAV to a landmark of its own, without regard to collisions.

    Up to 4 UAVs take the assignment of the shortest paths in sum, in which no two paths cross; larger teams take the
    shortest path first.
    """
    gap = env.gap(state)
    number = shortest(gap) if env.uavs <= MOST else nearest_first(gap)
    target = state.landmark.gather(1, number[..., None].expand(-1, -1, 2))
    return steer(env, target - state.pos, state.vel)


def shortest(gap: Float[Tensor, "B A A"]) -> Int[Tensor, "B A"]:
    """Return the landmark of each UAV in the assignment with the smallest sum of distances."""
    uavs = gap.shape[1]
    choices = constant(tuple(permutations(range(uavs))), gap.device, torch.int64)
    length = gap[:, torch.arange(uavs, device=gap.device), choices].sum(-1)
    return choices[length.argmin(1)]


def nearest_first(gap: Float[Tensor, "B A A"]) -> Int[Tensor, "B A"]:
    """Return the landmark of each UAV if the nearest pair is assigned first, then the nearest pair of the others."""
    uavs = gap.shape[1]
    each = torch.arange(uavs, device=gap.device)
    number = torch.zeros_like(gap[:, 0], dtype=torch.int64)
    for _ in range(uavs):
        best = gap.flatten(1).argmin(1, keepdim=True)
        uav, landmark = each == best // uavs, each == best % uavs
        number = torch.where(uav, best % uavs, number)
        gap = gap.masked_fill(uav[:, :, None] | landmark[:, None], torch.inf)
    return number


def steer(env: Spread, offset: Float[Tensor, "B A 2"], vel: Float[Tensor, "B A 2"]) -> Float[Tensor, "B A 2"]:
    """Return actions that close an offset without overshoot: PD control, with the drag of the motion made up for."""
    response = max(RESPONSE, 2 * env.dt)
    acceleration = offset / response**2 - 2 * vel / response
    return ((env.lag * acceleration + vel) / env.max_speed).clamp(-1, 1)
