"""Stacked networks equal the same number of torch.nn networks; initial parameters have the distribution of He et al."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from uavlab.nets.mlp import OUTPUT_STD, StackedMLP

NET = StackedMLP(inputs=5, hidden=8, outputs=3)
G, N = 4, 6


def plain(net: StackedMLP, row: Tensor) -> nn.Sequential:
    """Build one network by torch.nn with the parameters of a row."""
    i, h, o = net.inputs, net.hidden, net.outputs
    norm = partial(nn.LayerNorm, elementwise_affine=False)
    model = nn.Sequential(nn.Linear(i, h), norm(h), nn.ReLU(), nn.Linear(h, h), norm(h), nn.ReLU(), nn.Linear(h, o)).to(
        row.dtype
    )
    used = 0
    with torch.no_grad():
        for parameter in model.parameters():
            numbers = row[used : used + parameter.numel()]
            used += parameter.numel()
            shape = parameter.shape if parameter.dim() == 1 else parameter.shape[::-1]
            parameter.copy_(numbers.view(shape).T if parameter.dim() == 2 else numbers.view(shape))
    assert used == len(row) == net.count
    return model


def theta(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(G, NET.count, generator=torch.Generator().manual_seed(0), dtype=dtype)


def inputs(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(G, N, NET.inputs, generator=torch.Generator().manual_seed(1), dtype=dtype)


def test_equals_separate_networks_with_gradients() -> None:
    rows, x = theta().requires_grad_(), inputs()
    out = NET(rows, x)
    assert out.shape == (G, N, 3)
    (gradient,) = torch.autograd.grad(out.square().sum(), rows)
    for g in range(G):
        model = plain(NET, rows[g].detach())
        expected = model(x[g])
        torch.testing.assert_close(out[g], expected, rtol=1e-10, atol=1e-10)
        expected.square().sum().backward()
        flat = [p.grad.T.flatten() if p.dim() == 2 else p.grad for p in model.parameters() if p.grad is not None]
        torch.testing.assert_close(gradient[g], torch.cat(flat), rtol=1e-9, atol=1e-9)


def test_swapped_rows_would_be_noticed() -> None:
    swapped = NET(theta().flip(0), inputs())
    with pytest.raises(AssertionError):
        torch.testing.assert_close(swapped[0], plain(NET, theta()[0])(inputs()[0]))


@pytest.mark.parametrize(
    ("given", "returned"),
    [(torch.float32, torch.float32), (torch.float64, torch.float64), (torch.bfloat16, torch.float32)],
)
def test_results_leave_in_float32_at_least(given: torch.dtype, returned: torch.dtype) -> None:
    assert NET(theta(given), inputs(given)).dtype == returned


def first(noise: Tensor, center: float = 0.0, scale: float = 1.0, net: StackedMLP = NET) -> list[Tensor]:
    shape = (*noise.shape[:-1], net.inputs)
    rows = net.initial_for(
        noise, torch.full(shape, center, dtype=noise.dtype), torch.full(shape, scale, dtype=noise.dtype)
    )
    return net.unpack(rows)


@pytest.mark.parametrize(("unit", "sign"), [(0.0, -1), (1.0, 1), (0.5, 0)])
def test_first_parameters_reach_their_bounds_and_no_further(unit: float, sign: int) -> None:
    w1, b1, w2, b2, w3, b3 = first(torch.full((1, NET.count), unit, dtype=torch.float64))
    for weight, bound in ((w1, math.sqrt(6 / 5)), (w2, math.sqrt(6 / 8)), (w3, OUTPUT_STD * math.sqrt(3))):
        assert weight.flatten().tolist() == pytest.approx([sign * bound] * weight.numel())
    for zero in (b1, b2, b3):
        assert zero.abs().max() == 0


def test_first_parameters_have_the_standard_deviation_of_the_rule() -> None:
    wide = StackedMLP(24, 64, 16)
    noise = torch.rand(8, wide.count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w1, _, w2, _, w3, _ = first(noise, net=wide)
    for weight, std in ((w1, math.sqrt(2 / 24)), (w2, math.sqrt(2 / 64)), (w3, OUTPUT_STD)):
        assert weight.std().item() == pytest.approx(std, rel=0.05)


def test_first_layer_starts_as_if_inputs_were_standardized() -> None:
    noise = torch.rand(G, NET.count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    center = torch.tensor([0.4, -3.0, 100.0, 0.0, 7.0], dtype=torch.float64).expand(G, -1)
    scale = torch.tensor([0.01, 2.0, 50.0, 1.0, 0.1], dtype=torch.float64).expand(G, -1)
    plain_rows = NET.initial_for(noise, torch.zeros_like(center), torch.ones_like(scale))
    fitted = NET.initial_for(noise, center, scale)
    x = inputs()
    raw = center[:, None] + scale[:, None] * x
    torch.testing.assert_close(NET(fitted, raw), NET(plain_rows, x), rtol=1e-8, atol=1e-10)


def test_leading_axes_of_initial_may_be_several() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(2, 3, NET.count, generator=generator, dtype=torch.float64)
    center, scale = torch.rand(2, 2, 3, 5, generator=generator, dtype=torch.float64) + 0.5
    rows = NET.initial_for(noise, center, scale)
    assert rows.shape == (2, 3, NET.count)
    torch.testing.assert_close(
        rows[1, 2], NET.initial_for(noise[1, 2], center[1, 2], scale[1, 2]), rtol=1e-12, atol=1e-14
    )


def test_count_by_hand() -> None:
    # 5 x 8 + 8 + 8 x 8 + 8 + 8 x 3 + 3 = 40 + 8 + 64 + 8 + 24 + 3
    assert NET.count == 147


def test_layers_are_named_in_the_order_of_a_row() -> None:
    net = StackedMLP(5, 4, 2)
    shapes = [shape for layer in net.by_layer.values() for shape in layer.values()]
    assert shapes == [(5, 4), (4,), (4, 4), (4,), (4, 2), (2,)]
    assert list(net.by_layer) == ["layer_1", "layer_2", "layer_3"]
    assert [list(layer) for layer in net.by_layer.values()] == 3 * [["weight", "bias"]]
    assert sum(math.prod(shape) for shape in shapes) == net.count
