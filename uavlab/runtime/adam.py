"""Adam, as torch computes it, with a step count for each row: its constants, and the pure functions of a step.

Source:
    Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1.
"""

import torch
from jaxtyping import Float
from torch import Tensor

ADAM_EPS, BETA1, BETA2 = 1e-5, 0.9, 0.999
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # state of Adam for a parameter


def adam_factors(lr: float, step: Tensor) -> Float[Tensor, "2 ..."]:
    """Return Adam's factors in step t: lr / (1 - beta1^t) and 1 / sqrt(1 - beta2^t)."""
    step = step.double()  # in float32, 1 - 0.999 would lose four digits
    return torch.stack((lr / (1 - BETA1**step), (1 - BETA2**step).rsqrt()))


def adam_step(mean: Tensor, square: Tensor, size: Tensor, shrink: Tensor) -> Tensor:
    """Return by how much parameters fall in a step, from Adam's moments and ``adam_factors``."""
    return size * mean / (square.sqrt() * shrink + ADAM_EPS)
