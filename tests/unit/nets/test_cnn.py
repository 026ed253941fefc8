"""Stacked networks on maps equal the same number of torch.nn networks, by product and by convolution, gradients too."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.support.fake_device import fake_device
from uavlab.nets import cnn
from uavlab.nets.cnn import WIDE, StackedCNN, convolve_by_matmul, convolve_grouped, extract_patches

NET = StackedCNN(channels=3, side=9, width=4, kernels=(4, 3), hidden=8, outputs=6)
PUBLISHED = StackedCNN(channels=7, side=11, width=256, kernels=(5, 4, 4), hidden=256, outputs=6)
G, N = 3, 5


def plain(net: StackedCNN, row: Tensor) -> nn.Sequential:
    """Build one network by torch.nn, with channels first, with the parameters of a row."""
    layers: list[nn.Module] = []
    for size, _, into, out in net.weights[:-2]:
        layers += [nn.Conv2d(into, out, size), nn.ReLU()]
    features = net.weights[-2][0]
    layers += [nn.Flatten(), nn.Linear(features, net.hidden), nn.ReLU(), nn.Linear(net.hidden, net.outputs)]
    model = nn.Sequential(*layers).to(row.dtype)
    pieces = [piece[0] for piece in net.unpack(row[None])]
    weighted = [layer for layer in model if not isinstance(layer, nn.ReLU | nn.Flatten)]
    left = net.side - sum(shape[0] - 1 for shape in net.weights[:-2])
    with torch.no_grad():
        for n, layer in enumerate(weighted):
            weight, bias = pieces[2 * n], pieces[2 * n + 1]
            if isinstance(layer, nn.Conv2d):
                weight = weight.permute(3, 2, 0, 1)
            elif n == len(net.kernels):  # features arrive with channels first here, last in ours
                weight = weight.unflatten(0, (left, left, -1)).permute(2, 0, 1, 3).flatten(0, 2).T
            else:
                weight = weight.T
            layer.weight.copy_(weight)
            layer.bias.copy_(bias.flatten())
    return model


def theta(net: StackedCNN = NET) -> Tensor:
    dice = torch.Generator().manual_seed(0)
    return torch.randn(G, net.count, generator=dice, dtype=torch.float64)


def inputs(net: StackedCNN = NET) -> Tensor:
    dice = torch.Generator().manual_seed(1)
    return torch.randn(G, N, net.channels, net.side, net.side, generator=dice, dtype=torch.float64)


@pytest.mark.parametrize("wide", [1, 10**9], ids=["product", "convolution"])
def test_equals_separate_networks_with_gradients(wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cnn, "WIDE", wide)
    rows, x = theta().requires_grad_(), inputs()
    out = NET(rows, x)
    (gradient,) = torch.autograd.grad(out.square().sum(), rows)
    for g in range(G):
        model = plain(NET, rows[g].detach())
        expected = model(x[g])
        torch.testing.assert_close(out[g], expected, rtol=1e-9, atol=1e-9)
        loss = expected.square().sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        assert gradient[g].norm().item() == pytest.approx(math.sqrt(sum(x.square().sum().item() for x in grads)))


def with_features(drop: bool = False) -> tuple[StackedCNN, Tensor, Tensor, Tensor]:
    """Return a network of three features, its parameters, features, and what torch.nn computes for the first maps."""
    net = replace(NET, features=3)
    rows, dice = theta(net), torch.Generator().manual_seed(2)
    seen = torch.randn(G, N, 3, generator=dice, dtype=torch.float64)
    expected = []
    for g in range(G):
        *filters, w1, b1, w2, b2 = net.unpack(rows[g : g + 1])
        size = len(w1[0]) - 3
        alone = torch.cat([each.flatten() for each in (*filters, w1[:, :size], b1, w2, b2)])
        convolved = plain(NET, alone)[:5](inputs()[g])  # channels first; ours are last
        convolved = convolved.unflatten(1, (NET.width, -1)).transpose(1, 2).flatten(1)
        hidden = torch.cat((convolved, seen[g] * (not drop)), 1) @ w1[0] + b1[0]
        expected.append(hidden.relu() @ w2[0] + b2[0])
    return net, rows, seen, torch.stack(expected)


def test_features_stand_behind_what_comes_from_the_convolutions() -> None:
    net, rows, seen, expected = with_features()
    assert net.weights[-2:] == [(NET.weights[-2][0] + 3, 8), (8, 6)]
    assert net.count == NET.count + 3 * 8
    torch.testing.assert_close(net(rows, inputs(), seen), expected, rtol=1e-9, atol=1e-9)
    assert (net(rows, inputs(), seen) - with_features(drop=True)[3]).abs().max() > 0.1


def test_first_weights_undo_the_mean_and_spread_of_features() -> None:
    net, noise = replace(NET, features=3), torch.rand(G, replace(NET, features=3).count, dtype=torch.float64)
    seen = with_features()[2]
    center, scale = torch.tensor([5.0, -2.0, 0.0]).double(), torch.tensor([0.1, 10.0, 1.0]).double()
    moved = net.initial_for(noise, center.expand(G, -1), scale.expand(G, -1))
    far = net(moved, inputs(), center + scale * seen)
    torch.testing.assert_close(far, net(net.initial(noise), inputs(), seen), rtol=1e-9, atol=1e-9)
    assert (far - net(moved, inputs(), seen)).abs().max() > 1e-3


@pytest.mark.parametrize(("device", "width", "used"), [("cpu", 4, 0), ("cpu", WIDE, 1), ("cuda", WIDE, 0)])
def test_patches_are_cut_on_a_cpu_alone(device: str, width: int, used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU they take k^2 times the memory of the maps, for convolutions that a library has kernels for."""
    cuts: list[int] = []
    monkeypatch.setattr(cnn, "extract_patches", lambda x, size: cuts.append(size) or extract_patches(x, size))
    with fake_device(strict=False):
        net = StackedCNN(2, 5, width, (3,), 4, 3)
        net(torch.zeros(1, net.count, device=device), torch.zeros(1, 2, 2, 5, 5, device=device))
    assert len(cuts) == used


def test_swapped_rows_would_be_noticed() -> None:
    swapped = NET(theta().flip(0), inputs())
    with pytest.raises(AssertionError):
        torch.testing.assert_close(swapped[0], plain(NET, theta()[0])(inputs()[0]))


def test_products_equal_convolutions_with_gradients() -> None:
    dice = torch.Generator().manual_seed(2)
    x = torch.randn(2, 3, 6, 7, 4, generator=dice, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 3, 3, 4, 5, generator=dice, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 1, 5, generator=dice, dtype=torch.float64, requires_grad=True)
    outputs = [convolve(x, weight, bias) for convolve in (convolve_grouped, convolve_by_matmul)]
    torch.testing.assert_close(*outputs)
    grads = [torch.autograd.grad(each.cos().sum(), (x, weight, bias)) for each in outputs]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_patches_pass_the_check_of_gradients() -> None:
    x = torch.randn(1, 2, 4, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: extract_patches(given, 3), (x,))


def test_patches_are_the_same_compiled() -> None:
    x = torch.randn(2, 3, 5, 5, 2)
    compiled = torch.compile(lambda given: extract_patches(given, 2), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), extract_patches(x, 2))


def test_a_filter_has_a_bias_for_each_channel_that_it_gives() -> None:
    layers = NET.by_layer
    assert layers["layer_1"] == {"weight": (4, 4, 3, 4), "bias": (4,)}
    assert layers["layer_4"] == {"weight": (8, 6), "bias": (6,)}
    assert sum(math.prod(shape) for layer in layers.values() for shape in layer.values()) == NET.count


def test_the_published_network_has_the_published_size() -> None:
    unused = 256 * 256 + 256  # a layer that is defined there and never called
    assert PUBLISHED.count == 2_275_846 - unused
    critic = StackedCNN(channels=12, side=11, width=256, kernels=(5, 4, 4), hidden=256, outputs=6)
    assert critic.count == 2_307_846 - unused


@pytest.mark.parametrize("side", [1, 3, 7, 11, 13])
def test_maps_may_have_any_size(side: int) -> None:
    net = StackedCNN(channels=2, side=side, width=4, kernels=(5, 4, 4), hidden=8, outputs=6)
    assert net(torch.zeros(1, net.count), torch.zeros(1, 2, 2, side, side)).shape == (1, 2, 6)


def test_first_outputs_are_small_and_inner_layers_keep_their_size() -> None:
    first = PUBLISHED.initial(torch.rand(1, PUBLISHED.count, generator=torch.Generator().manual_seed(0)))
    out = PUBLISHED(first, torch.randn(1, 64, 7, 11, 11, generator=torch.Generator().manual_seed(1)))
    assert 0.02 < out.std() < 0.5
    pieces = PUBLISHED.unpack(first)
    for weight in pieces[:-2:2]:
        assert weight.std().item() == pytest.approx(math.sqrt(2 / math.prod(weight.shape[1:-1])), rel=0.05)
    assert all(bias.abs().max() == 0 for bias in pieces[1::2])
