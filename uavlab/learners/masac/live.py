"""Rows of teams whose agents may end before the others: an agent learns from the rows before its own end alone."""

from jaxtyping import Float
from torch import Tensor

from uavlab.core.types import LiveTransition, Transition, tensors


@tensors
class Weighted(Transition):
    """Rows of a batch with the weight of each agent: 0 after its end, and 1 in the mean over the rows of the batch.

    Pieces of a batch keep these weights, so a mean over pieces is the mean over all live rows.
    """

    weight: Float[Tensor, "R N A"]


def weigh(data: Transition) -> Transition:
    """Turn marks of live agents, if there are any, into weights; an agent without a live row has no weight."""
    if not isinstance(data, LiveTransition):
        return data
    live = data.live.to(data.reward.dtype)
    weight = live / live.mean(1, keepdim=True).clamp_min(1 / live.shape[1])
    return Weighted(data.obs, data.action, data.reward, data.next_obs, data.terminated, data.truncated, weight)


def weights(data: Transition) -> Float[Tensor, "R A N"] | None:
    """Return the weight of each row for each agent; None if all count alike."""
    return data.weight.transpose(1, 2) if isinstance(data, Weighted) else None


def row_mean(x: Float[Tensor, "*lead N"], weight: Float[Tensor, "*#lead N"] | None) -> Float[Tensor, "*lead"]:
    """Return the mean over rows that count; others may hold any finite number."""
    return (x if weight is None else x * weight).mean(-1)
