"""The reward of largesone/uav-task-path-planning, by the environment's one definition of congestion.

Some of its terms have no counterpart: -75 for a move that does nothing, because such moves are masked; what an approach
earns, because a UAV that decides arrives; the terms of collaboration and of inefficiency, of which only the ranges are
known, at most 1.3 and 2 %. Of the costs of distance and time, too, only ranges are known: here they grow in proportion,
up to a side of the map, and the time in which 25 m/s cover it. An ideal number of UAVs is ``State.ideal``.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

if TYPE_CHECKING:
    from uavlab.envs.target_assignment.env import Assignment, State

SATISFIED, ALL, FIRST = 100.0, 200.0, 5.0  # a target, all targets, the first UAV at a target
MILESTONES = {0.25: 0.5, 0.5: 1.0, 0.75: 1.5, 0.9: 2.0}  # by completion; and at each decision
PROGRESS = 0.2  # times completion
DISTANCE, TIME = (0.03, 0.05), (0.02, 0.03)  # shares of what is gained that flying costs
NOMINAL = 25.0  # m/s
CROWD, SURPLUS, NEIGHBOUR = 2.0, 1.5, 0.5  # for a UAV beyond ideal, for twice the UAVs needed, for a neighbour too many
APART, FEW = 200.0, 2  # m within which a UAV is a neighbour, and neighbours that cost nothing
LIMITS = (-10.0, 300.0)


def published_reward(env: "Assignment", state: "State", after: "State") -> Float[Tensor, " B"]:
    """Return the published reward of a decision; 0 where nothing was given."""
    given = (state.rest - after.rest).sum(-1)  # B M
    ratio = (given / state.demand.sum(-1).clamp_min(1e-6)).sum(1)
    contribution = 10 + 40 * ratio + 15 * ratio.sqrt() + 10 * (ratio - 0.3).clamp_min(0)
    satisfied = ((after.rest.sum(-1) == 0) & (given > 0)).sum(1)
    first = ((given > 0) & ~state.served.any(1)).any(1)
    before, now = env.completion(state), env.completion(after)
    reached = sum(worth * ((before < mark) & (now >= mark)) for mark, worth in MILESTONES.items())
    gain = SATISFIED * satisfied + contribution + FIRST * first + reached + PROGRESS * now
    way = (state.left - after.left).sum(1) / env.side
    late = (after.time - state.time).sum(1) * NOMINAL / env.side
    share = sum(low + (high - low) * each.clamp_max(1) for (low, high), each in ((DISTANCE, way), (TIME, late)))
    active = (after.own.sum(-1) > 0).sum(1)
    total = gain * (1 - share) - _congestion(env, state, after, given > 0, active) / active.clamp_min(1)
    return torch.where(given.sum(1) > 0, (total + ALL * (now == 1)).clamp(*LIMITS), 0.0)


def _congestion(
    env: "Assignment", state: "State", after: "State", here: Bool[Tensor, "B M"], active: Tensor
) -> Float[Tensor, " B"]:
    """Return the published cost of congestion at a target that a UAV just served."""
    beyond = ((after.served.sum(1) - after.ideal).clamp_min(0) * here).sum(1)
    surplus = (active / (2 * after.targets) - 1).clamp_min(0)
    mover = after.left < state.left  # B N
    apart = (after.at - (after.at * mover[..., None]).sum(1, keepdim=True)).norm(dim=-1)
    near = ((apart <= APART) & ~mover & (after.speed > 0)).sum(1)
    return CROWD * beyond + SURPLUS * surplus + NEIGHBOUR * (near - FEW).clamp_min(0)
