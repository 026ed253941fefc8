"""Baselines for mapping missions: policies without learning.

Each is a function of the environment, the state and uniform noise. They use whole maps, not averages.
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.envs.mapping.env import Mapping, State
from uavlab.envs.mapping.geometry import MOVES, covers
from uavlab.ops.belief_maps import LIMIT, belief, entropy, log_odds_steps, target_weight
from uavlab.ops.geometry import constant


def random(env: Mapping, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Choose uniformly among the moves that stay within the lattice."""
    legal = env.places.legal(state.place)
    rank = (noise * legal.sum(-1)).floor()
    return (legal.cumsum(-1) > rank[..., None]).to(torch.uint8).argmax(-1)


def information_gain(env: Mapping, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Move to the place with the largest expected information gain about targets, by each UAV's own map.

    The gains of a UAV's moves are divided by their sum. In order of the UAVs' numbers, each share is multiplied by
    1 minus the largest share of every other UAV for the same place; the first of the largest shares is chosen.
    """
    legal = env.places.legal(state.place) & ~blocked_moves(state.place)
    after = state.place[:, :, None] + constant(MOVES, state.place.device)  # B A 6 3
    after = torch.where(legal[..., None], after, state.place[:, :, None])
    missions = torch.arange(len(after), device=after.device)[:, None, None]
    uavs = torch.arange(env.uavs, device=after.device)[:, None]
    x, y, z = after.unbind(-1)
    gain = expected_gain(env, state.logits[:, :-1], state.mean.dtype)[missions, uavs, z, y, x] * legal
    share = gain / gain.sum(-1, keepdim=True).clamp_min(1e-12)
    same = (after[:, :, None, :, None] == after[:, None, :, None, :]).all(-1)  # B A A 6 6
    same = same & legal[:, :, None, :, None] & legal[:, None, :, None, :]
    for one in range(env.uavs):
        for other in range(env.uavs):
            if one != other:
                theirs = (same[:, one, other] * share[:, other, None, :]).amax(-1)
                share[:, one] = share[:, one] * (1 - theirs)
    return share.masked_fill(~legal, -1).argmax(-1)


def expected_gain(env: Mapping, logits: Int[Tensor, "B A H H"], dtype: torch.dtype) -> Float[Tensor, "B A Z L L"]:
    """Return the weighted entropy that a measurement from each place is expected to remove (in 1000 bits).

    Footprints are rectangles, so sums over all footprints of an altitude are two matrix products. The gain of a cell
    depends on its log odds alone, which are whole steps, and is read from a table.
    """
    inside, index = covers(env.places, logits.device, dtype), logits.int()
    gains = [
        inside[altitude] @ expected_cell_gain(flip, logits.device, dtype)[index] @ inside[altitude].T
        for altitude, flip in enumerate(env.flip)
    ]
    return torch.stack(gains, 2) / 1000


@lru_cache
def expected_cell_gain(flip: float, device: torch.device, dtype: torch.dtype) -> Float[Tensor, " K"]:
    """Return the weighted entropy of a cell that a measurement is expected to remove (bits), by steps of log odds.

    With belief p, weight w and entropy h it is p (h - h+) w+ + (1 - p) (h - h-) w-, where + and - are the states after
    a positive and a negative measurement. Steps below 0 count from the end, as in ``belief_maps.weight_entropy_table``.
    """
    steps = torch.cat((torch.arange(LIMIT + 1), torch.arange(-LIMIT, 0)))
    chance, change = belief(steps, torch.float64), log_odds_steps(flip)
    before = entropy(chance)
    hit, miss = (belief((steps + by).clamp(-LIMIT, LIMIT), torch.float64) for by in (change, -change))
    gain = chance * (before - entropy(hit)) * target_weight(hit)
    gain = gain + (1 - chance) * (before - entropy(miss)) * target_weight(miss)
    return gain.to(device, dtype)


def blocked_moves(place: Int[Tensor, "B A 3"]) -> Tensor:
    """Mark the moves that lead above or below a UAV with a smaller number."""
    target = place[:, :, None, :2] + constant(MOVES, place.device)[:, :2]  # B A 6 2
    at = (target[:, :, :, None] == place[:, None, None, :, :2]).all(-1)  # B A 6 A
    uavs = place.shape[1]
    smaller = torch.ones(uavs, uavs, dtype=torch.bool, device=place.device).tril(-1)
    return (at & smaller[:, None]).any(-1)


def sweep(env: Mapping, state: State, noise: Float[Tensor, "B A"], altitude: int | None = None) -> Int[Tensor, "B A"]:
    """Fly lanes back and forth at one altitude, by default the second, each UAV in its own part of the lattice.

    Each side of the lattice is cut into ceil(sqrt(UAVs)) parts, and a UAV stays in the part where it starts. Lanes are
    as far apart as footprints are wide; after the last lane, a UAV flies back along it.
    """
    up, west, _, north, east, down = range(len(MOVES))
    altitude = min(1, len(env.flip) - 1) if altitude is None else altitude
    lane = max(1, int(2 * env.places.half(altitude) * env.cell / env.spacing))
    sides = math.ceil(math.sqrt(env.uavs))
    x, y, z = state.place.unbind(-1)
    first, last = _part(x, sides, env.lattice)
    begin, end = _part(y, sides, env.lattice)
    even = ((y - begin) // lane) % 2 == 0
    between = (y - begin) % lane != 0
    done = torch.where(even, x >= last, x <= first)
    along = torch.where(even, east, west)
    back = torch.where(even, west, east)
    across = torch.where(y < end, north, back)
    plan = torch.where((between & (y < end)) | done, across, along)
    return torch.where(z > altitude, down, torch.where(z < altitude, up, plan))


def _part(place: Int[Tensor, "B A"], sides: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the first and last place of the part that contains a place, along one axis."""
    part = place * sides // size
    return -(-part * size // sides), -(-(part + 1) * size // sides) - 1
