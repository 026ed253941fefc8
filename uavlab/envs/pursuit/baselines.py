"""A policy without learning for both groups: pursuers go the shortest way, evaders away from the nearest pursuer.

Unlike a trained team, the plan sees all obstacles.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.envs.pursuit.env import Pursuit, State
from uavlab.ops.action_sampling import sample_categorical


def chase(env: Pursuit, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Move every pursuer towards the free evader with the shortest way, and every evader to the safest cell.

    The safest cell has the longest way to the nearest pursuer. Pursuers do not agree on who goes where, and head for
    where evaders are; ``noise`` chooses among moves that are equally good.
    """
    way, (pursuers, evaders) = ways(env, state), env.groups(env.cells(state))
    of_pursuers, of_evaders = env.groups(way)
    length = after_moves(of_evaders, pursuers)  # B V P 5
    distance = length[..., 0].masked_fill(state.caught[..., None], torch.inf)
    nearest = distance.argmin(1)[:, None, :, None].expand(-1, 1, -1, length.shape[-1])
    good = torch.cat((-length.gather(1, nearest)[:, 0], after_moves(of_pursuers, evaders).amin(1)), 1)
    good = good.masked_fill(~env.legal(state), -torch.inf)
    best = good == good.amax(-1, keepdim=True)
    return sample_categorical(best.to(noise.dtype), noise)


def after_moves(way: Float[Tensor, "B I M"], cells: Int[Tensor, "B J 5"]) -> Float[Tensor, "B I J 5"]:
    """Return the length of the way from each UAV of one group to the cells that moves of the other group lead to."""
    return way.gather(2, cells.flatten(1)[:, None].expand(-1, way.shape[1], -1)).unflatten(2, cells.shape[1:])


def ways(env: Pursuit, state: State) -> Float[Tensor, "B A M"]:
    """Return the number of moves from each UAV to each cell, the wall included, numbered as by ``env.cells``.

    Walls, obstacles, and cells that are more than two sides away count as one move more than two sides.
    """
    size, steps = env.side + 2, 2 * env.side
    here = env.cells(state)[..., :1]
    way = state.pos.new_full((*here.shape[:2], size**2), steps + 1.0).scatter(2, here, 0.0).unflatten(2, (size, size))
    for _ in range(steps):
        around = way.roll(1, 2), way.roll(-1, 2), way.roll(1, 3), way.roll(-1, 3)
        nearest = torch.stack((way, *(each + 1 for each in around))).amin(0)
        way = nearest.masked_fill(state.blocked[:, None], steps + 1.0)
    return way.flatten(2)
