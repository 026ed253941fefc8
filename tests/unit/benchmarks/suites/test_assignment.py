"""Rows of the suite of assignment: what is timed against what, and the peak of memory."""

from itertools import product
from statistics import fmean

import pytest
import torch
from torch import Tensor

from uavlab.envs.target_assignment.env import Assignment
from uavlab.nets.attention import StackedAttention
from uavlab.profiling import timing
from uavlab.runtime.runtime import Runtime
from uavlab_lab.suites import assignment
from uavlab_lab.suites.assignment import (
    TorchAttention,
    batched_decisions,
    batched_decisions_alone,
    multiplications,
    network_rows,
    padding_rows,
    peak_bytes,
    python_episode,
    python_start,
)

SIZE = (3, 2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every timed call take one second."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(ticks)))


@pytest.mark.usefixtures("clock")
def test_each_size_network_and_batch_has_a_row_for_each_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "SIZES", (SIZE, (4, 2)))
    monkeypatch.setattr(assignment, "NETWORKS", {"small": (8, 2, 1)})
    monkeypatch.setattr(assignment, "WORLDS", 4)
    record = assignment.assignment_suite(3, "cpu", batch=[5, 7])
    assert [(row["uavs"], row["targets"], row["threads"]) for row in record["rows"]] == [(3, 2, 1), (4, 2, 1)]
    for row in record["rows"]:
        assert row["us"] == row["alone_us"] == pytest.approx(1e6 / (4 * row["decisions"]), abs=1e-3)
        assert {"mean", "low", "high"} == set(row["over_batched"]) == set(row["alone_over_batched"])
    networks = record["networks"]
    assert [row["stage"] for row in record["padding"]] == [1, 2, 3, 4]
    settings = ("plain", "nearest", "whole", "layers", "torch")
    assert [(row["uavs"], row["batch"], row["setting"]) for row in networks] == [
        (uavs, batch, setting) for uavs in (3, 4) for batch in (5, 7) for setting in settings
    ]
    assert all((row["ms"], row["over_plain"]) == (1000.0, 1.0) for row in networks)


def test_settings_do_what_they_are_named_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers store less than all at once; one neighbour costs what all cost, because shapes stay."""
    seen: list[tuple[float, float]] = []
    call = StackedAttention.__call__

    def watch(self: StackedAttention, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        seen.append((self.recompute, float(x[0, 0, -1])))
        return call(self, theta, x)

    monkeypatch.setattr(StackedAttention, "__call__", watch)
    monkeypatch.setattr(assignment, "NETWORKS", {"deep": (16, 2, 6)})
    rows = {row["setting"]: row for row in network_rows(SIZE, "deep", 64, 3, Runtime())}
    assert set(seen) == {(torch.inf, 3.0), (torch.inf, 1.0), (0.0, 3.0)}
    assert rows["layers"]["peak_bytes"] < 0.7 * rows["plain"]["peak_bytes"]
    assert rows["whole"]["peak_bytes"] > rows["layers"]["peak_bytes"]
    assert rows["nearest"]["peak_bytes"] == rows["plain"]["peak_bytes"]


class Unscaled(TorchAttention):
    """A broken variant: scores are not divided by the root of a head's width."""

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return super()._attend(query * (self.hidden // self.heads) ** 0.5, key, value, bias)


class Emptier(TorchAttention):
    """A broken variant: what attends to nothing is not among the things to attend to."""

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return super()._attend(query, key, value, torch.cat((bias[..., :-1, :], bias[..., -1:, :] + 3e4), -2))


@pytest.mark.parametrize(("kind", "equal"), [(TorchAttention, True), (Unscaled, False), (Emptier, False)])
def test_the_product_of_torch_gives_equal_results(kind: type[StackedAttention], equal: bool) -> None:
    env, dice = Assignment(uavs=(2, 5), targets=(1, 4)), torch.Generator().manual_seed(0)
    state = env.initial(torch.rand(8, env.spec.initial_noise, generator=dice))
    obs = env.observe(state).features.transpose(0, 1).expand(2, -1, -1)
    results = []
    for each in (StackedAttention, kind):
        net = each(env.spec.entities, 16, 4, 2, pairs=True)
        theta = net.initial(torch.rand(2, net.count, generator=torch.Generator().manual_seed(1))).requires_grad_()
        logits = net(theta, obs)
        results.append(torch.cat((logits.flatten(), torch.autograd.grad(logits.square().sum(), theta)[0].flatten())))
    assert torch.allclose(*results, rtol=1e-5, atol=1e-5) == equal


def by_hand(rows: int, columns: int, wide: int, heads: int, layers: int) -> int:
    """Return the multiplications of the matrix products of a policy for one world of 8 features and 6 sectors."""
    places = (columns * rows + rows * rows) * (5 * 16 + 16 * heads * layers)
    first = (rows + columns) * 8 * wide + places + columns * wide * 2 * wide * layers
    attention = 2 * wide * rows * (columns + 1 + rows + 1)  # scores and sums, each with a thing of value 0
    layer = attention + rows * wide * 10 * wide  # 2 from and to columns, 4 from and to rows, 2 x 2 dense
    small = wide // 2
    return first + layers * layer + (rows + columns) * wide * small + rows * columns * (5 + 6) * small


@pytest.mark.parametrize("size", [(2, 1), (3, 2), (20, 15)])
def test_multiplications(size: tuple[int, int]) -> None:
    assert multiplications(assignment.configure("assignment_small").learner, Assignment(), *size) == by_hand(
        *size, 128, 4, 2
    )


def test_padding_is_what_slots_cost_beyond_the_sizes_that_are_drawn() -> None:
    sizes = [((2, 3), (1, 2)), ((4, 6), (3, 4)), ((8, 12), (5, 8)), ((15, 20), (10, 15))]
    needed = [fmean(by_hand(n, m, 64, 4, 2) for n, m in product(*(range(a, b + 1) for a, b in each))) for each in sizes]
    shares = [row["share"] for row in padding_rows()]
    assert shares == pytest.approx([1 - each / by_hand(20, 15, 64, 4, 2) for each in needed], abs=1e-3)
    assert sorted(shares, reverse=True) == shares
    assert shares[0] > 0.8
    assert 0 < shares[-1] < 0.3


def test_a_peak_counts_what_lives_at_a_time() -> None:
    def call() -> None:
        for _ in range(3):
            torch.zeros(1000, dtype=torch.float64)
        first, second = torch.zeros(1000), torch.zeros(500)
        del first, second

    assert peak_bytes(call) == 8000


def test_decisions_are_as_many_as_the_worlds_and_steps() -> None:
    env = Assignment(uavs=(3, 3), targets=(2, 2))
    world, dice = python_start(env, 0)
    assert (world.step_count, world.ended()) == (0, False)
    assert 1 <= python_episode(world, dice) <= env.spec.horizon
    starts: list[int] = []
    counting = type("Counting", (Assignment,), {"observe": lambda self, s: starts.append(len(s.own)) or env.observe(s)})
    call = batched_decisions(counting(uavs=(3, 3), targets=(2, 2)), Runtime(), steps=5)
    starts.clear()
    call()
    assert starts.count(assignment.WORLDS) >= 5
    call = batched_decisions_alone(counting(uavs=(3, 3), targets=(2, 2)), Runtime(), steps=5)
    starts.clear()
    call()
    assert starts == [assignment.WORLDS] * 5
