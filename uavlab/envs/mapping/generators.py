"""Generators of ground truth: maps of targets, drawn from uniform noise."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LEAST, SPAN = 30, 31  # targets cover 30 to 60 % of a map, in steps of 1 %

WAVES = 8  # most periods per side of the map in a random field
FALL = 5.0  # power falls with the wave number to this exponent
FIELD_NOISE = 2 * (2 * WAVES + 1) * (WAVES + 1)


def halves(unit: Float[Tensor, "B 2"], cells: int) -> Bool[Tensor, "B cells cells"]:
    """Draw square maps with targets on one side of a straight line."""
    side, cell = (4 * unit[:, 0]).long(), torch.arange(cells, device=unit.device)
    edge = (_share(unit[:, 1]) * cells).round()[:, None]
    line = torch.where((side % 2 == 0)[:, None], cell < edge, cell >= cells - edge)
    along, down = line[:, None].expand(-1, cells, -1), line[:, :, None].expand(-1, -1, cells)
    return torch.where((side < 2)[:, None, None], along, down)


def fields(unit: Float[Tensor, "B K"], cells: int) -> Bool[Tensor, "B cells cells"]:
    """Draw maps with targets where a random field is highest; its power falls with the wave number to the power of 5.

    The field is a sum of waves with up to ``WAVES`` periods per side, with random amplitudes and phases; ``unit`` holds
    a number for the share of targets, then ``FIELD_NOISE``.
    """
    share, noise = unit.split([1, FIELD_NOISE], dim=1)
    height = heights(noise, cells).flatten(1)
    free = ((1 - _share(share)) * cells**2).long().clamp(0, cells**2 - 1)
    edge = height.sort(1).values.gather(1, free)
    return (height >= edge).view(-1, cells, cells)


def heights(noise: Float[Tensor, "B K"], cells: int) -> Float[Tensor, "B cells cells"]:
    """Sum waves whose amplitudes fall with the wave number to the power of 2.5; ``FIELD_NOISE`` numbers per map."""
    across = torch.arange(-WAVES, WAVES + 1, device=noise.device)
    down = torch.arange(WAVES + 1, device=noise.device)
    number = torch.hypot(down[:, None].to(noise.dtype), across.to(noise.dtype))
    once = (down[:, None] > 0) | (across > 0)  # waves k and -k are equal; k = 0 is the mean
    power = torch.where(once, number.clamp_min(1) ** -FALL, 0.0)
    radius, turn = noise.view(len(noise), 2, WAVES + 1, 2 * WAVES + 1).unbind(1)
    size = (power * -2 * (1 - radius).log()).sqrt()  # Rayleigh: heights are then normally distributed
    wave = torch.polar(size, 2 * math.pi * turn)
    place = 2 * math.pi * torch.arange(cells, device=noise.device, dtype=noise.dtype) / cells
    ones = torch.ones((), dtype=noise.dtype, device=noise.device)
    rows, columns = torch.polar(ones, place[:, None] * down), torch.polar(ones, place[:, None] * across)
    return (rows @ wave @ columns.mT).real


def _share(unit: Tensor) -> Tensor:
    return (LEAST + (SPAN * unit).floor()) / 100
