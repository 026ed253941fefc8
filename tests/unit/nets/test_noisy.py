"""Noise on a last layer by hand: its factors, its initial deviations, and the gradient of these."""

import math

import pytest
import torch

from uavlab.nets.attention import Entities, StackedAttention
from uavlab.nets.cnn import StackedCNN
from uavlab.nets.mlp import StackedMLP, StackedNet, add_noise, append_stds, factorised_noise
from uavlab.nets.sequences import StackedGRU

NETS = [
    StackedMLP(5, 8, 3),
    StackedGRU(5, 8, 4, 3),
    StackedCNN(2, 6, 4, (3, 2), 8, 3, features=2),
    StackedAttention(Entities(3, 2, 4, 1), 8, 2, 1, pairs=True),
]


def test_noise_has_a_factor_for_each_input_and_output() -> None:
    """Of inputs 4 and -9, and outputs 1, -0.25 and 0: the roots are 2 and -3, and 1, -0.5 and 0."""
    noise = factorised_noise(torch.tensor([[4.0, -9.0, 1.0, -0.25, 0.0]]), 2)
    assert noise.tolist() == [[2.0, -1.0, 0.0, -3.0, 1.5, 0.0, 1.0, -0.5, 0.0]]


def test_noise_of_weights_has_the_moments_of_the_product() -> None:
    """Each factor has mean 0 and variance E|x| = sqrt(2 / pi); noise of each weight alone would have rank two."""
    noise = factorised_noise(
        torch.randn(100_000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 2
    )
    weights, bias = noise[:, :4].unflatten(-1, (2, 2)), noise[:, 4:]
    assert weights.mean(0).abs().max() < 0.02
    assert weights.square().mean(0).flatten().tolist() == pytest.approx([2 / math.pi] * 4, rel=0.03)
    assert bias.square().mean(0).tolist() == pytest.approx([math.sqrt(2 / math.pi)] * 2, rel=0.03)
    assert torch.linalg.det(weights).abs().max() < 1e-12


def test_the_last_layer_alone_is_moved() -> None:
    """One input and one output: 1 and 2 are of an earlier layer, 3 and 4 weight and bias, then their deviations."""
    theta = torch.tensor([[1.0, 2.0, 3.0, 4.0, 0.5, -0.25]])
    assert add_noise(theta, torch.tensor([[2.0, 8.0]])).tolist() == [[1.0, 2.0, 4.0, 2.0]]
    assert add_noise(theta, torch.zeros(1, 2)).tolist() == [[1.0, 2.0, 3.0, 4.0]]


def test_the_gradient_of_a_deviation_is_that_of_its_weight_times_the_noise() -> None:
    net, dice = NETS[0], torch.Generator().manual_seed(0)
    theta = append_stds(torch.randn(2, net.count, generator=dice), *net.weights[-1]).requires_grad_()
    noise = factorised_noise(torch.randn(2, sum(net.weights[-1]), generator=dice), net.weights[-1][0])
    out = net(add_noise(theta, noise), torch.randn(2, 7, 5, generator=dice))
    (slope,) = torch.autograd.grad(out.square().sum(), theta)
    size = noise.shape[1]
    of_last, of_stds = slope[:, net.count - size : net.count], slope[:, net.count :]
    assert torch.equal(of_stds, of_last * noise)
    assert of_stds.count_nonzero() > of_stds.numel() / 2  # hidden units may be dead


@pytest.mark.parametrize("net", NETS, ids=lambda net: type(net).__name__)
def test_every_network_ends_with_its_last_layer(net: StackedNet) -> None:
    """Noise on the bias of one output moves that output by it; the last layer of pairs is one for all pairs."""
    inputs, outputs = net.weights[-1]
    theta = append_stds(torch.zeros(1, net.count), inputs, outputs)
    size = (inputs + 1) * outputs
    assert theta.shape == (1, net.count + size)
    assert theta[0, net.count :].tolist() == pytest.approx([0.5 / math.sqrt(inputs)] * size)
    noise = torch.zeros(1, size)
    noise[0, -1] = 2.0
    *_, weight, bias = net.unpack(add_noise(theta, noise))
    assert weight.abs().max() == 0
    assert bias[0, 0].tolist() == pytest.approx([0.0] * (outputs - 1) + [1 / math.sqrt(inputs)])
