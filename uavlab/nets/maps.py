"""G equal networks on square maps, evaluated as one: convolutions without padding, then two linear layers.

As in ``nets.stacked``, a network is a row of one matrix. Convolutions of several networks are one grouped convolution.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from uavlab.nets.stacked import OUTPUT_STD, affine


@dataclass(frozen=True)
class StackedMaps:
    """Convolutions and a hidden layer with ReLU, then a linear layer.

    Kernels larger than what is left of a map shrink to that, so maps may have any size.

    Attributes:
        channels: Channels of the maps (C).
        side: Rows and columns of the maps (L).
        width: Channels of each convolution.
        kernels: Side of each convolution's kernel.
        hidden: Width of the hidden layer.
        outputs: Output features.
    """

    channels: int
    side: int
    width: int
    kernels: tuple[int, ...]
    hidden: int
    outputs: int

    @property
    def convolutions(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the convolutions' weights."""
        shapes, channels, side = [], self.channels, self.side
        for kernel in self.kernels:
            shapes.append((self.width, channels, min(kernel, side), min(kernel, side)))
            channels, side = self.width, side - min(kernel, side) + 1
        return tuple(shapes)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of one network's pieces, in the order in which a row holds them: weight, bias, layer by layer."""
        filters = self.convolutions
        side = self.side - sum(shape[-1] - 1 for shape in filters)
        features = side**2 * (self.width if filters else self.channels)
        layers = [(shape, (self.width,)) for shape in filters]
        layers += [((features, self.hidden), (1, self.hidden)), ((self.hidden, self.outputs), (1, self.outputs))]
        return tuple(shape for layer in layers for shape in layer)

    @property
    def count(self) -> int:
        """Parameters of one network (P)."""
        return sum(math.prod(shape) for shape in self.shapes)

    def initial(self, noise: Float[Tensor, "*lead P"]) -> Float[Tensor, "*lead P"]:
        """Turn uniform noise in [0, 1) into first parameters; outputs start near zero.

        Source:
            He et al. 2015, "Delving Deep into Rectifiers", eq. 10, uniform form: bound sqrt(6 / fan_in).
        """
        pieces = noise.split([math.prod(shape) for shape in self.shapes], dim=-1)
        bounds = [math.sqrt(6 / math.prod(shape[1:])) for shape in self.convolutions]
        bounds += [math.sqrt(6 / self.shapes[-4][0]), OUTPUT_STD * math.sqrt(3)]
        made = []
        for n, bound in enumerate(bounds):
            made += [bound * (2 * pieces[2 * n] - 1), torch.zeros_like(pieces[2 * n + 1])]
        return torch.cat(made, -1)

    def unpack(self, theta: Float[Tensor, "G P"]) -> list[Tensor]:
        """View a matrix of parameters as its pieces, each with the leading axis G."""
        pieces = theta.split([math.prod(shape) for shape in self.shapes], dim=1)
        return [piece.view(-1, *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def __call__(self, theta: Float[Tensor, "G P"], x: Float[Tensor, "G N C L L"]) -> Float[Tensor, "G N out"]:
        """Evaluate network g on maps x[g]; the last layer is never in lower precision."""
        *filters, w1, b1, w2, b2 = self.unpack(theta)
        groups, rows = x.shape[:2]
        x = x.transpose(0, 1).reshape(rows, -1, self.side, self.side)
        for weight, bias in zip(filters[::2], filters[1::2], strict=True):
            x = F.conv2d(x, weight.flatten(0, 1), bias.flatten(), groups=groups).relu()
        x = x.reshape(rows, groups, -1).transpose(0, 1)
        x = affine(x, w1, b1).relu()
        wide = torch.promote_types(theta.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return affine(x.to(wide), w2.to(wide), b2.to(wide))
