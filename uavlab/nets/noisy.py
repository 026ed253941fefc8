"""Exploration by noise on the weights of a network's last layer, whose standard deviations are learned.

Behind the P parameters of a network, whose last S are those of its last layer, a row then holds their S standard
deviations. Without these, it is the row of a network without noise.

Source:
    Fortunato et al. 2018, "Noisy Networks for Exploration", with factorised Gaussian noise.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

INITIAL_STD = 0.5  # of a weight, times the root of the layer's inputs


def append_stds(theta: Float[Tensor, "*lead P"], inputs: int, outputs: int) -> Float[Tensor, "*lead P+S"]:
    """Append the initial standard deviations of a last layer with so many inputs and outputs.

    Source:
        Fortunato et al. 2018, section 3.2.
    """
    return F.pad(theta, (0, (inputs + 1) * outputs), value=INITIAL_STD / math.sqrt(inputs))


def factorised_noise(normal: Float[Tensor, "*lead I+O"], inputs: int) -> Float[Tensor, "*lead S"]:
    """Turn a normal number for each input and output of a layer into noise for its weights, then its biases.

    Source:
        Fortunato et al. 2018, eq. 10 and 11, with f(x) = sign(x) sqrt(|x|).
    """
    own, out = (normal.sign() * normal.abs().sqrt()).tensor_split([inputs], -1)
    return torch.cat(((own[..., None] * out[..., None, :]).flatten(-2), out), -1)


def add_noise(theta: Float[Tensor, "G P+S"], noise: Float[Tensor, "G S"]) -> Float[Tensor, "G P"]:
    """Return the parameters with which a network explores: those of its last layer, plus their deviations times noise.

    Source:
        Fortunato et al. 2018, eq. 9.
    """
    size = noise.shape[-1]
    first, last, std = theta.tensor_split([-2 * size, -size], -1)
    return torch.cat((first, last + std * noise), -1)
