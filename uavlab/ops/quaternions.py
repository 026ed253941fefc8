"""Unit quaternions (w x y z) as rotations from body to world axes, over any leading axes."""

import torch
from jaxtyping import Float
from torch import Tensor


def rotated(q: Float[Tensor, "*lead 4"], v: Float[Tensor, "*lead 3"]) -> Float[Tensor, "*lead 3"]:
    """Turn vectors from body to world axes.

    Source:
        Diebel 2006, "Representing Attitude: Euler Angles, Unit Quaternions, and Rotation Vectors", section 6.6, with
        two cross products for the matrix.
    """
    w, axis = q[..., :1], q[..., 1:]
    twice = 2 * torch.linalg.cross(axis, v)
    return v + w * twice + torch.linalg.cross(axis, twice)


def unrotated(q: Float[Tensor, "*lead 4"], v: Float[Tensor, "*lead 3"]) -> Float[Tensor, "*lead 3"]:
    """Turn vectors from world to body axes."""
    return rotated(conjugate(q), v)


def conjugate(q: Float[Tensor, "*lead 4"]) -> Float[Tensor, "*lead 4"]:
    """Turn the other way."""
    return torch.cat([q[..., :1], -q[..., 1:]], -1)


def product(a: Float[Tensor, "*lead 4"], b: Float[Tensor, "*lead 4"]) -> Float[Tensor, "*lead 4"]:
    """Turn by ``b``, then by ``a``."""
    w, x, y, z = a.unbind(-1)
    rows = torch.stack(
        [
            torch.stack([w, -x, -y, -z], -1),
            torch.stack([x, w, -z, y], -1),
            torch.stack([y, z, w, -x], -1),
            torch.stack([z, -y, x, w], -1),
        ],
        -2,
    )
    return (rows @ b[..., None])[..., 0]


def turn(vector: Float[Tensor, "*lead 3"]) -> Float[Tensor, "*lead 4"]:
    """Make the rotation about a vector, by its length (rad)."""
    angle = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    half = angle / 2
    return torch.cat([half.cos(), vector * (torch.sinc(half / torch.pi) / 2)], -1)


def integrated(q: Float[Tensor, "*lead 4"], rate: Float[Tensor, "*lead 3"], dt: float) -> Float[Tensor, "*lead 4"]:
    """Turn on with a rate in body axes (rad/s) for ``dt`` (s), and keep the length at 1."""
    return torch.nn.functional.normalize(product(q, turn(rate * dt)), dim=-1)
