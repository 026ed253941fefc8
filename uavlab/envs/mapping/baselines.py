"""Baselines for mapping missions: functions of the environment, the state and uniform noise, which use whole maps."""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.envs.mapping.env import Mapping, State
from uavlab.envs.mapping.geometry import MOVES, covers
from uavlab.ops.action_sampling import open_moves
from uavlab.ops.belief_maps import LIMIT, belief, entropy, log_odds_steps, target_weight, weighted_entropy
from uavlab.ops.geometry import constant

CellGain = Callable[[float, torch.device, torch.dtype], Tensor]
"""Function of a sensor's error probability, a device and a dtype that returns gains by steps of log odds."""


def random(env: Mapping, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Choose uniformly among the moves that stay within the lattice."""
    legal = env.places.legal(state.place)
    rank = (noise * legal.sum(-1)).floor()
    return (legal.cumsum(-1) > rank[..., None]).to(torch.uint8).argmax(-1)


def information_gain(env: Mapping, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Move to the place with the largest expected information gain about targets, by each UAV's own map.

    The gains of a UAV's moves are divided by their sum. In order of the UAVs' numbers, each share is multiplied by
    1 minus the share of every other UAV for the same place; the first of the largest shares is chosen.

    Source:
        The information-gain planner of Westheider, Rückin, Popović 2023.
    """
    return _largest_share(env, state, expected_cell_gain)


def expected_entropy(env: Mapping, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Move as ``information_gain`` does, but by the exact expectation of the weighted entropy after a measurement."""
    return _largest_share(env, state, expected_cell_fall)


def _largest_share(env: Mapping, state: State, table: CellGain) -> Int[Tensor, "B A"]:
    legal = free_moves(env, state.place)
    gain = expected_gain(env, state.logits[:, :-1], state.mean.dtype, table)
    share, same = shares_of_gain(state.place, gain, legal)
    return discount_rivals(share, same).masked_fill(~legal, -1).argmax(-1)


def shares_of_gain(
    place: Int[Tensor, "B A 3"], gain: Float[Tensor, "B A Z L L"], legal: Bool[Tensor, "B A 6"]
) -> tuple[Float[Tensor, "B A 6"], Bool[Tensor, "B A A 6 6"]]:
    """Return each move's share of the gain of a UAV's legal moves, and which moves of two UAVs end in one place."""
    after = place[:, :, None] + constant(MOVES, place.device, torch.int64)  # B A 6 3
    x, y, z = torch.where(legal[..., None], after, place[:, :, None]).unbind(-1)
    missions = torch.arange(len(place), device=place.device)[:, None, None]
    uavs = torch.arange(place.shape[1], device=place.device)[:, None]
    promised = gain[missions, uavs, z, y, x] * legal
    same = (after[:, :, None, :, None] == after[:, None, :, None, :]).all(-1)
    return (
        promised / promised.sum(-1, keepdim=True).clamp_min(1e-12),
        same & legal[:, :, None, :, None] & legal[:, None, :, None, :],
    )


def discount_rivals(share: Float[Tensor, "B A 6"], same: Bool[Tensor, "B A A 6 6"]) -> Float[Tensor, "B A 6"]:
    """Multiply shares, UAV by UAV, by 1 minus the present share of every other UAV for the same place."""
    share = share.clone()
    for one in range(share.shape[1]):
        for other in range(share.shape[1]):
            if one != other:
                theirs = (same[:, one, other] * share[:, other, None, :]).sum(-1)  # at most one move leads there
                share[:, one] = share[:, one] * (1 - theirs)
    return share


def expected_gain(
    env: Mapping,
    logits: Int[Tensor, "B A H H"],
    dtype: torch.dtype,
    cell_gain: CellGain | None = None,
) -> Float[Tensor, "B A Z L L"]:
    """Return the weighted entropy that a measurement from each place is expected to remove (in 1000 bits)."""
    # footprints are rectangles: sums over all of an altitude are two products; gains depend on log odds alone, a table
    inside, index = covers(env.places, logits.device, dtype), logits.int()
    table = cell_gain or expected_cell_gain
    gains = [
        inside[altitude] @ table(flip, logits.device, dtype)[index] @ inside[altitude].T
        for altitude, flip in enumerate(env.flip)
    ]
    return torch.stack(gains, 2) / 1000


@lru_cache
def expected_cell_gain(flip: float, device: torch.device, dtype: torch.dtype) -> Float[Tensor, " K"]:
    """Return the weighted entropy of a cell that a measurement is expected to remove (bits), by steps of log odds.

    With belief p, weight w and entropy h it is p (h - h+) w+ + (1 - p) (h - h-) w-, where + and - are the states after
    a positive and a negative measurement. As published, outcomes weigh by the belief, not by the probability of a
    positive measurement, which the sensor draws towards 0.5. Steps below 0 count from the end, as in
    ``belief_maps.weight_entropy_table``.
    """
    steps = torch.cat((torch.arange(LIMIT + 1), torch.arange(-LIMIT, 0)))
    chance, change = belief(steps, torch.float64), log_odds_steps(flip)
    before = entropy(chance)
    hit, miss = (belief((steps + by).clamp(-LIMIT, LIMIT), torch.float64) for by in (change, -change))
    gain = chance * (before - entropy(hit)) * target_weight(hit)
    gain = gain + (1 - chance) * (before - entropy(miss)) * target_weight(miss)
    return gain.to(device, dtype)


@lru_cache
def expected_cell_fall(flip: float, device: torch.device, dtype: torch.dtype) -> Float[Tensor, " K"]:
    """Return by how much a cell's weighted entropy is expected to fall (bits), by steps of log odds.

    Outcomes weigh by their probabilities under the sensor, and each entropy by the weight of its own belief.
    """
    steps = torch.cat((torch.arange(LIMIT + 1), torch.arange(-LIMIT, 0)))
    chance, change = belief(steps, torch.float64), log_odds_steps(flip)
    hit, miss = (belief((steps + by).clamp(-LIMIT, LIMIT), torch.float64) for by in (change, -change))
    positive = chance * (1 - flip) + (1 - chance) * flip
    after = positive * weighted_entropy(hit) + (1 - positive) * weighted_entropy(miss)
    return (weighted_entropy(chance) - after).to(device, dtype)


def free_moves(env: Mapping, place: Int[Tensor, "B A 3"]) -> Bool[Tensor, "B A 6"]:
    """Mark legal moves that do not lead above or below UAVs with smaller numbers; all of them if none would remain."""
    spot = place[..., 1] * env.lattice + place[..., 0]
    legal, target = env.places.legal(place), env.target_cell(place)
    uavs = range(place.shape[1])
    return torch.stack([open_moves(legal[:, i], target[:, i], spot[:, :i]) for i in uavs], 1)


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
