"""What a team learns from a measurement: cells below each UAV, told to those that hear it, and averages of the maps.

On a CPU footprints are cut out one by one, so that little memory is touched and what is touched stays in the cache. A
GPU would have to wait for where they lie; there whole maps are computed at once. Both give the same maps.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from uavlab.envs.mapping.geometry import constant
from uavlab.ops import belief_maps

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
    reuse: bool = False,
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
        reuse: Maps may be written over those before; on a CPU they are.

    Returns:
        Maps, their means, those of each UAV's box in its own map, what new weights added to the weighted entropy of
        the team's map before, and what of it was then lost.
    """
    given = (means, truth, place, box, heard, noise, flip, whole, part)
    if logits.device.type != "cpu":
        return whole_maps(logits, *given)
    after = logits if reuse else logits.clone()
    by = box_by_box if torch.compiler.is_compiling() else cut_out  # an operator of one's own takes seconds to import
    return after, *by(after, *given)


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
    weight = constant(tuple(map(belief_maps.log_odds_steps, flip)), noise.device, logits.dtype)[z][..., None, None]
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
        after = (after + added).clamp(-belief_maps.LIMIT, belief_maps.LIMIT)
    leaning = belief_maps.signed_belief(after, means.dtype)
    near = part[z, y] @ leaning[:, :-1] @ part[z, x].mT
    then, now = (each[:, -1].flatten(1).long() for each in (logits, after))
    added, lost = weigh(then, now, belief_maps.weight_entropy_table(noise.device, noise.dtype))
    return after, belief_maps.area_resize(leaning, whole, whole), near, added, lost


def cut_out(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Do so box by box within the maps given; means change by what changes in each."""
    from uavlab.envs.mapping import fusion_numba  # numba takes half a second to import, and only maps need it

    means, near = means.clone(), torch.empty_like(means[:, :-1])
    added, lost = torch.zeros_like(means[:, 0, 0, 0]), torch.zeros_like(means[:, 0, 0, 0])
    sensor = (
        np.asarray(flip, np.asarray(noise).dtype),
        np.asarray([belief_maps.log_odds_steps(each) for each in flip], np.int16),
    )
    written = map(np.asarray, (logits, means, near))
    read = map(np.ascontiguousarray, (truth.view(torch.bool), place, box, heard, noise))
    averages, found = map(np.asarray, (whole, part)), map(np.asarray, (added, lost))
    fusion_numba.learn(*written, *read, *sensor, *averages, fusion_numba.tables(means.dtype), *found)
    return means, near, added, lost


box_by_box = torch.library.custom_op("uavlab::box_by_box", cut_out, mutates_args=("logits",))
"""``cut_out`` for a compiler of tensors, which cannot cut where numbers say."""


@box_by_box.register_fake
def _(logits: Tensor, means: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    one = means.new_empty(len(means))
    return torch.empty_like(means), torch.empty_like(means[:, :-1]), one, one.clone()


def digits(noise: Float[Tensor, "*lead N"]) -> Float[Tensor, "*lead 2*N"]:
    """Make two uniform numbers out of each: itself, and its lower digits."""
    return torch.cat((noise, (noise * DIGITS).frac_()), -1)


def weigh(
    before: Int[Tensor, "B N"], after: Int[Tensor, "B N"], table: Complex[Tensor, " K"]
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Sum up what new weights add to the weighted entropy before, and what of it is then lost.

    Args:
        before: Steps of log odds of each cell, as indices.
        after: The same after the measurement.
        table: Weights and entropies, see ``belief_maps.weight_entropy_table``.
    """
    old, new = table[before], table[after]
    drop = old - new
    return -torch.linalg.vecdot(drop.real, old.imag), torch.linalg.vecdot(new.real, drop.imag)
