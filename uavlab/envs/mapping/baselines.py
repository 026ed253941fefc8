"""Plans for mapping missions that nothing was learned for: what a learned team is compared with.

Each is a function of the environment, the state and uniform noise; planners see whole maps, not averages.
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.envs.mapping.env import Mapping, State
from uavlab.envs.mapping.geometry import MOVES, constant, covers
from uavlab.ops import belief_maps


def random(env: Mapping, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Choose among the moves that stay within the lattice, all alike."""
    legal = env.places.legal(state.place)
    rank = (noise * legal.sum(-1)).floor()  # which of them
    return (legal.cumsum(-1) > rank[..., None]).to(torch.uint8).argmax(-1)


def information_gain(env: Mapping, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Move to where one measurement is expected to teach most about targets, by each UAV's own map.

    Shares of what the moves of a UAV promise are lowered, in order of its number, by what others promise at the same
    place; the largest share wins, the first of equal ones.
    """
    legal = env.places.legal(state.place) & ~taken(state.place)
    after = state.place[:, :, None] + constant(MOVES, state.place.device)  # B A 6 3
    after = torch.where(legal[..., None], after, state.place[:, :, None])
    missions = torch.arange(len(after), device=after.device)[:, None, None]
    uavs = torch.arange(env.uavs, device=after.device)[:, None]
    x, y, z = after.unbind(-1)
    gain = promised(env, state.logits[:, :-1], state.mean.dtype)[missions, uavs, z, y, x] * legal
    share = gain / gain.sum(-1, keepdim=True).clamp_min(1e-12)
    same = (after[:, :, None, :, None] == after[:, None, :, None, :]).all(-1)  # B A A 6 6
    same = same & legal[:, :, None, :, None] & legal[:, None, :, None, :]
    for one in range(env.uavs):
        for other in range(env.uavs):
            if one != other:
                theirs = (same[:, one, other] * share[:, other, None, :]).amax(-1)
                share[:, one] = share[:, one] * (1 - theirs)
    return share.masked_fill(~legal, -1).argmax(-1)


def promised(env: Mapping, logits: Int[Tensor, "B A H H"], dtype: torch.dtype) -> Float[Tensor, "B A Z L L"]:
    """Expect what a measurement from each place takes away of weighted entropy, in 1000 bits.

    A footprint is rows times columns, so sums over all footprints of an altitude are two matrix products. What a cell
    promises depends on its log odds alone, which are whole steps: it is looked up.
    """
    inside, index = covers(env.places, logits.device, dtype), logits.int()
    found = [
        inside[altitude] @ cell_promise(flip, logits.device, dtype)[index] @ inside[altitude].T
        for altitude, flip in enumerate(env.flip)
    ]
    return torch.stack(found, 2) / 1000


@lru_cache
def cell_promise(flip: float, device: torch.device, dtype: torch.dtype) -> Float[Tensor, " K"]:
    """Expect what a measurement takes away of a cell's weighted entropy (bits), by steps of log odds.

    Steps below 0 count from the end, as in ``belief_maps.weight_entropy_table``.
    """
    steps = torch.cat((torch.arange(belief_maps.LIMIT + 1), torch.arange(-belief_maps.LIMIT, 0)))
    belief, told = belief_maps.belief(steps, torch.float64), belief_maps.log_odds_steps(flip)
    was = belief_maps.entropy(belief)
    hit, miss = (
        belief_maps.belief((steps + by).clamp(-belief_maps.LIMIT, belief_maps.LIMIT), torch.float64)
        for by in (told, -told)
    )
    lost = belief * (was - belief_maps.entropy(hit)) * belief_maps.target_weight(hit)
    lost = lost + (1 - belief) * (was - belief_maps.entropy(miss)) * belief_maps.target_weight(miss)
    return lost.to(device, dtype)


def taken(place: Int[Tensor, "B A 3"]) -> Tensor:
    """Tell which moves lead over or under a UAV of a smaller number."""
    there = place[:, :, None, :2] + constant(MOVES, place.device)[:, :2]  # B A 6 2
    at = (there[:, :, :, None] == place[:, None, None, :, :2]).all(-1)  # B A 6 A
    uavs = place.shape[1]
    smaller = torch.ones(uavs, uavs, dtype=torch.bool, device=place.device).tril(-1)
    return (at & smaller[:, None]).any(-1)


def sweep(env: Mapping, state: State, noise: Float[Tensor, "B A"], altitude: int | None = None) -> Int[Tensor, "B A"]:
    """Fly lanes to and fro at one altitude, by default the second, each UAV in the part of the lattice where it began.

    The lattice is cut into as many parts along each side as make one for every UAV. Lanes lie as far apart as
    footprints are wide; where the last one ends, it is flown again.
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
    """Give the first and last place of the part that a place lies in, along one axis."""
    part = place * sides // size
    return -(-part * size // sides), -(-(part + 1) * size // sides) - 1
