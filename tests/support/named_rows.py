"""Rows of replay whose every leaf spells the row's own name, so that no row can pass for another."""

import torch
from torch import Tensor

from uavlab.core.types import Transition, leaves

RUNS, A, FEATURES, D = 2, 2, 3, 1


def rows(names: Tensor) -> Transition:
    """Make rows (R N) whose leaves all spell the row's name; names are whole numbers below 2^22, exact in float32."""

    def spell(*shape: int, offset: float) -> Tensor:
        return (names.float() + offset).view(*names.shape, *[1] * len(shape)).expand(*names.shape, *shape).clone()

    return Transition(
        obs=spell(A, FEATURES, offset=0.0),
        action=spell(A, D, offset=0.25),
        reward=spell(A, offset=0.5),
        next_obs=spell(A, FEATURES, offset=0.75),
        terminated=(names % 2 == 0)[..., None].expand(*names.shape, A).clone(),
        truncated=names % 3 == 0,
    )


def named(count: int, start: int = 0) -> Tensor:
    """Name W rows of each run: run r calls its rows 100 000 r + start, ..."""
    return torch.arange(start, start + count) + 100_000 * torch.arange(RUNS)[:, None]


def names_of(got: Transition) -> Tensor:
    """Read the rows' names back."""
    return (got.reward[..., 0] - 0.5).long()


def check(got: Transition, names: Tensor) -> None:
    """Compare every leaf with what rows of these names must hold."""
    for (leaf, a), (_, b) in zip(leaves(got), leaves(rows(names)), strict=True):
        assert torch.equal(a, b), leaf
