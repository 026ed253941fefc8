"""How early a team can gather: a time before which no policy can, and a time at which sampled controls do.

A team is gathered while all followers are within the formation radius of the leader, as strict formation counts.
"""

import math
from dataclasses import replace
from itertools import product

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.envs.leader_follower.agents import LEADER_LIMITS, limits
from uavlab.envs.leader_follower.baselines import direction
from uavlab.envs.leader_follower.env import LeaderFollower, State
from uavlab.ops.geometry import distance, wrap_angle

DIRECTIONS = 64  # in which the reach of an agent is measured
ROUNDING = 1e-6  # px by which a point may be too far, so that no gathering is missed
TURNS = 26  # lengths of a turn among sampled controls, beside none


def reach(env: LeaderFollower, state: State, moves: int) -> Float[Tensor, "B A N K"]:
    """Return how far each agent can be in each of ``DIRECTIONS`` (px) after 0 to ``moves`` moves, at the most.

    The farthest place in a direction: the agent turns there at once, speeds up, and is slow as long as it flies away
    from it. Its speed may be high in one move and low in the next, which real agents cannot do, so the true reach is
    at most this. Places between farthest ones count, too. Borders and obstacles are left out: no start is nearer to a
    border than an agent flies while it turns round, so a border helps nobody.
    """
    gain, low, high = limits(env.followers + 1, env.dt, state.pos.device, state.pos.dtype)
    angle = torch.arange(DIRECTIONS, device=state.pos.device, dtype=state.pos.dtype) * (2 * math.pi / DIRECTIONS)
    away = wrap_angle(angle - state.heading[..., None] + math.pi) - math.pi
    count = torch.arange(1, moves + 1, device=state.pos.device)[:, None]
    left = (away.abs()[:, :, None] - gain[:, None, None, 1] * count).clamp_min(0)  # B A N K, rad
    change, speed = gain[:, None, None, 0] * count, state.speed[..., None, None]
    fast = torch.minimum(speed + change, high[:, None, None])
    slow = torch.maximum(speed - change, low[:, None, None])
    gone = (torch.where(left < math.pi / 2, fast, slow) * left.cos() * env.dt).cumsum(2)
    start = (state.pos[:, :, None] * direction(angle)).sum(-1)[:, :, None]
    return torch.cat((start, start + gone), 2)


def earliest_gathering(env: LeaderFollower, state: State, moves: int) -> Int[Tensor, " B"]:
    """Return before how many moves no policy has gathered the team; ``moves`` + 1 where it needs more than ``moves``.

    A leader who is gathered with its followers is within its own reach and, in each direction, at most the formation
    radius beyond the reach of each follower; the first move after which there is such a place is returned.
    """
    far = reach(env, state, moves)
    far = torch.minimum(far[:, 0], far[:, 1:].amin(1) + env.formation_radius)  # B N K
    return first(torch.stack([meet(each) for each in far.unbind(1)], 1))


def meet(far: Float[Tensor, "B K"]) -> Bool[Tensor, " B"]:
    """Return whether a point is at most ``far`` in each of K evenly spread directions.

    There is one if and only if some of the lines at distance ``far`` has a part that is inside of all others.
    """
    far = far.double()
    angle = torch.arange(far.shape[1], device=far.device, dtype=far.dtype) * (2 * math.pi / far.shape[1])
    apart = angle - angle[:, None]  # K lines, K others
    room = far[:, None] - far[:, :, None] * apart.cos()  # along a line, s * sin(apart) <= room
    slope = apart.sin()
    parallel = slope.abs() < 1e-9
    end = room / torch.where(parallel, 1.0, slope)
    least = torch.where(~parallel & (slope < 0), end, -math.inf).amax(2)
    most = torch.where(~parallel & (slope > 0), end, math.inf).amin(2)
    return ((least <= most + ROUNDING) & (~parallel | (room >= -ROUNDING)).all(2)).any(1)


def first(flags: Bool[Tensor, "B N"]) -> Int[Tensor, " B"]:
    """Return where the first flag is set; N where none is."""
    return torch.where(flags.any(1), flags.to(torch.uint8).argmax(1), flags.shape[1])


def bound(gathering: Float[Tensor, " B"], steps: float) -> Float[Tensor, ""]:
    """Return the largest strict formation of flights that take ``steps`` in the mean.

    ``gathering`` holds the steps of each flight before the team can be gathered. A flight of n steps that is not over
    before has a share of 1 - gathering / n at the most. With a given mean of n, the mean of these shares is largest
    where n grows with the root of ``gathering`` (Cauchy and Schwarz), so no choice of lengths passes the result.
    """
    return 1 - gathering.double().sqrt().mean() ** 2 / steps


def possible_gathering(env: LeaderFollower, state: State, moves: int) -> Int[Tensor, " B"]:
    """Return after how many moves sampled controls gather the team; ``moves`` + 1 where they need more (host sync).

    Each agent has its own control. Those by which the leader has reached the goal or an obstacle do not count.
    """
    env = replace(env, lagged=False)
    worlds, count = len(state.step), len(CONTROLS)
    state = State(**{name: part.repeat_interleave(count, 0) for name, part in vars(state).items()})
    live = torch.ones_like(state.step, dtype=torch.bool)
    gathered = []
    for move in range(moves + 1):
        live = live & ~env.terminated(state)[:, 0]
        pos = state.pos.view(worlds, count, -1, 2)
        leader = pos[:, :, None, 0].masked_fill(~live.view(worlds, count, 1, 1), math.inf)
        near = [distance(leader, pos[:, None, :, one]) < env.formation_radius for one in range(1, env.followers + 1)]
        gathered.append(torch.stack([each.any(2) for each in near]).all(0).any(1))
        if torch.stack(gathered).any(0).all():
            break
        rows = [control(*each, move * env.dt) for each in CONTROLS]
        action = pos.new_tensor(rows).repeat(worlds, 1)[:, None].expand(-1, env.followers + 1, -1)
        state = env.transition(state, action, pos.new_empty(len(action), 0))
    return first(torch.stack(gathered, 1))


def control(acceleration: int, side: int, seconds: float, then: int, time: float) -> tuple[float, float]:
    """Return acceleration and turn rate, of [-1, 1], at a time (s): a turn, then straight on or the opposite turn."""
    return acceleration, side if time < seconds - 1e-9 else -side * then


CONTROLS = tuple(product((1, -1), (1, -1), (n * math.pi / LEADER_LIMITS[1] / TURNS for n in range(TURNS + 1)), (0, 1)))
"""Sampled controls: all but the time of ``control``. The longest turn is half a circle of a leader."""
