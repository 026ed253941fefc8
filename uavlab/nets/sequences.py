"""Networks over steps, as rows of one matrix: a gated recurrent unit (GRU), and temporal convolutions (TCN)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.nets.mlp import StackedNet, affine, hidden_layers

TAPS = 3  # rows of a kernel of ``StackedTCN``


@dataclass(frozen=True)
class StackedGRU(StackedNet):
    """Two hidden layers with LayerNorm and ReLU, a GRU, then a linear layer."""

    inputs: int
    hidden: int
    memory: int  # units of the GRU (M)
    outputs: int

    @property
    def weights(self) -> list[tuple[int, ...]]:
        """Shapes of one network's weights; those of the GRU's input and memory hold three gates, as ``recur`` does."""
        gates = 3 * self.memory
        layers = [(self.inputs, self.hidden), (self.hidden, self.hidden)]
        return [*layers, (self.hidden, gates), (self.memory, gates), (self.memory, self.outputs)]

    @property
    def bounds(self) -> list[float]:
        """Largest initial weights; those of the memory neither amplify nor damp it: sqrt(3 / fan_in)."""
        *first, _, last = super().bounds
        return [*first, math.sqrt(3 / self.memory), last]

    def __call__(
        self,
        theta: Float[Tensor, "G P"],
        x: Float[Tensor, "G T N I"],
        memory: Float[Tensor, "G N M"],
        fresh: Bool[Tensor, "G T N"] | None = None,
    ) -> tuple[Float[Tensor, "G T N out"], Float[Tensor, "G T N M"]]:
        """Evaluate network g on T steps of rows x[g], from the memory before the first step.

        Only the products between hidden layers may be in lower precision; errors of a memory would add up over steps.

        Args:
            theta: Parameters.
            x: Inputs.
            memory: Memory before the first step.
            fresh: Steps before which a row's memory is set to zero; None for no such step.

        Returns:
            The outputs, and the memory after each step.
        """
        *hidden, w3, b3, w4, b4, w5, b5 = self.unpack(theta)
        wide = torch.promote_types(theta.dtype, torch.float32)
        gates = affine(hidden_layers(x.flatten(1, 2), *hidden), w3, b3).unflatten(1, x.shape[1:3])
        with torch.autocast(x.device.type, enabled=False):
            states = recur(gates.to(wide), w4.to(wide), b4.to(wide), memory, fresh)
            out = affine(states.flatten(1, 2), w5.to(wide), b5.to(wide))
        return out.unflatten(1, x.shape[1:3]), states


def recur(
    gates: Float[Tensor, "G T N K"],
    weight: Float[Tensor, "G M K"],
    bias: Float[Tensor, "G 1 K"],
    memory: Float[Tensor, "G N M"],
    fresh: Bool[Tensor, "G T N"] | None,
) -> Float[Tensor, "G T N M"]:
    """Return the memory h after each step of a GRU.

    With ``gates`` x of the input and y = h weight + bias of the memory, each of three pieces (K = 3 M), h becomes
    (1 - z) n + z h, where r = sigmoid(x1 + y1), z = sigmoid(x2 + y2), n = tanh(x3 + r y3).

    Source:
        Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", in the form of ``torch.nn.GRU``.
    """
    size = weight.shape[1]
    pieces, states = [2 * size, size], []
    steps = (each.unbind(1) for each in gates.split(pieces, -1))  # one gradient for all steps, not one for each
    for step, (own, own_new) in enumerate(zip(*steps, strict=True)):
        if fresh is not None:
            memory = memory.masked_fill(fresh[:, step, :, None], 0.0)
        back, back_new = affine(memory, weight, bias).split(pieces, -1)
        reset, keep = (own + back).sigmoid().chunk(2, -1)
        new = torch.tanh(torch.addcmul(own_new, reset, back_new))
        memory = torch.lerp(new, memory, keep)
        states.append(memory)
    return torch.stack(states, 1)


@dataclass(frozen=True)
class StackedTCN(StackedNet):
    """Causal convolutions with LayerNorm, ReLU and residual connections, then a hidden layer and a linear one.

    It is evaluated at the last row of a window, before which rows are zero in every layer. Layer i has dilation 2^i, so
    few layers cover a long window; each computes only the rows that the last one depends on, half as many as the layer
    before.

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
