"""Footprints cut out of maps one by one, in compiled loops: a CPU's way to learn from measurements.

numba compiles them when they are first called, which takes seconds, and keeps the result beside this file. Loops run
over views of single rows: where an index cannot be negative, cells are worked off several at a time.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numba
import numpy as np
import torch

from uavlab.envs.mapping.fusion import DIGITS
from uavlab.ops import belief_maps

Array = np.ndarray[Any, np.dtype[Any]]
ZERO = 2**15  # where tables that are looked up by any int16 hold what 0 means


def compiled(loops: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call, and keep the result for the next process where there is a place for it."""
    make = partial(numba.njit, nogil=True, fastmath={"reassoc", "contract", "nsz"})
    try:
        return make(cache=True)(loops)
    except RuntimeError:  # neither this folder nor the user's own can be written
        return make()(loops)


@lru_cache
def tables(dtype: torch.dtype) -> tuple[Array, Array, Array]:
    """Give leaning, interest and entropy (bits) of each int16 as steps of log odds."""
    logits = torch.arange(-ZERO, ZERO).clamp(-belief_maps.LIMIT, belief_maps.LIMIT)
    chance = belief_maps.belief(logits, torch.float64)
    found = (
        belief_maps.signed_belief(logits, dtype),
        belief_maps.target_weight(chance).to(dtype),
        belief_maps.entropy(chance).to(dtype),
    )
    return tuple(np.asarray(each) for each in found)  # type: ignore[return-value]


@compiled
def learn(
    logits: Array,
    means: Array,
    near: Array,
    truth: Array,
    place: Array,
    box: Array,
    heard: Array,
    noise: Array,
    flip: Array,
    steps: Array,
    whole: Array,
    part: Array,
    table: tuple[Array, Array, Array],
    added: Array,
    lost: Array,
) -> None:
    """Write what each mission learns into ``logits``, ``means``, ``near``, ``added`` and ``lost``; see ``fusion.fuse``.

    Raises:
        IndexError: A box or place lies outside, or has more cells than there are numbers for.
    """
    missions, uavs = box.shape[:2]
    side, parts = logits.shape[-1], whole.shape[0]
    told, team = np.empty((side, side), np.int16), np.empty((side, side), logits.dtype)
    change = np.empty((side, side), means.dtype)
    fresh = np.empty(side, means.dtype)
    first, end = _spans(whole, 0, side)
    for mission in range(missions):
        maps = logits[mission]
        team[:] = maps[-1]
        for uav in range(uavs):
            top, left, bottom, right = box[mission, uav]
            x, y, z = place[mission, uav]
            height, width = bottom - top, right - left
            inside = 0 <= top <= bottom <= side and 0 <= left <= right <= side and height * width <= 2 * noise.shape[2]
            if not (inside and 0 <= x < parts and 0 <= y < parts and 0 <= z < len(flip)):
                raise IndexError("a box or place outside of the map, or too little noise for it")
            for row in range(height):
                hidden = truth[mission, top + row, left:right]
                _measure(hidden, noise[mission, uav], row * width, flip[z], steps[z], told[row, :width])
            for listener in range(len(maps)):
                if heard[mission, listener, uav]:
                    for row in range(height):
                        _learn(maps[listener, top + row, left:right], told[row, :width], table[0], change[row, :width])
                    cut = change[:height, :width]
                    _average(cut, top, left, whole, first, end, whole, first, end, means[mission, listener])
        for uav in range(uavs):
            top, left, bottom, right = box[mission, uav]
            x, y, z = place[mission, uav]
            for row in range(top, bottom):
                _lean(maps[uav, row, left:right], table[0], change[row - top, : right - left])
            cut, rows, columns = change[: bottom - top, : right - left], part[z, y], part[z, x]
            near[mission, uav] = 0
            down, across = _spans(rows, top, bottom), _spans(columns, left, right)
            _average(cut, top, left, rows, down[0], down[1], columns, across[0], across[1], near[mission, uav])
            for row in range(top, bottom):
                fresh[:] = 1
                for other in range(uav):  # sums count a cell once
                    if box[mission, other, 0] <= row < box[mission, other, 2]:
                        fresh[box[mission, other, 1] : box[mission, other, 3]] = 0
                then, now = team[row, left:right], maps[-1, row, left:right]
                more, less = _weigh(then, now, fresh[left:right], table[1], table[2])
                added[mission] += more
                lost[mission] += less


@compiled
def _spans(weights: Array, start: int, end: int) -> tuple[Array, Array]:
    """Give where the weights of each row begin and end to differ from 0, within those from ``start`` to ``end``."""
    low, high = np.full(len(weights), start), np.full(len(weights), end)
    for row in range(len(weights)):
        while low[row] < high[row] and weights[row, low[row]] == 0:
            low[row] += 1
        while low[row] < high[row] and weights[row, high[row] - 1] == 0:
            high[row] -= 1
    return low, high


@compiled
def _measure(truth: Array, noise: Array, begin: int, flip: float, step: int, told: Array) -> None:
    """Tell of the cells numbered from ``begin`` by how many steps log odds rise, or fall."""
    full = min(max(len(noise) - begin, 0), len(told))
    number = noise[begin : begin + full]
    for cell in range(full):
        told[cell] = step if (number[cell] < flip) != truth[cell] else -step
    number, truth, told = noise[begin + full - len(noise) :], truth[full:], told[full:]
    for cell in range(len(told)):
        digits = number[cell] * noise.dtype.type(DIGITS)
        told[cell] = step if (digits - np.floor(digits) < flip) != truth[cell] else -step


@compiled
def _learn(row: Array, told: Array, leanings: Array, change: Array) -> None:
    """Add what was told, and give the change of leanings."""
    for cell in range(len(row)):
        old = np.int32(row[cell])
        new = min(max(old + np.int32(told[cell]), np.int32(-belief_maps.LIMIT)), np.int32(belief_maps.LIMIT))
        row[cell] = new
        change[cell] = leanings[np.uint32(new + ZERO)] - leanings[np.uint32(old + ZERO)]


@compiled
def _lean(row: Array, leanings: Array, found: Array) -> None:
    for cell in range(len(row)):
        found[cell] = leanings[np.uint32(np.int32(row[cell]) + ZERO)]


@compiled
def _weigh(before: Array, after: Array, fresh: Array, interest: Array, entropy: Array) -> tuple[float, float]:
    """Sum up what new weights add to the weighted entropy before, and what of it is then lost."""
    more = less = fresh.dtype.type(0)
    for cell in range(len(before)):
        old, new = np.uint32(np.int32(before[cell]) + ZERO), np.uint32(np.int32(after[cell]) + ZERO)
        more += fresh[cell] * (interest[new] - interest[old]) * entropy[old]
        less += fresh[cell] * interest[new] * (entropy[old] - entropy[new])
    return more, less


@compiled
def _average(
    image: Array,
    top: int,
    left: int,
    rows: Array,
    row_first: Array,
    row_end: Array,
    columns: Array,
    column_first: Array,
    column_end: Array,
    total: Array,
) -> None:
    """Add ``rows @ image @ columns.T``, where ``image`` lies at (top, left), looking only at weights within spans."""
    height, width = image.shape
    strip = np.zeros((len(columns), height), image.dtype)
    for across in range(len(columns)):
        start, end = max(column_first[across], left), max(min(column_end[across], left + width), left)
        weight = columns[across, start:end]
        for row in range(height):
            line, found = image[row, start - left : end - left], image.dtype.type(0)
            for cell in range(len(weight)):
                found += line[cell] * weight[cell]
            strip[across, row] = found
    for down in range(len(rows)):
        start, end = max(row_first[down], top), max(min(row_end[down], top + height), top)
        weight = rows[down, start:end]
        for across in range(len(columns)):
            line, found = strip[across, start - top : end - top], image.dtype.type(0)
            for row in range(len(weight)):
                found += line[row] * weight[row]
            total[down, across] += found
