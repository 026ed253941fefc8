"""G networks of the same architecture: parameters are the rows of one matrix, each layer is one batched product.

With one matrix of parameters, gradient norms, an optimizer step, a target update and a checkpoint are one operation
each.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

OUTPUT_STD = 0.01  # standard deviation of the last layer's initial weights: policies start near zero


class StackedNet:
    """Base of stacked networks; ``weights`` determines the layout of their parameters."""

    @property
    def weights(self) -> list[tuple[int, ...]]:
        """Shapes of one network's weights, layer by layer; outputs come last."""
        raise NotImplementedError

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of one network's pieces in the order of a row: weight and bias, layer by layer."""
        return tuple(shape for weight in self.weights for shape in (weight, (1, weight[-1])))

    @property
    def by_layer(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Shapes of one network's weights and biases by layer, from the first to the last."""
        return {f"layer_{n}": {"weight": shape, "bias": shape[-1:]} for n, shape in enumerate(self.weights, 1)}

    @property
    def count(self) -> int:
        """Parameters of one network (P)."""
        return sum(self.sizes)

    @property
    def bounds(self) -> list[float]:
        """Largest initial weights, layer by layer; those of the last layer make its outputs near zero.

        Source:
            He et al. 2015, "Delving Deep into Rectifiers", eq. 10, uniform form: bound sqrt(6 / fan_in).
        """
        return [math.sqrt(6 / math.prod(weight[:-1])) for weight in self.weights[:-1]] + [OUTPUT_STD * math.sqrt(3)]

    def initial(self, noise: Float[Tensor, "*lead P"]) -> Float[Tensor, "*lead P"]:
        """Turn uniform noise in [0, 1) into initial weights within ``bounds``, and biases of zero."""
        pieces = noise.split(self.sizes, dim=-1)
        parameters = []
        for bound, weight, bias in zip(self.bounds, pieces[::2], pieces[1::2], strict=True):
            parameters += [bound * (2 * weight - 1), torch.zeros_like(bias)]
        return torch.cat(parameters, -1)

    def initial_for(
        self, noise: Float[Tensor, "*lead P"], center: Float[Tensor, "*lead I"], scale: Float[Tensor, "*lead I"]
    ) -> Float[Tensor, "*lead P"]:
        """Turn noise into initial parameters as ``initial`` does, but for inputs (x - center) / scale of a dense layer.

        LayerNorm keeps only the direction of its input, so an untrained network could not distinguish inputs that vary
        little around a large mean.
        """
        bounds = [each for bound in self.bounds for each in (bound, 0)]
        pieces = noise.split(self.sizes, dim=-1)
        first, bias, *rest = [bound * (2 * u - 1) for bound, u in zip(bounds, pieces, strict=True)]
        weight = first.unflatten(-1, self.weights[0]) / scale[..., None]
        bias = bias - (center[..., None, :] @ weight).squeeze(-2)
        return torch.cat([weight.flatten(-2), bias, *rest], -1)

    @property
    def sizes(self) -> list[int]:
        """Numbers of one network's pieces."""
        return [math.prod(shape) for shape in self.shapes]

    def unpack(self, theta: Float[Tensor, "G P"]) -> list[Tensor]:
        """View a matrix of parameters as its pieces, each with the leading axis G."""
        pieces = theta.split(self.sizes, dim=1)
        return [piece.view(-1, *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]


@dataclass(frozen=True)
class StackedMLP(StackedNet):
    """Two hidden layers with LayerNorm and ReLU, then a linear layer.

    >>> net = ul.StackedMLP(inputs=3, hidden=8, outputs=2)
    >>> theta = net.initial(ul.Streams([0, 1]).uniform("actor", net.count))  # a network for each of two runs
    >>> net(theta, torch.zeros(2, 5, 3)).shape
    torch.Size([2, 5, 2])

    LayerNorm has no scale and shift: stacked, they cost two more passes over every activation, a seventh of the time of
    an update, and teams learn without them.

    Attributes:
        inputs: Input features.
        hidden: Width of both hidden layers (H).
        outputs: Output features.
    """

    inputs: int
    hidden: int
    outputs: int

    @property
    def weights(self) -> list[tuple[int, ...]]:
        return [(self.inputs, self.hidden), (self.hidden, self.hidden), (self.hidden, self.outputs)]

    def __call__(self, theta: Float[Tensor, "G P"], x: Float[Tensor, "G N I"]) -> Float[Tensor, "G N out"]:
        """Evaluate network g on rows x[g].

        Only the product between the hidden layers, nearly all of the work, may be in lower precision. The first layer
        subtracts means that may be much larger than the difference; the last one returns values that may be large, and
        bfloat16 has a spacing of 4 at 800.
        """
        *hidden, w3, b3 = self.unpack(theta)
        wide = torch.promote_types(theta.dtype, torch.float32)
        x = hidden_layers(x, *hidden)
        with torch.autocast(x.device.type, enabled=False):
            return affine(x.to(wide), w3.to(wide), b3.to(wide))


def hidden_layers(x: Float[Tensor, "G N I"], w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Float[Tensor, "G N H"]:
    """Evaluate two layers with LayerNorm and ReLU; only the second may be in lower precision."""
    with torch.autocast(x.device.type, enabled=False):
        x = F.layer_norm(affine(x, w1, b1), w1.shape[-1:]).relu_()
    return F.layer_norm(affine(x, w2, b2), w2.shape[-1:]).relu_()


def affine(
    x: Float[Tensor, "G N I"], weight: Float[Tensor, "G I O"], bias: Float[Tensor, "G _ O"]
) -> Float[Tensor, "G N O"]:
    """Return x weight + bias by one operator; in compiled code by two, of which the sum is fused with the next one."""
    return torch.bmm(x, weight) + bias if torch.compiler.is_compiling() else torch.baddbmm(bias, x, weight)


# Tables with a row for each network, of which agents may share some.


def per_agent(rows: Float[Tensor, "G ..."], runs: int, networks: tuple[int, ...]) -> Float[Tensor, "R A ..."]:
    """Return the row of each agent's network, as a view if the rows are consecutive."""
    return of_agents(rows.unflatten(0, (runs, -1)), networks)


def of_agents(table: Float[Tensor, "R K ..."], networks: tuple[int, ...]) -> Float[Tensor, "R A ..."]:
    """Return for each agent what its network has, as a view if the networks are consecutive.

    An index that is a tensor would come from the host, for which a GPU waits.
    """
    if networks == tuple(range(table.shape[1])):
        return table
    first = networks[0]
    if networks == tuple(range(first, first + len(networks))):
        return table[:, first : first + len(networks)]
    return torch.cat([table[:, n : n + 1] for n in networks], 1)


def by_network(
    reduce: Callable[[Tensor, int], Tensor], x: Float[Tensor, "R A ..."], networks: tuple[int, ...]
) -> Float[Tensor, "R K ..."]:
    """Return for each network the sum or mean (``reduce``) over its agents; ``x`` itself if each agent has its own."""
    if networks == tuple(range(len(networks))):
        return x
    return torch.stack([reduce(of_agents(x, members(networks, n)), 1) for n in range(len(set(networks)))], 1)


def members(networks: tuple[int, ...], network: int) -> tuple[int, ...]:
    return tuple(agent for agent, own in enumerate(networks) if own == network)


# Noise on the weights of a last layer (Fortunato et al. 2018, "Noisy Networks for Exploration", factorised Gaussian
# noise). A row holds the parameters of a network, then the standard deviations of those of its last layer.
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
