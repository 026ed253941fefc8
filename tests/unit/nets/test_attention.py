"""Attention over entities: against plain loops, under permutations, and with empty slots."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from uavlab.core.types import Entities
from uavlab.nets import attention
from uavlab.nets.attention import StackedAttention, away, mean_of, nearest
from uavlab.profiling.batch_size import Budget

THINGS = Entities(rows=4, columns=3, features=5, moves=2)
NET = StackedAttention(THINGS, hidden=8, heads=2, layers=2, pairs=True)
VALUE = replace(NET, pairs=False)
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parameters(net: StackedAttention, networks: int = 1) -> Tensor:
    """Draw parameters of a size that matters in every layer, biases too."""
    return uniform(networks, net.count, seed=1) - 0.5


def inputs(things: Entities, batch: int = 6, near: tuple[int, int] = (2, 2)) -> Tensor:
    """Draw inputs in which every fourth thing does not count."""
    x = uniform(1, batch, things.width, seed=2)
    row, column, _ = things.split(x)
    for each in (row, column):
        each[..., 0] = (uniform(*each.shape[:-1], seed=3) > 0.25).double()
    return torch.cat((row.flatten(2), column.flatten(2), torch.tensor(near).expand(1, batch, 2)), -1)


# ---- a network with loops ----


def plain(net: StackedAttention, theta: Tensor, x: Tensor) -> list[float]:
    """Evaluate one network on one input, thing by thing and head by head."""
    pieces = [piece[0] for piece in net.unpack(theta)]
    take = iter(zip(pieces[::2], pieces[1::2], strict=True))

    def layer() -> Any:
        weight, bias = next(take)
        return lambda v: v @ weight + bias[0]

    def normed(v: Tensor) -> Tensor:
        return (v - v.mean()) / (v.var(correction=0) + 1e-5).sqrt()

    row, column, near = (each for each in net.entities.split(x))
    embed_row, embed_column = layer(), layer()
    u, t = [embed_row(each) for each in row], [embed_column(each) for each in column]

    def view(a: Tensor, b: Tensor) -> Tensor:
        dx, dy = (b[1] - a[1]).item(), (b[2] - a[2]).item()
        apart = math.sqrt(max(dx * dx + dy * dy, 1e-12))
        return torch.tensor([dx, dy, apart, dx / max(apart, 1e-3), dy / max(apart, 1e-3)], dtype=torch.float64)

    def offset(a: Tensor, b: Tensor) -> Tensor:
        return view(a, b) if net.positions else torch.zeros(5, dtype=torch.float64)

    by_place = [(layer(), layer()) for _ in range(2)]  # for columns, and for rows
    offers = layer()
    t = [normed(each) for each in t]
    wide, size = net.hidden, net.hidden // net.heads

    def attend(
        asked: list[Tensor], offered: list[tuple[Tensor, Tensor]], things: Tensor, most: float, kind: int
    ) -> None:
        give, results = layer(), []
        for i, query in enumerate(asked):
            order = sorted(range(len(offered)), key=lambda j: view(row[i], things[j])[2].item())
            seen = [j for j in order if things[j][0] > 0][: int(most)]
            total = torch.zeros(wide, dtype=torch.float64)
            for head in range(net.heads):
                part, score, value = slice(head * size, (head + 1) * size), [], []
                for j in seen:
                    inner, outer = by_place[kind]
                    bias = outer(inner(offset(row[i], things[j])).relu())[number * net.heads + head]
                    score.append(query[part] @ offered[j][0][part] / math.sqrt(size) + bias)
                    value.append(offered[j][1][part])
                if seen:
                    weight = torch.stack(score).softmax(0)
                    total[part] = sum(w * v for w, v in zip(weight, value, strict=True))
            results.append(give(total))
        u[:] = [each + more for each, more in zip(u, results, strict=True)]

    for number in range(net.layers):
        ask = layer()
        parts = [offers(each).split(wide)[2 * number : 2 * number + 2] for each in t]
        attend([ask(normed(each)) for each in u], parts, column, near[1].item(), 0)
        all_three = layer()
        three = [all_three(normed(each)).split(wide) for each in u]
        attend([each[0] for each in three], [each[1:] for each in three], row, near[0].item(), 1)
        first, second = layer(), layer()
        u = [each + second(first(normed(each)).relu()) for each in u]
    u = [normed(each) for each in u]
    if net.pairs:
        own, other, between, last = (layer() for _ in range(4))
        pairs = [(i, j) for i in range(len(u)) for j in range(len(t))]
        each = [last((own(u[i]) + other(t[j]) + between(offset(row[i], column[j]))).relu()) for i, j in pairs]
        return torch.cat(each).tolist()
    hidden, last = layer(), layer()
    means = []
    for values, things in ((u, row), (t, column)):
        counted = [value for value, thing in zip(values, things, strict=True) if thing[0] > 0]
        means.append(torch.stack(counted).mean(0) if counted else torch.zeros(net.hidden, dtype=torch.float64))
    return last(hidden(torch.cat(means)).relu()).tolist()


@pytest.mark.parametrize("net", [NET, VALUE, replace(NET, positions=False)], ids=["pairs", "value", "no positions"])
@pytest.mark.parametrize("near", [(1, 1), (2, 3), (4, 2)])
def test_a_network_equals_loops(net: StackedAttention, near: tuple[int, int]) -> None:
    theta, x = parameters(net), inputs(THINGS, near=near)
    expected = torch.tensor([plain(net, theta, each) for each in x[0]], dtype=torch.float64)
    torch.testing.assert_close(net(theta, x)[0], expected, **EXACT)


@pytest.mark.parametrize("positions", [True, False])
def test_without_positions_the_way_between_things_does_not_matter(positions: bool) -> None:
    """All things are seen wherever they are, and embeddings do not read places."""
    net = replace(NET, positions=positions)
    theta, x = parameters(net), inputs(THINGS, near=(4, 3))
    for weight in net.unpack(theta)[:4:2]:
        weight[:, 1:3] = 0.0  # a view of theta
    row, column, near = THINGS.split(x.clone())
    column[..., 1:3] += 0.3
    moved = torch.cat((row.flatten(2), column.flatten(2), near), -1)
    assert torch.equal(net(theta, moved), net(theta, x)) is not positions


def test_networks_of_a_batch_are_independent() -> None:
    theta, x = parameters(NET, 3), inputs(THINGS).expand(3, -1, -1)
    together = NET(theta, x)
    for n in range(3):
        torch.testing.assert_close(together[n : n + 1], NET(theta[n : n + 1], x[n : n + 1]), **EXACT)


def permute(x: Tensor, rows: list[int], columns: list[int]) -> Tensor:
    row, column, near = THINGS.split(x)
    return torch.cat((row[:, :, rows].flatten(2), column[:, :, columns].flatten(2), near), -1)


def test_the_order_of_things_does_not_matter() -> None:
    x, rows, columns = inputs(THINGS), [2, 0, 3, 1], [1, 2, 0]
    theta = parameters(NET)
    logits, other = (NET(theta, each).view(-1, 4, 3, 2) for each in (x, permute(x, rows, columns)))
    torch.testing.assert_close(other, logits[:, rows][:, :, columns], **EXACT)
    theta = parameters(VALUE)
    torch.testing.assert_close(VALUE(theta, permute(x, rows, columns)), VALUE(theta, x), **EXACT)


@pytest.mark.parametrize("net", [NET, VALUE], ids=["pairs", "value"])
def test_empty_slots_do_not_matter(net: StackedAttention) -> None:
    wide = replace(net, entities=replace(THINGS, rows=7, columns=5))
    assert wide.count == net.count
    x, theta = inputs(THINGS), parameters(net)
    row, column, near = THINGS.split(x)
    more = [torch.cat((each, each.new_zeros(1, 6, n, 5)), 2).flatten(2) for each, n in ((row, 3), (column, 2))]
    result, expected = wide(theta, torch.cat((*more, near), -1)), net(theta, x)
    if net.pairs:
        result, expected = result.view(-1, 7, 5, 2)[:, :4, :3], expected.view(-1, 4, 3, 2)
    torch.testing.assert_close(result, expected, **EXACT)


def test_what_does_not_count_does_not_matter_to_others() -> None:
    x, theta = inputs(THINGS), parameters(NET)
    row, column, near = THINGS.split(x.clone())
    row[..., 1, 0] = column[..., 2, 0] = 0.0
    before = torch.cat((row.flatten(2), column.flatten(2), near), -1)
    row, column = row.clone(), column.clone()
    row[..., 1, 1:] += 1.0
    column[..., 2, 1:] -= 1.0
    after = torch.cat((row.flatten(2), column.flatten(2), near), -1)
    old, new = (NET(theta, each).view(-1, 4, 3, 2) for each in (before, after))
    others = [0, 2, 3]
    torch.testing.assert_close(new[:, others][:, :, :2], old[:, others][:, :, :2], **EXACT)
    assert not torch.allclose(new[:, 1], old[:, 1])


def test_nearest_by_hand() -> None:
    distance = torch.tensor([[[[3.0], [1.0], [2.0], [0.5]]]])  # of four columns from one row
    counts = torch.tensor([[[True, True, True, False]]])
    marks = [nearest(distance, counts, torch.tensor([[k]]))[0, 0, :, 0].tolist() for k in (1.0, 2.0, 4.0)]
    assert marks == [[False, True, False, False], [False, True, True, False], [True, True, True, False]]


def test_away_by_hand() -> None:
    row, column = torch.tensor([[[[1.0, 0.1, 0.2]]]]), torch.tensor([[[[1.0, 0.4, 0.6], [0.0, 0.1, 0.2]]]])
    seen = away(row, column)[0, :, 0, :, 0].T  # of two columns from one row
    torch.testing.assert_close(seen[0], torch.tensor([0.3, 0.4, 0.5, 0.6, 0.8]))
    torch.testing.assert_close(seen[1], torch.tensor([0.0, 0.0, 1e-6, 0.0, 0.0]))


def test_gradients_are_finite_at_one_place_and_without_anything_that_counts() -> None:
    x = torch.zeros(1, 2, THINGS.width, dtype=torch.float64)
    for net in (NET, VALUE):
        theta = parameters(net).requires_grad_()
        net(theta, x).sum().backward()
        assert theta.grad is not None
        assert theta.grad.isfinite().all()


def test_mean_of_nothing_is_zero() -> None:
    assert mean_of(torch.ones(1, 1, 3, 2), torch.zeros(1, 1, 3, dtype=torch.bool)).tolist() == [[[0.0, 0.0]]]


# ---- activations computed again ----


def gradient(net: StackedAttention, batch: int = 64) -> tuple[Tensor, int]:
    """Return the gradient of some loss, and the most bytes that tensors took."""
    theta, x = parameters(net).requires_grad_(), inputs(THINGS, batch)
    with Budget(2**40) as budget:
        (result,) = torch.autograd.grad(net(theta, x).square().sum(), theta)
    return result, budget.peak


@pytest.mark.parametrize("net", [NET, VALUE], ids=["pairs", "value"])
def test_layers_that_are_computed_again_have_the_same_gradient_in_less_memory(net: StackedAttention) -> None:
    deep = replace(net, layers=6)
    stored, again = gradient(deep), gradient(replace(deep, recompute=0.0))
    assert torch.equal(again[0], stored[0])
    assert again[1] < 0.6 * stored[1]


def test_layers_are_computed_again_from_a_size_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    layer = StackedAttention._layer
    monkeypatch.setattr(StackedAttention, "_layer", lambda self, *rest: calls.append("layer") or layer(self, *rest))
    size = 64 * THINGS.rows * NET.hidden * 8  # bytes of embeddings
    for limit, forward_and_backward in ((size, 2), (size + 1, 1), (math.inf, 1)):
        calls.clear()
        gradient(replace(NET, recompute=limit))
        assert len(calls) == NET.layers * forward_and_backward


def test_without_gradients_nothing_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of what is embedded is then not asked for, which exported policies do not know."""
    monkeypatch.setattr(attention, "checkpoint", lambda layer, *args, **options: calls.append(layer) or layer(*args))
    calls: list[Any] = []
    net, x = replace(NET, recompute=0), inputs(THINGS)
    with torch.no_grad():
        net(parameters(net), x)
    assert calls == []
    net(parameters(net).requires_grad_(), x)
    assert len(calls) == net.layers


# ---- attending to nothing ----


def test_who_sees_nothing_takes_over_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that see nothing are as those whose columns are gone; without a thing of value 0 they are not numbers."""
    x, theta = inputs(THINGS, near=(0, 0)), parameters(NET)
    expected = torch.tensor([plain(NET, theta, each) for each in x[0]], dtype=torch.float64)
    torch.testing.assert_close(NET(theta, x)[0], expected, **EXACT)
    monkeypatch.setattr(attention, "NOTHING", -math.inf)
    assert NET(theta, x).isnan().all()


def test_gradients_of_both_kinds_are_equal_in_lower_precision() -> None:
    """A compiled update differentiates by ``torch.func``, which refuses attention whose types are cast as it runs."""
    theta, x = parameters(NET).float(), inputs(THINGS).float()

    def loss(theta: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return NET(theta, x).square().mean()

    (plain,) = torch.autograd.grad(loss(leaf := theta.clone().requires_grad_()), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(theta), plain)
