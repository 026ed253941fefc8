"""Rows of replay whose leaves all contain the row's name, so that rows cannot be confused."""

import torch
from torch import Tensor

from uavlab.core.types import Transition, leaves
from uavlab.replay.ring import Ring, choose, take

RUNS, A, FEATURES, D = 2, 2, 3, 1


def rows(names: Tensor) -> Transition:
    """Make rows (R N) whose leaves contain the row's name, a whole number below 2^22, exact in float32."""

    def leaf(*shape: int, offset: float) -> Tensor:
        return (names.float() + offset).view(*names.shape, *[1] * len(shape)).expand(*names.shape, *shape).clone()

    return Transition(
        obs=leaf(A, FEATURES, offset=0.0),
        action=leaf(A, D, offset=0.25),
        reward=leaf(A, offset=0.5),
        next_obs=leaf(A, FEATURES, offset=0.75),
        terminated=(names % 2 == 0)[..., None].expand(*names.shape, A).clone(),
        truncated=names % 3 == 0,
    )


def named(count: int, start: int = 0) -> Tensor:
    """Return names of W rows of each run: 100 000 r + start, ... in run r."""
    return torch.arange(start, start + count) + 100_000 * torch.arange(RUNS)[:, None]


def names_of(got: Transition) -> Tensor:
    """Return the names of rows."""
    return (got.reward[..., 0] - 0.5).long()


def check(got: Transition, names: Tensor) -> None:
    """Compare every leaf with that of rows of these names."""
    for (leaf, a), (_, b) in zip(leaves(got), leaves(rows(names)), strict=True):
        assert torch.equal(a, b), leaf


def draw(ring: Ring, noise: Tensor) -> tuple[Transition, Tensor]:
    """Draw rows uniformly; return them and their slots."""
    index = choose(ring, noise)
    return take(ring, index), index
