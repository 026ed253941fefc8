"""Draws by priority: observed and expected counts, importance weights, and agreement of three data structures."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.benchmarks.suites.replay import binary, cumsum
from uavlab.core.rng import INTEGER_NOISE
from uavlab.ops import sum_tree
from uavlab.replay.prioritized import importance_weights


def count_draws(
    priority: Float[Tensor, " N"], alpha: float, batches: int, batch: int = 64, seed: int = 0
) -> dict[str, Any]:
    """Draw batches of slots with these priorities.

    Returns:
        ``observed`` and ``expected`` counts of each slot, and their ``chi_square``.
    """
    mass, noise = sum_tree.fixed_point(priority.pow(alpha))[None], torch.Generator().manual_seed(seed)
    tree = sum_tree.empty(1, len(priority), mass.device)
    sum_tree.fill(tree, mass)
    count = torch.zeros(len(priority), dtype=torch.int64)
    for _ in range(batches):
        slot, _ = sum_tree.sample(tree, torch.randint(INTEGER_NOISE, (1, batch), generator=noise))
        count += slot[0].bincount(minlength=len(priority))
    expected = batches * batch * mass[0] / mass.sum()
    chi_square = ((count - expected).square() / expected).sum().item()
    return {"observed": count.tolist(), "expected": expected.tolist(), "chi_square": round(chi_square, 2)}


def weights(priority: Float[Tensor, " N"], alpha: float, betas: Iterable[float]) -> list[dict[str, Any]]:
    """Return the importance weights of a batch with every slot drawn once: rows ``beta, priority, weight``."""
    mass = sum_tree.fixed_point(priority.pow(alpha))[None]
    return [
        {"beta": beta, "priority": each, "weight": round(weight, 4)}
        for beta in betas
        for each, weight in zip(priority.tolist(), importance_weights(mass, beta)[0].tolist(), strict=True)
    ]


def structures_agree(capacity: int, batch: int = 256, seed: int = 0) -> bool:
    """Return whether the wide tree, a binary tree and a running sum draw the same slots from the same noise."""
    rng = torch.Generator().manual_seed(seed)
    mass = torch.randint(1, 2**30, (1, capacity), generator=rng)
    tree = sum_tree.empty(1, capacity, mass.device)
    sum_tree.fill(tree, mass)
    noise = torch.randint(INTEGER_NOISE, (1, batch), generator=rng)
    slot, _ = sum_tree.sample(tree, noise)
    return all(torch.equal(slot, other.draw(noise)) for other in (binary(mass[0].clone()), cumsum(mass[0].clone())))
