"""The squashed Gaussian policy density, from noise that the caller draws."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def squashed_gaussian(
    mean: Float[Tensor, "*lead D"], log_std: Float[Tensor, "*lead D"], noise: Float[Tensor, "*lead D"]
) -> tuple[Float[Tensor, "*lead D"], Float[Tensor, "*lead"]]:
    """Turn standard normal noise into an action in (-1, 1) and its log density.

    The correction log(1 - tanh(u)^2) is evaluated as 2 (log 2 - u - softplus(-2 u)), which keeps its digits where
    1 - tanh(u)^2 rounds to zero.

    Source:
        Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", appendix C, eq. 26.
    """
    u = torch.addcmul(mean, log_std.exp(), noise)
    log_prob = -0.5 * noise.square() - log_std - HALF_LOG_2PI - 2 * (math.log(2) - u - F.softplus(-2 * u))
    return torch.tanh(u), log_prob.sum(-1)
