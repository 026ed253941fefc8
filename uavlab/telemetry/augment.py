"""The same flight under another heading: what is north for one is south-west for another, and physics is the same."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.telemetry.dataset import FEATURES, HIDDEN, Scale, Windows

NORTH = [n for n, name in enumerate(FEATURES) if name.endswith("_north")]
EAST = [n for n, name in enumerate(FEATURES) if name.endswith("_east")]


def turned(rows: Windows, share: Float[Tensor, "*lead"], scale: Scale) -> Windows:
    """Turn each window about the vertical.

    Args:
        rows: Inputs are normalised by ``scale``, all else is in its own units.
        share: Of a whole turn, in [0, 1), from north to east.
        scale: How inputs were normalised.
    """
    angle = 2 * math.pi * share
    cos, sin = angle.cos()[..., None], angle.sin()[..., None]
    matrix = turning(cos, sin)
    inner = matrix * scale.spread[:, None] / scale.spread  # of normalised numbers
    shift = (scale.center @ matrix - scale.center) / scale.spread
    wind, rest = rows.truth.split([2, len(HIDDEN) - 2], -1)
    return Windows(
        inputs=rows.inputs @ inner + shift[..., None, :],
        truth=torch.cat([_plane(wind, cos[..., 0], sin[..., 0]), rest], -1),
        astray=torch.cat([_plane(rows.astray[..., :2], cos, sin), rows.astray[..., 2:]], -1),
    )


def turning(cos: Float[Tensor, "*lead 1"], sin: Float[Tensor, "*lead 1"]) -> Float[Tensor, "*lead F F"]:
    """Make the matrices by which features are turned, from the right."""
    same, other = (
        torch.eye(len(FEATURES), device=cos.device, dtype=cos.dtype),
        cos.new_zeros(len(FEATURES), len(FEATURES)),
    )
    same[NORTH, NORTH] = same[EAST, EAST] = 0
    flat = other.clone()
    flat[NORTH, NORTH] = flat[EAST, EAST] = 1
    other[NORTH, EAST], other[EAST, NORTH] = 1, -1
    return same + cos[..., None] * flat + sin[..., None] * other


def _plane(pair: Float[Tensor, "*lead 2"], cos: Tensor, sin: Tensor) -> Float[Tensor, "*lead 2"]:
    north, east = pair.unbind(-1)
    return torch.stack([cos * north - sin * east, sin * north + cos * east], -1)
