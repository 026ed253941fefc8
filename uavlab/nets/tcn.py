"""G temporal convolutional networks of the same architecture, evaluated at the last row of a window.

As in ``nets.mlp``, a network is a row of one matrix. Layer i has dilation 2^i, so few layers cover a long window.
Each layer computes only the rows that the last one depends on, half as many as the layer before.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from uavlab.nets.mlp import StackedNet, affine

TAPS = 3  # rows of a kernel


@dataclass(frozen=True)
class StackedTCN(StackedNet):
    """Causal convolutions with LayerNorm, ReLU and residual connections, then a hidden layer and a linear one.

    In every layer, rows before the window are zero.

    Source:
        Bai, Kolter and Koltun 2018, "An Empirical Evaluation of Generic Convolutional and Recurrent Networks for
        Sequence Modeling", section 3: dilated, causal and residual, here with one convolution per block.
    """

    inputs: int  # features of a row (F)
    window: int
    width: int
    hidden: int
    outputs: int

    @property
    def layers(self) -> int:
        """Number of convolutions after which the last row depends on the whole window."""
        return max(1, math.ceil(math.log2((self.window - 1) / (TAPS - 1) + 1)))

    @property
    def weights(self) -> list[tuple[int, ...]]:
        fan_in = [TAPS * self.inputs, *[TAPS * self.width] * (self.layers - 1)]
        return [*((n, self.width) for n in fan_in), (self.width, self.hidden), (self.hidden, self.outputs)]

    def __call__(self, theta: Float[Tensor, "G P"], x: Float[Tensor, "G N T F"]) -> Float[Tensor, "G N out"]:
        """Evaluate network g on windows x[g]; the last layer is never in lower precision."""
        *filters, w1, b1, w2, b2 = self.unpack(theta)
        for n, (weight, bias) in enumerate(zip(filters[::2], filters[1::2], strict=True)):
            x = self.convolve(x, weight, bias, residual=n > 0)
        x = affine(x[:, :, -1], w1, b1).relu()
        wide = torch.promote_types(theta.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return affine(x.to(wide), w2.to(wide), b2.to(wide))

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor, residual: bool) -> Float[Tensor, "G N t C"]:
        """Compute a layer at every second row, the last one included, and add its input if ``residual``."""
        padded = F.pad(x, (0, 0, 1 + x.shape[2] % 2, 0))
        taps = torch.cat([padded[:, :, 0:-2:2], padded[:, :, 1:-1:2], padded[:, :, 2::2]], -1)
        y = affine(taps.flatten(1, 2), weight, bias)
        y = F.layer_norm(y, (self.width,)).relu().unflatten(1, taps.shape[1:3])
        return y + padded[:, :, 2::2] if residual else y
