"""Augmentation by heading: a flight turned about the vertical obeys the equations of flight as before."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.types import Scale
from uavlab.telemetry.dataset import FEATURES, HIDDEN, Windows

NORTH = [n for n, name in enumerate(FEATURES) if name.endswith("_north")]
EAST = [n for n, name in enumerate(FEATURES) if name.endswith("_east")]


def rotate_windows(rows: Windows, share: Float[Tensor, "*lead"], scale: Scale) -> Windows:
    """Turn each window about the vertical.

    Args:
        rows: Inputs are normalised by ``scale``, targets are in their own units.
        share: Share of a whole turn, in [0, 1), from north to east.
        scale: Scale of the inputs.
    """
    angle = 2 * math.pi * share
    cos, sin = angle.cos()[..., None], angle.sin()[..., None]
    matrix = feature_rotation(cos, sin)
    inner = matrix * scale.spread[:, None] / scale.spread  # of normalised features
    shift = (scale.center @ matrix - scale.center) / scale.spread
    wind, rest = rows.truth.split([2, len(HIDDEN) - 2], -1)
    error = rows.tracking_error
    return Windows(
        inputs=rows.inputs @ inner + shift[..., None, :],
        truth=torch.cat([_rotate(wind, cos[..., 0], sin[..., 0]), rest], -1),
        tracking_error=torch.cat([_rotate(error[..., :2], cos, sin), error[..., 2:]], -1),
    )


def feature_rotation(cos: Float[Tensor, "*lead 1"], sin: Float[Tensor, "*lead 1"]) -> Float[Tensor, "*lead F F"]:
    """Return the matrices that rotate features when multiplied from the right."""
    count = len(FEATURES)
    same, other = torch.eye(count, device=cos.device, dtype=cos.dtype), cos.new_zeros(count, count)
    same[NORTH, NORTH] = same[EAST, EAST] = 0
    flat = other.clone()
    flat[NORTH, NORTH] = flat[EAST, EAST] = 1
    other[NORTH, EAST], other[EAST, NORTH] = 1, -1
    return same + cos[..., None] * flat + sin[..., None] * other


def _rotate(pair: Float[Tensor, "*lead 2"], cos: Tensor, sin: Tensor) -> Float[Tensor, "*lead 2"]:
    north, east = pair.unbind(-1)
    return torch.stack([cos * north - sin * east, sin * north + cos * east], -1)
