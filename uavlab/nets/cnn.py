"""G networks of the same architecture on square maps: convolutions without padding, then two linear layers.

The first linear layer may also see features beside the maps. As in ``nets.mlp``, a network is a row of one matrix.
Within it, channels come last.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from uavlab.nets.mlp import StackedNet, affine

WIDE = 128  # output channels from which a product over patches is faster than a convolution, on a CPU


@dataclass(frozen=True)
class StackedCNN(StackedNet):
    """Convolutions, by kernels no larger than their inputs, and a hidden layer with ReLU, then a linear layer."""

    channels: int
    side: int  # rows and columns of the maps (L)
    width: int
    kernels: tuple[int, ...]  # side of each convolution's kernel
    hidden: int
    outputs: int
    features: int = 0  # features beside the maps (F), inputs of the hidden layer behind those from the convolutions

    @property
    def weights(self) -> list[tuple[int, ...]]:
        """Shapes of one network's weights; of a convolution: rows, columns, channels in, channels out."""
        shapes: list[tuple[int, ...]] = []
        channels, side = self.channels, self.side
        for kernel in self.kernels:
            size = min(kernel, side)
            shapes.append((size, size, channels, self.width))
            channels, side = self.width, side - size + 1
        return [*shapes, (side**2 * channels + self.features, self.hidden), (self.hidden, self.outputs)]

    def initial_for(
        self, noise: Float[Tensor, "*lead P"], center: Float[Tensor, "*lead F"], scale: Float[Tensor, "*lead F"]
    ) -> Float[Tensor, "*lead P"]:
        """Turn noise into initial parameters as ``initial`` does, but for features (x - center) / scale."""
        *filters, weight, bias, w2, b2 = self.initial(noise).split([math.prod(shape) for shape in self.shapes], -1)
        from_maps, own = weight.unflatten(-1, self.weights[-2]).tensor_split([-self.features], -2)
        own = own / scale[..., None]
        bias = bias - (center[..., None, :] @ own).squeeze(-2)
        return torch.cat([*filters, from_maps.flatten(-2), own.flatten(-2), bias, w2, b2], -1)

    def __call__(
        self, theta: Float[Tensor, "G P"], x: Float[Tensor, "G N C L L"], features: Float[Tensor, "G N F"] | None = None
    ) -> Float[Tensor, "G N out"]:
        """Evaluate network g on maps x[g], and on features[g] if it has any.

        Features and the last layer are never in lower precision, as the first and last layer of ``StackedMLP``.
        """
        *filters, w1, b1, w2, b2 = self.unpack(theta)
        if features is not None:
            with torch.autocast(x.device.type, enabled=False):
                b1 = affine(features, w1[:, -self.features :], b1)  # w1 (maps, features) = w1 maps + w1 features
            w1 = w1[:, : -self.features]
        x = x.permute(0, 1, 3, 4, 2).contiguous()
        for weight, bias in zip(filters[::2], filters[1::2], strict=True):
            convolve = convolve_by_matmul if weight.shape[-1] >= WIDE and not x.is_cuda else convolve_grouped
            x = convolve(x, weight, bias).relu()
        x = affine(x.flatten(2), w1, b1).relu()
        wide = torch.promote_types(theta.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return affine(x.to(wide), w2.to(wide), b2.to(wide))


def convolve_grouped(
    x: Float[Tensor, "G N H W C"], weight: Float[Tensor, "G k k C D"], bias: Float[Tensor, "G 1 D"]
) -> Float[Tensor, "G N h w D"]:
    """Convolve the maps of all networks as channels of one image: fastest on a GPU, or for few channels."""
    groups = len(x)
    images = x.permute(1, 0, 4, 2, 3).flatten(1, 2)
    filters = weight.permute(0, 4, 3, 1, 2).flatten(0, 1)
    result = F.conv2d(images, filters, bias.flatten(), groups=groups)
    return result.unflatten(1, (groups, -1)).permute(1, 0, 3, 4, 2)


def convolve_by_matmul(
    x: Float[Tensor, "G N H W C"], weight: Float[Tensor, "G k k C D"], bias: Float[Tensor, "G 1 D"]
) -> Float[Tensor, "G N h w D"]:
    """Convolve by a matrix product over patches: on a CPU two to four times as fast with many channels."""
    cut = extract_patches(x, weight.shape[1])
    result = affine(cut.flatten(1, 3), weight.flatten(1, 3), bias)
    return result.unflatten(1, cut.shape[1:4])


def extract_patches(x: Float[Tensor, "G N H W C"], size: int) -> Float[Tensor, "G N h w size*size*C"]:
    """Return the size x size patch at each position as one row of features."""
    if torch.compiler.is_compiling():
        down, across = (length - size + 1 for length in x.shape[2:4])
        squares = [x[:, :, i : i + down, j : j + across] for i in range(size) for j in range(size)]
        return torch.cat(squares, -1)
    return _Patches.apply(x, size)  # torch's own gradient of ``unfold`` is many times slower


class _Patches(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, size: int) -> Tensor:
        return x.unfold(2, size, 1).unfold(3, size, 1).permute(0, 1, 2, 3, 5, 6, 4).flatten(4)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.shape, ctx.size = inputs[0].shape, inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        size, total = ctx.size, grad.new_zeros(ctx.shape)
        grad = grad.unflatten(-1, (size, size, -1))
        down, across = grad.shape[2:4]
        for i in range(size):
            for j in range(size):
                total[:, :, i : i + down, j : j + across] += grad[..., i, j, :]
        return total, None
