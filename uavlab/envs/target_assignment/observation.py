"""What the team of the assignment task observes.

| observation of a UAV |                                  | of a target |                                       |
| -------------------- | -------------------------------- | ----------- | ------------------------------------- |
| 0                    | 1 if it has a legal move, or 0   | 0           | 1 if it needs something, or 0         |
| 1, 2                 | x, y, in sides of the map        | 1, 2        | x, y, in sides of the map             |
| 3, 4                 | resources, in ordinary loads     | 3, 4        | needs, in ordinary loads              |
| 5                    | range that is left, in sides     | 5, 6        | open share of its demand, by resource |
| 6                    | time flown, in sides per 25 m/s  | 7           | UAVs that served it, over ideal       |
| 7                    | speed, in 25 m/s                 |             |                                       |

Rows of UAVs come first, then those of targets, then how many nearest UAVs and nearest targets are neighbours of a UAV;
empty slots are zeros. This vector is the flat form of the observation. ``spec.entities.split`` returns its form as a
graph, UAVs and targets with their features, and ``spec.entities.masks`` which of them are alive and visible.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from torch import Tensor

from uavlab.core.types import ChoiceObs

if TYPE_CHECKING:
    from uavlab.envs.target_assignment.env import Assignment, State

FEATURES = 8  # of a UAV, and of a target
SPEED = 25.0  # m/s: that of observations


def observe(env: "Assignment", state: "State") -> ChoiceObs:
    """Return the observation of the team and its legal moves."""
    legal, dtype = state.legal, state.own.dtype
    real = (state.speed > 0).to(dtype)[..., None]
    at = state.at / env.side * real
    active = legal.any((2, 3)).to(dtype)[..., None]
    uav = torch.cat(
        (
            active,
            at,
            state.own / env.load,
            (state.left / env.side)[..., None],
            (state.time * SPEED / env.side)[..., None],
            (state.speed / SPEED)[..., None],
        ),
        -1,
    )
    there = (state.demand[..., :1] > 0).to(dtype)
    target = torch.cat(
        (
            (state.rest.amax(-1, keepdim=True) > 0).to(dtype),
            state.pos[:, env.rows :] / env.side * there,
            state.rest / env.load,
            state.rest / state.demand.clamp_min(1e-6),
            (state.served.sum(1) / state.ideal)[..., None].to(dtype),
        ),
        -1,
    )
    features = torch.cat((uav.flatten(1), target.flatten(1), state.near), -1)[:, None]
    return ChoiceObs(features, with_one(legal.flatten(1))[:, None])


def with_one(legal: Bool[Tensor, "B E"]) -> Bool[Tensor, "B E"]:
    """Return legal moves with the first one added where there is none: an ended task still has a move."""
    first = torch.arange(legal.shape[1], device=legal.device) == 0
    return legal | (first & ~legal.any(1, keepdim=True))
