"""Fusion of measurements footprint by footprint, in compiled loops on a CPU.

numba compiles the loops at their first call, which takes seconds, and caches the result beside this file. Inner loops
run over views of single rows, whose indices cannot be negative, so that the compiler can vectorize them.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numba
import numpy as np
import torch

from uavlab.envs.mapping.geometry import DIGITS, Measurement
from uavlab.ops.belief_maps import LIMIT, belief, entropy, signed_belief, target_weight

Array = np.ndarray[Any, np.dtype[Any]]
Axis = tuple[Array, Array, Array]  # weights, and begin and end of the nonzero weights of each row
ZERO = 2**15  # index of 0 in tables over all int16


class Maps(NamedTuple):
    """Arrays that ``fuse`` updates: log odds (B M H H), averages of maps and of footprints, changes of entropy (B)."""

    logits: Array
    means: Array
    footprints: Array
    added: Array
    removed: Array


def compile_loops(loops: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call, and cache the result on disk if a folder for it can be written."""
    make = partial(numba.njit, nogil=True, fastmath={"reassoc", "contract", "nsz"})
    try:
        return make(cache=True)(loops)
    except RuntimeError:  # neither this folder nor the user's own can be written
        return make()(loops)


@lru_cache
def tables(dtype: torch.dtype) -> tuple[Array, Array, Array]:
    """Return signed belief, target weight and entropy (bits) of each int16 as steps of log odds."""
    logits = torch.arange(-ZERO, ZERO).clamp(-LIMIT, LIMIT)
    chance = belief(logits, torch.float64)
    columns = signed_belief(logits, dtype), target_weight(chance).to(dtype), entropy(chance).to(dtype)
    return tuple(np.asarray(column) for column in columns)  # type: ignore[return-value]


@compile_loops
def fuse(maps: Maps, measurement: Measurement, steps: Array, table: tuple[Array, Array, Array]) -> None:
    """Fuse the measurements of each mission into ``maps``; ``steps`` are changes of log odds by altitude."""
    logits, means, footprints, added, removed = maps
    truth, place, box, heard, noise, flip, whole, part = measurement
    missions, uavs = box.shape[:2]
    side, parts = logits.shape[-1], whole.shape[0]
    change, team = np.empty((side, side), np.int16), np.empty((side, side), logits.dtype)
    signed = np.empty((side, side), means.dtype)
    counts = np.empty(side, means.dtype)
    axis = _with_spans(whole, 0, side)
    for mission in range(missions):
        own = logits[mission]
        team[:] = own[-1]
        for uav in range(uavs):
            top, left, bottom, right = box[mission, uav]
            x, y, z = place[mission, uav]
            height, width = bottom - top, right - left
            inside = 0 <= top <= bottom <= side and 0 <= left <= right <= side and height * width <= 2 * noise.shape[2]
            if not (inside and 0 <= x < parts and 0 <= y < parts and 0 <= z < len(flip)):
                raise IndexError("a box or place outside of the map, or too little noise for it")
            for row in range(height):
                targets = truth[mission, top + row, left:right]
                _measure(targets, noise[mission, uav], row * width, flip[z], steps[z], change[row, :width])
            for listener in range(len(own)):
                if heard[mission, listener, uav]:
                    for row in range(height):
                        line = own[listener, top + row, left:right]
                        _add(line, change[row, :width], table[0], signed[row, :width])
                    cut = signed[:height, :width]
                    _average(cut, top, left, axis, axis, means[mission, listener])
        for uav in range(uavs):
            top, left, bottom, right = box[mission, uav]
            x, y, z = place[mission, uav]
            for row in range(top, bottom):
                _look_up(own[uav, row, left:right], table[0], signed[row - top, : right - left])
            cut = signed[: bottom - top, : right - left]
            rows, columns = _with_spans(part[z, y], top, bottom), _with_spans(part[z, x], left, right)
            footprints[mission, uav] = 0
            _average(cut, top, left, rows, columns, footprints[mission, uav])
            for row in range(top, bottom):
                counts[:] = 1
                for other in range(uav):  # cells of several footprints are counted once
                    if box[mission, other, 0] <= row < box[mission, other, 2]:
                        counts[box[mission, other, 1] : box[mission, other, 3]] = 0
                before, after = team[row, left:right], own[-1, row, left:right]
                more, less = _entropy_change(before, after, counts[left:right], table[1], table[2])
                added[mission] += more
                removed[mission] += less


@compile_loops
def _with_spans(weights: Array, start: int, end: int) -> Axis:
    """Return the weights, and begin and end of the nonzero weights of each row within [start, end)."""
    low, high = np.full(len(weights), start), np.full(len(weights), end)
    for row in range(len(weights)):
        while low[row] < high[row] and weights[row, low[row]] == 0:
            low[row] += 1
        while low[row] < high[row] and weights[row, high[row] - 1] == 0:
            high[row] -= 1
    return weights, low, high


@compile_loops
def _measure(truth: Array, noise: Array, begin: int, flip: float, step: int, change: Array) -> None:
    """Measure the cells numbered from ``begin``, and write the steps by which their log odds change."""
    full = min(max(len(noise) - begin, 0), len(change))
    number = noise[begin : begin + full]
    for cell in range(full):
        change[cell] = step if (number[cell] < flip) != truth[cell] else -step
    number, truth, change = noise[begin + full - len(noise) :], truth[full:], change[full:]
    for cell in range(len(change)):
        digits = number[cell] * noise.dtype.type(DIGITS)
        change[cell] = step if (digits - np.floor(digits) < flip) != truth[cell] else -step


@compile_loops
def _add(row: Array, change: Array, table: Array, signed: Array) -> None:
    """Add changes to a row of log odds, and write the changes of signed beliefs."""
    for cell in range(len(row)):
        old = np.int32(row[cell])
        new = min(max(old + np.int32(change[cell]), np.int32(-LIMIT)), np.int32(LIMIT))
        row[cell] = new
        signed[cell] = table[np.uint32(new + ZERO)] - table[np.uint32(old + ZERO)]


@compile_loops
def _look_up(row: Array, table: Array, signed: Array) -> None:
    for cell in range(len(row)):
        signed[cell] = table[np.uint32(np.int32(row[cell]) + ZERO)]


@compile_loops
def _entropy_change(before: Array, after: Array, counts: Array, weight: Array, entropy: Array) -> tuple[float, float]:
    """Return the sums of ``fusion.entropy_change`` over a row of cells, each weighted by ``counts``."""
    more = less = counts.dtype.type(0)
    for cell in range(len(before)):
        old, new = np.uint32(np.int32(before[cell]) + ZERO), np.uint32(np.int32(after[cell]) + ZERO)
        more += counts[cell] * (weight[new] - weight[old]) * entropy[old]
        less += counts[cell] * weight[new] * (entropy[old] - entropy[new])
    return more, less


@compile_loops
def _average(image: Array, top: int, left: int, rows: Axis, columns: Axis, total: Array) -> None:
    """Add ``rows @ image @ columns.T`` to ``total``, where ``image`` lies at (top, left); zero weights are skipped."""
    height, width = image.shape
    weights, low, high = columns
    strip = np.zeros((len(weights), height), image.dtype)
    for across in range(len(weights)):
        start, end = max(low[across], left), max(min(high[across], left + width), left)
        weight = weights[across, start:end]
        for row in range(height):
            line, result = image[row, start - left : end - left], image.dtype.type(0)
            for cell in range(len(weight)):
                result += line[cell] * weight[cell]
            strip[across, row] = result
    weights, low, high = rows
    for down in range(len(weights)):
        start, end = max(low[down], top), max(min(high[down], top + height), top)
        weight = weights[down, start:end]
        for across in range(len(strip)):
            line, result = strip[across, start - top : end - top], image.dtype.type(0)
            for row in range(len(weight)):
                result += line[row] * weight[row]
            total[down, across] += result
