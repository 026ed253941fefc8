"""The entropy to which temperatures regulate policies, and how far policies are from it.

Where agents choose moves, entropy and target are means over the rows in which an agent has more than one legal move: in
other rows no policy has entropy. Without masks these are all rows.
"""

import math

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


def excess(
    log_prob: Float[Tensor, "R A"],
    target: Float[Tensor, " A"] | float,
    legal: Bool[Tensor, "R N A E"],
    moves: Float[Tensor, "A 1"],
    masked: bool,
    weight: Float[Tensor, "R A N"] | None = None,
    ranks: Ranks = ALONE,
) -> tuple[Float[Tensor, "R A"], dict[str, Tensor]]:
    """Return target minus entropy in rows with more than one legal move, 0 of an agent without such a row; and metrics.

    ``log_prob`` is minus the entropy, a mean over live rows; ``weight`` is that of ``live.weights``. The target is that
    of agents with so many ``moves``, and lower under masks if ``masked``. Metrics are the largest entropy (R A), a mean
    over live rows, and the highest target relative to it (R).
    """
    count = legal.sum(-1).clamp_min(1).transpose(1, 2).to(moves.dtype)
    live = torch.ones_like(count) if weight is None else (weight > 0).to(count.dtype)
    free = (count > 1).to(count.dtype)
    share = ranks.mean((live * free).mean(-1)) / ranks.mean(live.mean(-1)).clamp_min(TINY)
    closed, limit = row_mean((moves / count).log() * free, weight), row_mean(count.log(), weight)
    goal = target * share - SHARE * closed * masked  # a mean over live rows, too
    above = (log_prob + goal) / share.clamp_min(TINY)
    return above, {"entropy_limit": limit, "target_share": (goal / limit.clamp_min(TINY)).amax(1)}
