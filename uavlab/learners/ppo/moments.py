"""Moving moments of returns, by which critics learn normalised values, and the normalisation of advantages.

Rows that are not live do not count; agents that share a network share its moments.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.types import tensors
from uavlab.learners.ppo.networks import mean_by_network

MEMORY = 0.9  # weight of the past in the moving moments of returns, per update
LEAST = 1e-6  # smallest standard deviation by which returns and advantages are divided


@tensors
class Moments:
    """Moving moments of an agent's returns, each a sum of which ``weight`` is the total weight."""

    mean: Float[Tensor, "R A"]
    square: Float[Tensor, "R A"]
    weight: Float[Tensor, "R A"]

    def scale(self) -> tuple[Float[Tensor, "R 1 A"], Float[Tensor, "R 1 A"]]:
        """Return mean and standard deviation; before the first return 0 and 1."""
        known, weight = self.weight > 0, self.weight.clamp_min(LEAST)
        mean = self.mean / weight
        spread = (self.square / weight - mean.square()).clamp_min(0).sqrt().clamp_min(LEAST)
        return mean[:, None], torch.where(known, spread, torch.ones_like(spread))[:, None]


def update_moments(
    moments: Moments, returns: Float[Tensor, "R N A"], live: Float[Tensor, "R N A"], critics: tuple[int, ...]
) -> Moments:
    """Return the moments after new returns, which agents with one critic share; rows that are not live do not count."""
    count = live.sum(1)
    seen = (count > 0).to(live.dtype)
    new = {
        "mean": (live * returns).sum(1) / count.clamp_min(1),
        "square": (live * returns.square()).sum(1) / count.clamp_min(1),
        "weight": seen,
    }
    return Moments(
        **{k: MEMORY * getattr(moments, k) + (1 - MEMORY) * mean_by_network(v, critics) for k, v in new.items()}
    )


def normalise(
    x: Float[Tensor, "R N A"], live: Float[Tensor, "R N A"], networks: tuple[int, ...]
) -> Float[Tensor, "R N A"]:
    """Shift and scale numbers to mean 0 and standard deviation 1 over the live rows of each network."""
    count = mean_by_network(live.sum(1), networks).clamp_min(1)
    mean = mean_by_network((live * x).sum(1), networks) / count
    apart = x - mean[:, None]
    spread = (mean_by_network((live * apart.square()).sum(1), networks) / count).sqrt()
    return apart / spread.clamp_min(LEAST)[:, None]
