"""Rows of teams whose agents may be absent or end before the others.

An agent learns from the rows before its own end alone. What it would do in other rows has no effect, so joint actions
that critics evaluate hold zeros there.
"""

from jaxtyping import Float
from torch import Tensor

from uavlab.core.types import LiveTransition, Transition, tensors
from uavlab.runtime.ranks import ALONE, Ranks


@tensors
class Weighted(Transition):
    """Rows of a batch with the weight of each agent: 0 after its end, and 1 in the mean over the rows of the batch.

    Pieces of a batch keep these weights, so a mean over pieces is the mean over all live rows.
    """

    weight: Float[Tensor, "R N A"]


def weigh(data: Transition, ranks: Ranks = ALONE) -> Transition:
    """Turn marks of live agents, if there are any, into weights; an agent without a live row has no weight.

    Means are over the rows of all ``ranks``.

    Where an agent is not live its action becomes 0, or its move -1, whose one-hot vector is zeros.
    """
    if not isinstance(data, LiveTransition):
        return data
    live = data.live.to(data.reward.dtype)
    weight = live / ranks.mean(live.mean(1, keepdim=True)).clamp_min(1 / (live.shape[1] * ranks.size))
    moves = not data.action.is_floating_point()
    action = data.action.masked_fill(~data.live, -1) if moves else mask_actions(data.action, live)
    return Weighted(data.obs, action, data.reward, data.next_obs, data.terminated, data.truncated, weight)


def weights(data: Transition) -> Float[Tensor, "R A N"] | None:
    """Return the weight of each row for each agent; None if all count alike."""
    return data.weight.transpose(1, 2) if isinstance(data, Weighted) else None


def weights_ahead(data: Transition) -> Float[Tensor, "R A N"] | None:
    """Return ``weights`` without those of agents that end in a row: of them no action follows."""
    return data.weight.masked_fill(data.terminated, 0.0).transpose(1, 2) if isinstance(data, Weighted) else None


def row_mean(x: Float[Tensor, "*lead N"], weight: Float[Tensor, "*#lead N"] | None) -> Float[Tensor, "*lead"]:
    """Return the mean over rows that count; others may hold any finite number."""
    return (x if weight is None else x * weight).mean(-1)


def mask_actions(action: Float[Tensor, "*lead D"], weight: Float[Tensor, "*lead"] | None) -> Float[Tensor, "*lead D"]:
    """Return actions, or one-hot moves, that are 0 in rows without weight."""
    return action if weight is None else action.masked_fill((weight == 0)[..., None], 0.0)
