"""G equal temporal convolutional networks evaluated as one: what the last row of a window tells, and nothing else.

As in ``nets.stacked``, a network is a row of one matrix. Layer i convolves rows 2^i apart, so few layers see a long
window. Of each layer only those rows are worked out that reach the last one: half as many layer by layer, where the
whole of each would be as many as at first.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from uavlab.nets.mlp import affine, fresh

TAPS = 3  # rows that a convolution sees


@dataclass(frozen=True)
class StackedTCN:
    """Causal convolutions with LayerNorm, ReLU and a way around each, then a hidden layer and a linear one.

    Rows before the window count as zero, after the first layer too.

    Source:
        Bai, Kolter and Koltun 2018, "An Empirical Evaluation of Generic Convolutional and Recurrent Networks for
        Sequence Modeling", section 3: dilated, causal and residual, here with one convolution per block.

    Attributes:
        inputs: Features of a row (F).
        window: Rows (T).
        width: Channels of each convolution (C).
        hidden: Width of the hidden layer.
        outputs: Output features.
    """

    inputs: int
    window: int
    width: int
    hidden: int
    outputs: int

    @property
    def layers(self) -> int:
        """As many as it takes for the last row to see the whole window."""
        return max(1, math.ceil(math.log2((self.window - 1) / (TAPS - 1) + 1)))

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of one network's pieces, in the order in which a row holds them: weight, bias, layer by layer."""
        fan_in = [TAPS * self.inputs, *[TAPS * self.width] * (self.layers - 1)]
        pairs = [(n, self.width) for n in fan_in] + [(self.width, self.hidden), (self.hidden, self.outputs)]
        return tuple(shape for n, m in pairs for shape in ((n, m), (1, m)))

    @property
    def count(self) -> int:
        """Parameters of one network (P)."""
        return sum(math.prod(shape) for shape in self.shapes)

    def initial(self, noise: Float[Tensor, "*lead P"]) -> Float[Tensor, "*lead P"]:
        """Turn uniform noise in [0, 1) into first parameters; outputs start near zero."""
        return fresh(noise, self.shapes)

    def unpack(self, theta: Float[Tensor, "G P"]) -> list[tuple[Tensor, Tensor]]:
        """View a matrix of parameters as weights and biases, each with the leading axis G."""
        pieces = theta.split([math.prod(shape) for shape in self.shapes], dim=1)
        viewed = [piece.view(-1, *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        return list(zip(viewed[::2], viewed[1::2], strict=True))

    def __call__(self, theta: Float[Tensor, "G P"], x: Float[Tensor, "G N T F"]) -> Float[Tensor, "G N out"]:
        """Evaluate network g on windows x[g]; the last layer is never in lower precision."""
        *filters, (w1, b1), (w2, b2) = self.unpack(theta)
        for n, (weight, bias) in enumerate(filters):
            x = self.layer(x, weight, bias, around=n > 0)
        x = affine(x[:, :, -1], w1, b1).relu()
        wide = torch.promote_types(theta.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return affine(x.to(wide), w2.to(wide), b2.to(wide))

    def layer(self, x: Tensor, weight: Tensor, bias: Tensor, around: bool) -> Float[Tensor, "G N t C"]:
        """Convolve, of every second row the last among them, and keep what came in."""
        padded = F.pad(x, (0, 0, 1 + x.shape[2] % 2, 0))
        taps = torch.cat([padded[:, :, 0:-2:2], padded[:, :, 1:-1:2], padded[:, :, 2::2]], -1)
        made = affine(taps.flatten(1, 2), weight, bias)
        made = F.layer_norm(made, (self.width,)).relu().unflatten(1, taps.shape[1:3])
        return made + padded[:, :, 2::2] if around else made
