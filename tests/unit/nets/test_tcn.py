"""Stacked convolutions equal a plain network that computes every row; the last row depends on the whole window."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from uavlab.nets.mlp import OUTPUT_STD
from uavlab.nets.sequences import StackedTCN

NET = StackedTCN(inputs=5, window=33, width=6, hidden=8, outputs=3)
LAYERS = {1: 1, 2: 1, 3: 1, 4: 2, 7: 2, 8: 3, 15: 3, 16: 4, 33: 5, 200: 7}  # 3, 7, 15, 31, ... rows are seen
G, N = 3, 2


def of_window(rows: int) -> StackedTCN:
    return replace(NET, window=rows)


def theta(net: StackedTCN, dtype: torch.dtype = torch.float64) -> Tensor:
    return 0.5 * torch.randn(G, net.count, generator=torch.Generator().manual_seed(0), dtype=dtype)


def windows(net: StackedTCN, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(G, N, net.window, net.inputs, generator=torch.Generator().manual_seed(1), dtype=dtype)


def slow(net: StackedTCN, row: Tensor, x: Tensor, dilations: list[int]) -> Tensor:
    """Evaluate one network on one window (T F) with torch.nn, every row of every layer: outputs of all rows (T out)."""
    sizes = [torch.Size(shape).numel() for shape in net.shapes]
    pieces = [part.view(shape) for part, shape in zip(row.split(sizes), net.shapes, strict=True)]
    *filters, (w1, b1), (w2, b2) = list(zip(pieces[::2], pieces[1::2], strict=True))
    for n, ((weight, bias), apart) in enumerate(zip(filters, dilations, strict=True)):
        convolution = nn.Conv1d(x.shape[1], net.width, 3, dilation=apart, dtype=x.dtype)
        with torch.no_grad():
            convolution.weight.copy_(weight.view(3, x.shape[1], net.width).permute(2, 1, 0))
            convolution.bias.copy_(bias[0])
            earlier = x.new_zeros(2 * apart, x.shape[1])
            y = convolution(torch.cat([earlier, x]).T[None])[0].T
        y = nn.functional.layer_norm(y, (net.width,)).relu()
        x = y + x if n else y
    return (x @ w1 + b1).relu() @ w2 + b2


def doubled(net: StackedTCN) -> list[int]:
    return [2**n for n in range(net.layers)]


@pytest.mark.parametrize("rows", [1, 2, 7, 33, 200])
def test_equals_a_network_that_computes_every_row(rows: int) -> None:
    net = of_window(rows)
    rows_of, x = theta(net), windows(net)
    out = net(rows_of, x)
    assert out.shape == (G, N, 3)
    for g in range(G):
        for n in range(N):
            expected = slow(net, rows_of[g], x[g, n], doubled(net))[-1]
            torch.testing.assert_close(out[g, n], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dilations", [[1, 1, 1, 1, 1], [1, 2, 4, 8, 8], [2, 4, 8, 16, 32]])
def test_other_dilations_would_be_noticed(dilations: list[int]) -> None:
    out = NET(theta(NET), windows(NET))
    other = slow(NET, theta(NET)[0], windows(NET)[0, 0], dilations)[-1]
    assert (out[0, 0] - other).abs().max() > 1e-3


def test_a_row_sees_none_after_it() -> None:
    """The plain network's output at a row is ours for a window that ends there."""
    row, x = theta(NET)[0], windows(NET)[0, 0]
    every = slow(NET, row, x, doubled(NET))
    for end in (10, 20, 33):
        output = NET(row[None], x[None, None, :end])[0, 0]  # of as many layers
        torch.testing.assert_close(output, every[end - 1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rows", "layers"), LAYERS.items())
def test_the_last_row_sees_the_first(rows: int, layers: int) -> None:
    net = of_window(rows)
    assert net.layers == layers
    x = windows(net).requires_grad_()
    (gradient,) = torch.autograd.grad(net(theta(net), x).sum(), x)
    assert (gradient[:, :, 0].abs().amax(-1) > 0).all()
    assert (gradient.abs().amax(-1) > 0).double().mean() > 0.9  # and nearly all between; ReLUs hide some


def test_one_layer_fewer_would_not_see_the_first() -> None:
    net = of_window(16)
    x = windows(net)[0, 0].requires_grad_()
    row = theta(of_window(15))[0]
    (gradient,) = torch.autograd.grad(of_window(15)(row[None], x[None, None]).sum(), x)
    assert gradient[0].abs().max() == 0
    assert gradient[1].abs().max() > 0


def test_networks_in_one_equal_networks_one_by_one_with_gradients() -> None:
    rows, x = theta(NET).requires_grad_(), windows(NET)
    out = NET(rows, x)
    (gradient,) = torch.autograd.grad(out.square().sum(), rows)
    for g in range(G):
        alone = rows[g : g + 1].detach().requires_grad_()
        expected = NET(alone, x[g : g + 1])
        torch.testing.assert_close(out[g], expected[0], rtol=1e-12, atol=1e-12)
        (own,) = torch.autograd.grad(expected.square().sum(), alone)
        torch.testing.assert_close(gradient[g], own[0], rtol=1e-11, atol=1e-11)
    assert not torch.equal(NET(rows.flip(0), x), out)


def test_shapes_and_count_by_hand() -> None:
    """Two layers of 3 x 5 and 3 x 6 numbers into 6 channels, then 8 hidden and 3 outputs."""
    net = of_window(7)
    assert net.shapes == ((15, 6), (1, 6), (18, 6), (1, 6), (6, 8), (1, 8), (8, 3), (1, 3))
    assert net.count == 90 + 6 + 108 + 6 + 48 + 8 + 24 + 3
    assert [tuple(part.shape) for part in net.unpack(theta(net))] == [(G, *s) for s in net.shapes]


@pytest.mark.parametrize(("unit", "sign"), [(0.0, -1), (1.0, 1), (0.5, 0)])
@pytest.mark.parametrize("outputs", [3, 6, 8])  # as many as there are channels, or hidden units
def test_first_parameters_reach_their_bounds_and_no_further(unit: float, sign: int, outputs: int) -> None:
    net = replace(of_window(7), outputs=outputs)
    bounds = [math.sqrt(6 / 15), math.sqrt(6 / 18), math.sqrt(6 / 6), OUTPUT_STD * math.sqrt(3)]
    pieces = net.unpack(net.initial(torch.full((1, net.count), unit, dtype=torch.float64)))
    for (weight, bias), bound in zip(zip(pieces[::2], pieces[1::2], strict=True), bounds, strict=True):
        assert weight.flatten().tolist() == pytest.approx([sign * bound] * weight.numel())
        assert bias.abs().max() == 0


def test_leading_axes_of_initial_may_be_several() -> None:
    noise = torch.rand(2, 3, NET.count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(NET.initial(noise)[1, 2], NET.initial(noise[1, 2]))


@pytest.mark.parametrize(
    ("given", "returned"),
    [(torch.float32, torch.float32), (torch.float64, torch.float64), (torch.bfloat16, torch.float32)],
)
def test_results_leave_in_float32_at_least(given: torch.dtype, returned: torch.dtype) -> None:
    assert NET(theta(NET, given), windows(NET, given)).dtype == returned
