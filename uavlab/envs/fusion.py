"""What a team learns from a measurement: cells below each UAV, told to those that hear it, and averages of the maps.

On a CPU footprints are cut out one by one, so that little memory is touched and what is touched stays in the cache. A
GPU would have to wait for where they lie; there whole maps are computed at once. Both give the same maps.
"""

from collections.abc import Callable, Sequence
from itertools import compress, count
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.envs.lattice import constant
from uavlab.ops import grids

Array = np.ndarray[Any, np.dtype[Any]]
DIGITS = 2.0**12  # a float32 number in [0, 1) holds 24 bits: 12 that decide about one cell, and 12 for another


def fuse(
    logits: Int[Tensor, "B M H H"],
    means: Float[Tensor, "B M L L"],
    truth: Int[Tensor, "B H H"],
    place: Int[Tensor, "B A 3"],
    box: Int[Tensor, "B A 4"],
    heard: Bool[Tensor, "B M A"],
    noise: Float[Tensor, "B A N"],
    flip: Sequence[float],
    whole: Float[Tensor, "L H"],
    part: Float[Tensor, "Z L L H"],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Measure the cells in each UAV's box, and add what was found to the maps of all that hear of it.

    Args:
        logits: Log odds of all maps, the team's last.
        means: Their leanings, averaged down to the lattice.
        truth: 1 where targets are, else 0.
        place: Where UAVs are.
        box: What they see from there: first row and column, end of rows and columns.
        heard: Whose measurements each map learns of.
        noise: Uniform numbers, each for two cells; those of a box are numbered row by row.
        flip: Chance that a cell is measured wrongly, by altitude.
        whole: Averages the whole axis down to the lattice.
        part: Averages the part of it that is seen from each place.

    Returns:
        Maps, their means, those of each UAV's box in its own map, what new weights added to the weighted entropy of
        the team's map before, and what of it was then lost.
    """
    by = box_by_box if logits.device.type == "cpu" else whole_maps
    return by(logits, means, truth, place, box, heard, noise, flip, whole, part)


def whole_maps(
    logits: Tensor,
    means: Tensor,
    truth: Tensor,
    place: Tensor,
    box: Tensor,
    heard: Tensor,
    noise: Tensor,
    flip: Sequence[float],
    whole: Tensor,
    part: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Do so for all missions and cells at once."""
    x, y, z = place.unbind(-1)
    chance = constant(tuple(flip), noise.device, noise.dtype)[z][..., None, None]
    weight = constant(tuple(map(grids.steps, flip)), noise.device, logits.dtype)[z][..., None, None]
    after, line = logits, torch.arange(logits.shape[-1], device=logits.device)
    top, left, bottom, right = box[..., None, None].unbind(2)
    row, column = line[:, None], line
    for uav in range(place.shape[1]):
        mine = (slice(None), uav)
        inside = (row >= top[mine]) & (row < bottom[mine]) & (column >= left[mine]) & (column < right[mine])
        cell = (row - top[mine]) * (right - left)[mine] + column - left[mine]
        number = torch.where(inside, cell, 0).flatten(1)
        wrong = digits(noise[mine]).gather(1, number).view_as(inside) < chance[mine]
        told = torch.where(wrong ^ (truth > 0), weight[mine], -weight[mine]) * inside
        added = told[:, None] * heard[:, :, uav, None, None]
        after = (after + added).clamp(-grids.LIMIT, grids.LIMIT)
    leaning = grids.leaning(after, means.dtype)
    near = part[z, y] @ leaning[:, :-1] @ part[z, x].mT
    then, now = (each[:, -1].flatten(1).long() for each in (logits, after))
    added, lost = weigh(then, now, grids.table(noise.device, noise.dtype), torch.linalg.vecdot)
    return after, grids.area_resize(leaning, whole, whole), near, added, lost


@torch.library.custom_op("uavlab::box_by_box", mutates_args=())  # a compiler would write all missions out
def box_by_box(
    logits: Tensor,
    means: Tensor,
    truth: Tensor,
    place: Tensor,
    box: Tensor,
    heard: Tensor,
    noise: Tensor,
    flip: Sequence[float],
    whole: Tensor,
    part: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Do so box by box, and change means by what changes in each; numpy spends least on each of many small steps."""
    after, means, near = torch.empty_like(logits), means.clone(), torch.empty_like(means[:, :-1])
    added, lost = torch.zeros_like(means[:, 0, 0, 0]), torch.zeros_like(means[:, 0, 0, 0])
    before, maps, average, own, hidden, numbers, full, seen, more, less = (
        np.asarray(each)
        for each in (logits, after, means, near, truth.view(torch.bool), noise, whole, part, added, lost)
    )
    table = np.asarray(grids.table(noise.device, noise.dtype))
    for mission, (places, boxes, ears) in enumerate(zip(place.tolist(), box.tolist(), heard.mT.tolist(), strict=True)):
        maps[mission] = before[mission]  # here, not for all missions before: what follows finds it in the cache
        cuts = [(slice(top, bottom), slice(left, right)) for top, left, bottom, right in boxes]
        for uav, (rows, columns) in enumerate(cuts):
            told = _told(hidden[mission, rows, columns], numbers[mission, uav], flip[places[uav][2]])
            for listener in compress(count(), ears[uav]):
                change = _learn(maps[mission, listener, rows, columns], told, average.dtype)
                average[mission, listener] += full[:, rows] @ change @ full[:, columns].T
        for uav, (rows, columns) in enumerate(cuts):
            (x, y, z), leaning = places[uav], _leaning(maps[mission, uav, rows, columns], own.dtype)
            own[mission, uav] = seen[z, y, :, rows] @ leaning @ seen[z, x, :, columns].T
            then, now = (each[mission, -1, rows, columns].astype(np.intp) for each in (before, maps))
            for other in boxes[:uav]:
                then[_shared(boxes[uav], other)] = now[_shared(boxes[uav], other)] = 0  # sums count a cell once
            gained, gone = weigh(then.ravel(), now.ravel(), table, np.vecdot)
            more[mission] += gained
            less[mission] += gone
    return after, means, near, added, lost


@box_by_box.register_fake
def _(logits: Tensor, means: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    one = means.new_empty(len(means))
    return torch.empty_like(logits), torch.empty_like(means), torch.empty_like(means[:, :-1]), one, one.clone()


def digits(noise: Float[Tensor, "*lead N"]) -> Float[Tensor, "*lead 2*N"]:
    """Make two uniform numbers out of each: itself, and its lower digits."""
    return torch.cat((noise, (noise * DIGITS).frac_()), -1)


def weigh(before: Any, after: Any, table: Any, dot: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Sum up what new weights add to the weighted entropy before, and what of it is then lost.

    Args:
        before: Steps of log odds of each cell, as indices.
        after: The same after the measurement.
        table: Weights and entropies, see ``grids.table``; all tensors, or all arrays.
        dot: Sums up products.
    """
    old, new = table[before], table[after]
    drop = old - new
    return -dot(drop.real, old.imag), dot(new.real, drop.imag)


def _told(truth: Array, noise: Array, flip: float) -> Array:
    """Measure: by how many steps log odds rise, or fall."""
    noise = noise if truth.size <= len(noise) else np.concatenate((noise, _fraction(noise * DIGITS)))
    wrong = noise[: truth.size].reshape(truth.shape) < noise.dtype.type(flip)
    sign = (truth != wrong).astype(np.int16)
    sign *= 2 * grids.steps(flip)
    sign -= grids.steps(flip)
    return sign


def _learn(window: Array, told: Array, dtype: Any) -> Array:
    """Add what was told, and give the change of leanings."""
    after = window + told
    np.clip(after, -grids.LIMIT, grids.LIMIT, out=after)
    change = _leaning(after, dtype)
    change -= _leaning(window, dtype)
    window[...] = after
    return change


def _leaning(window: Array, dtype: Any) -> Array:
    half = window.astype(dtype)
    half *= grids.STEP / 2
    return np.tanh(half, out=half)


def _fraction(number: Array) -> Array:
    number -= np.floor(number)
    return number


def _shared(box: list[int], other: list[int]) -> tuple[slice, slice]:
    """Give the rows and columns of a box that another holds too."""
    first, start, last, end = (max(theirs - mine, 0) for theirs, mine in zip(other, box[:2] * 2, strict=True))
    return slice(first, last), slice(start, end)
