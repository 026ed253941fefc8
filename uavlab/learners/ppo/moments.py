"""Moving moments of returns, by which critics learn normalised values, and sums over the live rows of each network.

Rows that are not live do not count; agents that share a network share its sums. Sums are over the rows of all ranks.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.types import tensors
from uavlab.runtime.ranks import ALONE, Ranks

MEMORY = 0.9  # weight of the past in the moving moments of returns, per update
MIN_STD, MIN_RATIO = 1e-6, 1e-4  # smallest standard deviation, and that of returns relative to their mean


@tensors
class Moments:
    """Moving sums of the returns of each agent's critic, in float64: their mean and square, and the total weight.

    Differences of float32 sums would lose a standard deviation that is a thousandth of the mean.
    """

    mean: Float[Tensor, "R A"]
    square: Float[Tensor, "R A"]
    weight: Float[Tensor, "R A"]

    def scale(self, dtype: torch.dtype) -> tuple[Float[Tensor, "R 1 A"], Float[Tensor, "R 1 A"]]:
        """Return mean and standard deviation; before the first return 0 and 1."""
        mean, square = (each / self.weight.clamp_min(MIN_STD) for each in (self.mean, self.square))
        spread = (square - mean.square()).clamp_min(0).sqrt()
        spread = torch.maximum(spread, MIN_RATIO * mean.abs()).clamp_min(MIN_STD)
        known = torch.where(self.weight > 0, spread, torch.ones_like(spread))
        return mean[:, None].to(dtype), known[:, None].to(dtype)


def update_moments(
    moments: Moments,
    returns: Float[Tensor, "R N A"],
    live: Float[Tensor, "R N A"],
    critics: tuple[int, ...],
    ranks: Ranks = ALONE,
) -> Moments:
    """Return the moments after new returns; every live row of the agents with one critic counts once."""
    returns, live = returns.double(), live.double()
    each = {"mean": returns, "square": returns.square(), "weight": torch.ones_like(returns)}
    sums = {name: ranks.sum(sum_by_network((live * x).sum(1), critics)) for name, x in each.items()}
    new = {name: x / sums["weight"].clamp_min(1) for name, x in sums.items()}
    return Moments(**{name: MEMORY * getattr(moments, name) + (1 - MEMORY) * value for name, value in new.items()})


def normalise(
    x: Float[Tensor, "R N A"], live: Float[Tensor, "R N A"], networks: tuple[int, ...], ranks: Ranks = ALONE
) -> Float[Tensor, "R N A"]:
    """Shift and scale numbers to mean 0 and standard deviation 1 over the live rows of each network."""
    count, total = (ranks.sum(sum_by_network(each.sum(1), networks)) for each in (live, live * x))
    apart = x - (total / count.clamp_min(1))[:, None]
    square = ranks.sum(sum_by_network((live * apart.square()).sum(1), networks))
    spread = (square / count.clamp_min(1)).sqrt()
    return apart / spread.clamp_min(MIN_STD)[:, None]


def row_weights(
    live: Float[Tensor, "R N A"], networks: tuple[int, ...], ranks: Ranks = ALONE
) -> Float[Tensor, "R N A"]:
    """Return weights by which a sum over agents of means over rows is, for each network, the mean of its live rows."""
    return live / ranks.mean(sum_by_network(live.mean(1), networks)).clamp_min(MIN_STD)[:, None]


def sum_by_network(x: Float[Tensor, "R A"], networks: tuple[int, ...]) -> Float[Tensor, "R A"]:
    """Return for each agent the sum over the agents of its network."""
    rows = x.unbind(1)
    owners = [[row for row, network in zip(rows, networks, strict=True) if network == own] for own in networks]
    return torch.stack([torch.stack(own).sum(0) for own in owners], 1)
