"""Fusion of measurements: updates of log odds in all maps that receive them, and averages of the maps.

On a CPU footprints are updated one by one, which touches little memory. On a GPU, where their positions would need a
host sync, and on a CPU without numba, whole maps are updated at once. Both compute the same maps.
"""

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from uavlab.envs.mapping.geometry import DIGITS, Measurement
from uavlab.ops.belief_maps import LIMIT, area_resize, log_odds_steps, signed_belief, weight_entropy_table
from uavlab.ops.geometry import constant

NUMBA = find_spec("numba") is not None  # without it, whole maps are updated on a CPU too


def fuse(
    logits: Int[Tensor, "B M H H"], means: Float[Tensor, "B M L L"], measurement: Measurement, reuse: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Measure the footprint of each UAV, and add the results to all maps that receive them.

    Returns maps (steps of log odds, the team's last), averages of their signed beliefs, averages over each UAV's
    footprint in its own map, and for the team's map the two sums of ``entropy_change`` (bits). With ``reuse`` new maps
    overwrite the old ones on a CPU.
    """
    if logits.device.type != "cpu" or not NUMBA:
        return fuse_whole_maps(logits, means, measurement)
    after = logits if reuse else logits.clone()
    if torch.compiler.is_compiling():
        return after, *fuse_footprints_op(after, means, *measurement)
    return after, *fuse_footprints(after, means, *measurement)  # the first call of a custom operator takes seconds


def fuse_whole_maps(
    logits: Tensor, means: Tensor, measurement: Measurement
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    truth, place, box, heard, noise, flip, whole, part = measurement
    x, y, z = place.unbind(-1)
    chance = constant(tuple(flip), noise.device, noise.dtype)[z][..., None, None]
    weight = constant(tuple(map(log_odds_steps, flip)), noise.device, logits.dtype)[z][..., None, None]
    after, line = logits, torch.arange(logits.shape[-1], device=logits.device)
    top, left, bottom, right = box[..., None, None].unbind(2)
    row, column = line[:, None], line
    for uav in range(place.shape[1]):
        own = (slice(None), uav)
        inside = (row >= top[own]) & (row < bottom[own]) & (column >= left[own]) & (column < right[own])
        cell = (row - top[own]) * (right - left)[own] + column - left[own]
        number = torch.where(inside, cell, 0).flatten(1)
        wrong = split_digits(noise[own]).gather(1, number).view_as(inside) < chance[own]
        change = torch.where(wrong ^ (truth > 0), weight[own], -weight[own]) * inside
        after = (after + change[:, None] * heard[:, :, uav, None, None]).clamp(-LIMIT, LIMIT)
    signed = signed_belief(after, means.dtype)
    footprints = part[z, y] @ signed[:, :-1] @ part[z, x].mT
    old, new = (maps[:, -1].flatten(1).long() for maps in (logits, after))
    added, removed = entropy_change(old, new, weight_entropy_table(noise.device, noise.dtype))
    return after, area_resize(signed, whole, whole), footprints, added, removed


def fuse_footprints(logits: Tensor, means: Tensor, *measurement: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fuse a ``Measurement`` into ``logits`` in place, footprint by footprint; ``means`` are updated incrementally."""
    from uavlab.envs.mapping import fusion_numba  # numba takes half a second to import, and only maps need it

    means, footprints = means.clone(), torch.empty_like(means[:, :-1])
    added, removed = torch.zeros_like(means[:, 0, 0, 0]), torch.zeros_like(means[:, 0, 0, 0])
    truth, place, box, heard, noise, flip, whole, part = measurement
    chance = constant(tuple(flip), noise.device, noise.dtype)
    fields = (truth.view(torch.bool), place, box, heard, noise, chance, whole, part)
    maps = fusion_numba.Maps(*map(np.asarray, (logits, means, footprints, added, removed)))
    steps = np.asarray(list(map(log_odds_steps, flip)), np.int16)
    arrays = Measurement(*map(np.ascontiguousarray, fields))  # type: ignore[arg-type]
    fusion_numba.fuse(maps, arrays, steps, fusion_numba.tables(means.dtype))
    return means, footprints, added, removed


fuse_footprints_op = torch.library.custom_op(
    "uavlab::fuse_footprints",
    fuse_footprints,
    mutates_args=("logits",),
    schema="(Tensor(a!) logits, Tensor means, Tensor truth, Tensor place, Tensor box, Tensor heard, Tensor noise, "
    "float[] flip, Tensor whole, Tensor part) -> (Tensor, Tensor, Tensor, Tensor)",
)
"""``fuse_footprints`` as one operator for torch.compile, which cannot trace indexing by values of tensors."""


@fuse_footprints_op.register_fake
def _(logits: Tensor, means: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    one = means.new_empty(len(means))
    return torch.empty_like(means), torch.empty_like(means[:, :-1]), one, one.clone()


def split_digits(noise: Float[Tensor, "*lead N"]) -> Float[Tensor, "*lead 2*N"]:
    """Return the uniform numbers, then their lower 12 bits as further uniform numbers."""
    return torch.cat((noise, (noise * DIGITS).frac_()), -1)


def entropy_change(
    before: Int[Tensor, "B N"], after: Int[Tensor, "B N"], table: Complex[Tensor, " K"]
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Return sum (w' - w) h and sum w' (h - h') over cells (bits), with target weights w, w' and entropies h, h'.

    The first is the change of the weighted entropy by new weights, the second what new entropies then remove. Steps of
    log odds ``before`` and ``after`` a measurement (with ') are indices of ``belief_maps.weight_entropy_table``.
    """
    old, new = table[before], table[after]
    drop = old - new
    return -torch.linalg.vecdot(drop.real, old.imag), torch.linalg.vecdot(new.real, drop.imag)
