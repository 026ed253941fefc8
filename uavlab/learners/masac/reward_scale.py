"""The size of rewards, by which a learner divides them: one default then serves rewards of 1 as of 1000.

Rewards are what a target sums: with ``n_step`` the discounted rewards of several steps, up to the sum of discounts
times larger than one. A temperature is relative to them, so an equal one weighs more where more steps are summed.

A mean square that follows m_t = m_{t-1} + (mean of r^2 in batch t - m_{t-1}) / min(t, 1000) is the average over all
batches at first, and later over about the last thousand, so a scale changes slowly once critics depend on it. Rewards
are not shifted: in tasks that end, a constant per step says whether to go on. A large constant thus shrinks what else
rewards hold.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.learners.masac.live import row_mean
from uavlab.runtime.ranks import ALONE, Ranks

MEMORY = 1000  # batches


class RewardScale:
    """The mean square of each agent's rewards.

    Attributes:
        square: Mean square.
        count: Batches so far.
    """

    def __init__(self, runs: int, agents: int, like: Tensor) -> None:
        """Start without a reward."""
        self.square, self.count = like.new_zeros(runs, agents), like.new_zeros(())

    def follow(
        self, reward: Float[Tensor, "R N A"], weight: Float[Tensor, "R A N"] | None = None, ranks: Ranks = ALONE
    ) -> Float[Tensor, "R A"]:
        """Take a batch of rewards, of all ``ranks``, into account, in place; return factors that multiply rewards.

        The factor of an agent that never had a reward is 1.
        """
        self.count.add_(1)
        mean = ranks.mean(row_mean(reward.square().transpose(1, 2), weight))
        self.square.add_((mean - self.square) / self.count.clamp_max(MEMORY))
        return torch.where(self.square > 0, self.square.rsqrt(), 1.0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors themselves."""
        return {"square": self.square, "count": self.count}
