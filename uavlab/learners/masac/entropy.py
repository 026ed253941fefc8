"""The entropy to which temperatures regulate policies, and how far policies are from it.

Where agents choose moves, entropy and target are means over the rows in which an agent has more than one legal move: in
other rows no policy has entropy. Without masks these are all rows.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.groups import own_actions
from uavlab.core.types import EnvSpec
from uavlab.learners.masac.config import MASACConfig
from uavlab.learners.masac.live import row_mean
from uavlab.runtime.ranks import ALONE, Ranks

SHARE = 0.25  # of the entropy of a free choice among the legal moves
TINY = torch.finfo(torch.float32).tiny


def target_entropy(config: MASACConfig, spec: EnvSpec) -> float | tuple[float, ...]:
    """Return the entropy to which temperatures regulate policies (nats per agent): one for all, or one for each.

    Where agents choose, it is that without masks.
    """
    if config.target_entropy is not None:
        return config.target_entropy
    each = tuple(math.log(own) * SHARE if spec.choices else -float(own) for own in own_actions(spec))
    return each if len(set(each)) > 1 else each[0]


class Choices(NamedTuple):
    """How free an agent's choices among moves are: means over its live rows in a batch.

    Attributes:
        free: Share of rows with more than one legal move, of all ranks.
        closed: By how much masks lower the largest entropy in these rows (nats), summed as if others had 0.
        limit: The largest entropy (nats).
    """

    free: Float[Tensor, "R A"]
    closed: Float[Tensor, "R A"]
    limit: Float[Tensor, "R A"]


def choices_of(
    legal: Bool[Tensor, "R N A E"],
    moves: Float[Tensor, "A 1"],
    weight: Float[Tensor, "R A N"] | None,
    ranks: Ranks = ALONE,
) -> Choices:
    """Count the legal moves of agents with so many ``moves`` each; ``weight`` is that of ``live.weights``."""
    count = legal.sum(-1).clamp_min(1).transpose(1, 2).to(moves.dtype)
    live = torch.ones_like(count) if weight is None else (weight > 0).to(count.dtype)
    free = (count > 1).to(count.dtype)
    share = ranks.mean((live * free).mean(-1)) / ranks.mean(live.mean(-1)).clamp_min(TINY)
    return Choices(share, row_mean((moves / count).log() * free, weight), row_mean(count.log(), weight))


def excess(
    log_prob: Float[Tensor, "R A"], target: Float[Tensor, " A"] | float, choices: Choices, masked: bool
) -> tuple[Float[Tensor, "R A"], Float[Tensor, " R"]]:
    """Return target minus entropy in rows with more than one legal move, and the highest target relative to its limit.

    ``log_prob`` is minus the entropy, a mean over all live rows. The target is that without masks, and lower under
    masks if ``masked``. Both results are 0 of an agent that never had more than one legal move.
    """
    goal = target * choices.free - SHARE * choices.closed * masked  # mean over all live rows, too
    share = goal / choices.limit.clamp_min(TINY)
    return (log_prob + goal) / choices.free.clamp_min(TINY), share.amax(1)
