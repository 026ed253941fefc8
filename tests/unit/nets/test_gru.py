"""Stacked recurrent networks equal the same number of torch.nn networks, step by step and with starts in between."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from uavlab.nets import sequences
from uavlab.nets.mlp import OUTPUT_STD
from uavlab.nets.sequences import StackedGRU

NET = StackedGRU(inputs=5, hidden=8, memory=4, outputs=3)
G, T, N = 3, 6, 5


class Plain(nn.Module):
    """One network by torch.nn, with the parameters of a row."""

    def __init__(self, row: Tensor) -> None:
        super().__init__()
        i, h, m, o = NET.inputs, NET.hidden, NET.memory, NET.outputs
        norm = partial(nn.LayerNorm, elementwise_affine=False)
        self.hidden = nn.Sequential(nn.Linear(i, h), norm(h), nn.ReLU(), nn.Linear(h, h), norm(h), nn.ReLU())
        self.gru, self.out = nn.GRU(h, m), nn.Linear(m, o)
        self.to(row.dtype)
        first, second = self.hidden[0], self.hidden[3]
        own = self.gru
        order = [first.weight, first.bias, second.weight, second.bias]
        order += [own.weight_ih_l0, own.bias_ih_l0, own.weight_hh_l0, own.bias_hh_l0, self.out.weight, self.out.bias]
        self.order, used = order, 0
        with torch.no_grad():
            for parameter in order:
                numbers = row[used : used + parameter.numel()]
                used += parameter.numel()
                flipped = numbers.view(parameter.shape[::-1])
                parameter.copy_(flipped.T if parameter.dim() == 2 else flipped)
        assert used == len(row) == NET.count

    def forward(self, x: Tensor, memory: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and memory after each step of one row (T I); a start is a new sequence."""
        states = []
        for step, seen in enumerate(x):
            memory = memory * 0 if fresh[step] else memory
            memory = self.gru(self.hidden(seen)[None], memory[None])[1][0]
            states.append(memory)
        return self.out(torch.stack(states)), torch.stack(states)


def theta() -> Tensor:
    return 0.7 * torch.randn(G, NET.count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def given() -> tuple[Tensor, Tensor, Tensor]:
    dice = torch.Generator().manual_seed(1)
    x = torch.randn(G, T, N, NET.inputs, generator=dice, dtype=torch.float64)
    memory = torch.randn(G, N, NET.memory, generator=dice, dtype=torch.float64)
    return x, memory, torch.rand(G, T, N, generator=dice) < 0.3


def errors(rows: Tensor) -> list[float]:
    """Return the largest differences of outputs, of memory and of gradients from those of torch.nn."""
    rows, (x, memory, fresh) = rows.requires_grad_(), given()
    out, states = NET(rows, x, memory, fresh)
    (gradient,) = torch.autograd.grad(out.square().sum() + states[:, -1].sum(), rows)
    apart = [0.0, 0.0, 0.0]
    for g in range(G):
        model = Plain(rows[g].detach())
        for n in range(N):
            own, own_states = model(x[g, :, n], memory[g, n], fresh[g, :, n])
            (own.square().sum() + own_states[-1].sum()).backward()
            apart[0] = max(apart[0], (out[g, :, n] - own).abs().max().item())
            apart[1] = max(apart[1], (states[g, :, n] - own_states).abs().max().item())
        flat = torch.cat([p.grad.T.flatten() if p.dim() == 2 else p.grad for p in model.order])
        apart[2] = max(apart[2], (gradient[g] - flat).abs().max().item())
    return apart


def test_equals_separate_networks_with_gradients() -> None:
    assert given()[2][:, 1:].any()
    assert max(errors(theta())) < 1e-9


def swap_gates(gates: Tensor, weight: Tensor, bias: Tensor, memory: Tensor, fresh: Tensor | None) -> Tensor:
    """The mutant: what is kept is reset, and what is reset is kept."""
    r, z, n = gates.chunk(3, -1)
    return RECUR(torch.cat((z, r, n), -1), weight, bias, memory, fresh)


def never_start(gates: Tensor, weight: Tensor, bias: Tensor, memory: Tensor, fresh: Tensor | None) -> Tensor:
    return RECUR(gates, weight, bias, memory, None)


def forget_gradients(gates: Tensor, weight: Tensor, bias: Tensor, memory: Tensor, fresh: Tensor | None) -> Tensor:
    """The mutant: gradients end at the step before."""
    states = []
    for step in range(gates.shape[1]):
        first = None if fresh is None else fresh[:, step : step + 1]
        memory = RECUR(gates[:, step : step + 1], weight, bias, memory.detach(), first)[:, 0]
        states.append(memory)
    return torch.stack(states, 1)


RECUR = sequences.recur


@pytest.mark.parametrize(("mutant", "wrong"), [(swap_gates, 0), (never_start, 1), (forget_gradients, 2)])
def test_a_mutant_is_caught(mutant: object, wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "recur", mutant)
    assert errors(theta())[wrong] > 1e-3


def test_one_step_after_the_other_equals_all_at_once() -> None:
    (x, memory, fresh), rows = given(), theta()
    out, states = NET(rows, x, memory, fresh)
    for step in range(T):
        memory = memory.masked_fill(fresh[:, step, :, None], 0.0)
        alone, after = NET(rows, x[:, step : step + 1], memory)
        torch.testing.assert_close(alone[:, 0], out[:, step], rtol=1e-12, atol=1e-12)
        memory = after[:, 0]
        torch.testing.assert_close(memory, states[:, step], rtol=1e-12, atol=1e-12)


def test_initial_parameters() -> None:
    """Weights lie within their bounds, biases of hidden layers are zero, and the memory is neither damped nor grown."""
    net = StackedGRU(inputs=6, hidden=64, memory=48, outputs=2)
    noise = torch.rand(2, net.count, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    center, scale = 100 + torch.rand(2, 6, dtype=torch.float64), 0.1 + torch.rand(2, 6, dtype=torch.float64)
    pieces = net.unpack(net.initial_for(noise, center, scale))
    for weight, bound in zip(
        pieces[2::2], (math.sqrt(6 / 64), math.sqrt(6 / 64), 0.25, OUTPUT_STD * math.sqrt(3)), strict=True
    ):
        assert 0.98 * bound < weight.abs().max() <= bound
    assert all((bias == 0).all() for bias in pieces[3::2])
    plain = net.unpack(net.initial(noise))
    x = torch.rand(6, dtype=torch.float64)
    seen = (center + scale * x)[:, None] @ pieces[0] + pieces[1]
    torch.testing.assert_close(seen[:, 0], x @ plain[0], rtol=1e-9, atol=1e-9)


def test_layers_are_those_of_a_row() -> None:
    layers = NET.by_layer
    assert layers["layer_3"] == {"weight": (8, 12), "bias": (12,)}
    assert layers["layer_4"] == {"weight": (4, 12), "bias": (12,)}
    assert sum(math.prod(shape) for layer in layers.values() for shape in layer.values()) == NET.count
