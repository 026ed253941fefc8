"""Angles, distances, rotations (unit quaternions w x y z from body to world axes), and constants on a device."""

import math
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote


def constant(values: tuple, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return numbers as a tensor that is copied to the device once, for functions of an environment.

    ``torch.tensor`` and ``new_tensor`` copy in each call: a GPU waits for the host, and CUDA graphs cannot hold them.

    Args:
        values: A tuple of numbers, or of tuples of equal length.
        device: Where the tensor is, such as ``state.pos.device``.
        dtype: Type of its numbers, such as ``state.pos.dtype``.

    Returns:
        The same tensor in each call with the same arguments; do not change it in place.

    Raises:
        ConfigError: ``values`` is no tuple.
    """
    if not isinstance(values, tuple):
        raise ConfigError(f"constant(): values = {quote(values)}; expected a tuple, of tuples where it has rows.")
    return _copy(values, device, dtype)


@cache  # without a limit: a CUDA graph may read the tensor as long as it lives
def _copy(values: tuple, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, device=device, dtype=dtype)


def wrap_angle(angle: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    """Bring an angle (rad) into [0, 2 pi)."""
    return angle.remainder(2 * math.pi).remainder(2 * math.pi)  # the first one rounds tiny negative angles to 2 pi


def distance(a: Float[Tensor, "*#lead 2"], b: Float[Tensor, "*#lead 2"]) -> Float[Tensor, "*#lead"]:
    """Return the Euclidean distance between points; the leading axes broadcast."""
    dx, dy = (a - b).unbind(-1)
    return torch.hypot(dx, dy)


def nearest_offsets(
    pos: Float[Tensor, "B A 2"], points: Float[Tensor, "B M 2"], count: int
) -> Float[Tensor, "B A count 2"]:
    """Return the offsets from each agent to its ``count`` nearest points, nearest first."""
    offset = points[:, None] - pos[:, :, None]
    order = offset.square().sum(-1).topk(count, dim=-1, largest=False).indices
    return offset.gather(2, order[..., None].expand(*order.shape, 2))


def rotate(q: Float[Tensor, "*lead 4"], v: Float[Tensor, "*lead 3"]) -> Float[Tensor, "*lead 3"]:
    """Turn vectors from body to world axes.

    Source:
        Diebel 2006, "Representing Attitude: Euler Angles, Unit Quaternions, and Rotation Vectors", section 6.6, with
        two cross products instead of the matrix.
    """
    w, axis = q[..., :1], q[..., 1:]
    twice = 2 * torch.linalg.cross(axis, v)
    return v + w * twice + torch.linalg.cross(axis, twice)


def rotate_inverse(q: Float[Tensor, "*lead 4"], v: Float[Tensor, "*lead 3"]) -> Float[Tensor, "*lead 3"]:
    """Turn vectors from world to body axes."""
    return rotate(conjugate(q), v)


def conjugate(q: Float[Tensor, "*lead 4"]) -> Float[Tensor, "*lead 4"]:
    return torch.cat([q[..., :1], -q[..., 1:]], -1)


def multiply(a: Float[Tensor, "*lead 4"], b: Float[Tensor, "*lead 4"]) -> Float[Tensor, "*lead 4"]:
    """Return the product a b: the rotation by ``b``, then by ``a``."""
    w, x, y, z = a.unbind(-1)
    rows = [[w, -x, -y, -z], [x, w, -z, y], [y, z, w, -x], [z, -y, x, w]]
    return (torch.stack([torch.stack(row, -1) for row in rows], -2) @ b[..., None])[..., 0]


def from_rotation_vector(vector: Float[Tensor, "*lead 3"]) -> Float[Tensor, "*lead 4"]:
    """Return the rotation about a vector by an angle of its length (rad)."""
    angle = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    half = angle / 2
    return torch.cat([half.cos(), vector * (torch.sinc(half / torch.pi) / 2)], -1)


def integrate(q: Float[Tensor, "*lead 4"], rate: Float[Tensor, "*lead 3"], dt: float) -> Float[Tensor, "*lead 4"]:
    """Advance a rotation by a rate in body axes (rad/s) for ``dt`` (s), and normalise it."""
    return torch.nn.functional.normalize(multiply(q, from_rotation_vector(rate * dt)), dim=-1)
