"""Ceilings are measured once at the sizes of a call; bottlenecks and predictions match numbers worked out on paper."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch

from uavlab.core.errors import ConfigError
from uavlab.profiling import roofline as module
from uavlab.profiling import timing
from uavlab.profiling.roofline import (
    PRECISIONS,
    Ceilings,
    Work,
    ceilings,
    count_operators,
    count_work,
    find_bottleneck,
    matrix_rate,
    predict_speedup,
)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Measure on operands that take no time, and keep nothing."""
    monkeypatch.setattr(module, "SIDE", {"cpu": 8})
    monkeypatch.setattr(module, "LARGE", {"cpu": 4096})
    monkeypatch.setattr(timing, "ROUND_S", 1e-5)
    cached = (module._product_rate, module._bandwidth, module._launch)
    for each in cached:
        each.cache_clear()
    yield
    for each in cached:
        each.cache_clear()


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """Make every call take half a second, and collect the work of the calls."""
    done: list[Work] = []

    def scripted(call: Callable[[], object], device: torch.device) -> float:
        done.append(count_work(call))
        return 0.5

    monkeypatch.setattr(module, "best_time", scripted)
    return done


@pytest.mark.parametrize("precision", PRECISIONS["cpu"])
def test_everything_measured_is_positive(precision: str) -> None:
    limits = ceilings("cpu", precision)
    assert limits.rate > 0
    assert limits.bandwidth > 0
    assert 0 < limits.launch < 1


def test_peaks(seconds: list[Work]) -> None:
    assert ceilings("cpu") == Ceilings(rate=2 * 8**3 / 0.5, bandwidth=4096 / 0.5, launch=0.5)
    product, copy, launch = seconds
    assert (product.flops, product.products) == (2 * 8**3, (((1, 8, 8, 8), 1),))
    assert copy.operators == launch.operators == 1


def test_at_the_sizes_of_a_call(seconds: list[Work]) -> None:
    products = (((1, 2, 3, 4), 1), ((5, 6, 7, 8), 2))
    work = Work(operators=10, flops=0, bytes=1000, products=products)
    flops = 2 * 2 * 3 * 4 + 2 * (2 * 5 * 6 * 7 * 8)
    assert ceilings("cpu", "fp32", work) == Ceilings(rate=flops / 0.5, bandwidth=512 / 0.5, launch=0.5)
    assert seconds[0].products == products  # as often as the call has them


def test_a_call_that_moves_more_than_any_cache_is_held_to_the_peak(seconds: list[Work]) -> None:
    assert ceilings("cpu", "fp32", Work(bytes=10**12)).bandwidth == ceilings("cpu").bandwidth
    assert ceilings("cpu", "fp32", Work()) == ceilings("cpu")  # nothing to go by


def test_measured_once_per_thread_count(seconds: list[Work]) -> None:
    before = torch.get_num_threads()
    ceilings("cpu")
    ceilings("cpu", "fp32", Work(bytes=5000))
    assert len(seconds) == 3
    torch.set_num_threads(before + 1)
    try:
        ceilings("cpu")
    finally:
        torch.set_num_threads(before)
    assert len(seconds) == 6
    ceilings("cpu", "bf16")
    assert len(seconds) == 7  # the rate alone depends on the precision


@pytest.mark.parametrize(("precision", "expected"), [("tf32", "tf32"), ("fp32", "ieee"), ("bf16", "ieee")])
def test_products_of_float32_are_what_the_precision_says(
    monkeypatch: pytest.MonkeyPatch, precision: str, expected: str
) -> None:
    settings, inside = torch.backends.cuda.matmul, []
    before = settings.fp32_precision
    monkeypatch.setattr(module, "best_time", lambda call, device: inside.append(settings.fp32_precision) or 1.0)
    assert matrix_rate(CPU, precision) == 2 * 8**3
    assert (inside, settings.fp32_precision) == ([expected], before)


CEILINGS = Ceilings(rate=100e9, bandwidth=10e9, launch=5e-6)


def judged(update_ms: float, operators: int, gflop: float, megabytes: float, **shares: float) -> tuple[str, str]:
    work = Work(operators, int(gflop * 1e9), int(megabytes * 1e6))
    return find_bottleneck(shares, update_ms / 1e3, work, CEILINGS)


def test_arithmetic() -> None:
    # 0.6 GFLOP take 6 ms, 20 MB 2 ms, 200 launches 1 ms; of 10 ms, 2 ms more are explained by launching alone
    kind, sentence = judged(10, 200, 0.6, 20, environment=0.05)
    assert kind == "arithmetic"
    assert sentence == (
        "arithmetic-bound: of an update's 10 ms, matrix products 60%, reading and writing memory 20% and starting 200 "
        "operators 20%; of the loop, the environment takes 5% and copies 0%."
    )


def test_memory() -> None:
    kind, sentence = judged(10, 200, 0.1, 70)  # 1 ms, 7 ms
    assert kind == "memory"
    assert sentence.startswith(
        "memory-bound: of an update's 10 ms, reading and writing memory 70%, matrix products 10%"
    )


def test_launching_has_what_work_does_not_explain() -> None:
    kind, sentence = judged(10, 200, 0.1, 20)  # 1 ms, 2 ms; 200 launches take 1 ms at least, but 7 ms are left
    assert kind == "launch"
    assert "starting 200 operators 70%" in sentence


def test_a_replayed_graph_is_not_bound_by_launches() -> None:
    assert judged(3, 1, 0.2, 8)[0] == "arithmetic"  # 2 ms of 3; 0.8 ms; 0.2 ms left


def test_floors_above_the_measured_time_keep_their_proportions() -> None:
    kind, sentence = judged(10, 400, 0.4, 140)  # 4 ms, 14 ms and 2 ms are 20 ms
    assert kind == "memory"
    assert "memory 70%" in sentence
    assert "products 20%" in sentence
    assert "operators 10%" in sentence


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({"environment": 0.6, "copy": 0.1}, "environment-bound: stepping the worlds takes 60% of the time."),
        ({"copy": 0.51}, "copy-bound: copies between host and device take 51% of the time."),
    ],
)
def test_a_stage_that_outweighs_all_else_binds(shares: dict[str, float], expected: str) -> None:
    kind, sentence = judged(10, 200, 0.6, 20, **shares)
    assert sentence == expected
    assert sentence.startswith(f"{kind}-bound")


def test_a_stage_of_half_the_time_does_not_outweigh_the_rest() -> None:
    assert judged(10, 200, 0.6, 20, environment=0.5, copy=0.3)[0] == "arithmetic"


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_an_update_without_time_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="update_seconds: expected a time above 0 s"):
        find_bottleneck({}, seconds, Work(1, 1, 1), CEILINGS)


@pytest.mark.parametrize(
    ("share", "gain", "speedup"),
    [(0.5, 2.0, 4 / 3), (1.0, 3.0, 3.0), (0.0, 9.0, 1.0), (0.75, math.inf, 4.0), (0.5, 0.5, 2 / 3)],
)
def test_amdahl(share: float, gain: float, speedup: float) -> None:
    assert predict_speedup(8.0, [(8 * share, 8 * share / gain)]) == pytest.approx(speedup)


def test_several_parts() -> None:
    # 10 s with parts of 4 and 2 s that would take 1 s each: 4 s remain beside, so 10 / (4 + 1 + 1)
    assert predict_speedup(10, [(4, 1), (2, 1)]) == pytest.approx(10 / 6)
    assert predict_speedup(10, []) == 1.0
    assert predict_speedup(10, [(2, 4)]) == pytest.approx(10 / 12)  # a part may lose


def test_parts_that_outlast_the_whole_leave_nothing_else() -> None:
    assert predict_speedup(10, [(8, 2), (4, 2)]) == pytest.approx(12 / 4)


@pytest.mark.parametrize(("whole", "parts"), [(0.0, []), (1.0, [(1.0, 0.0)]), (1.0, [(0.5, -0.1)]), (1.0, [(-0.5, 1)])])
def test_impossible_times_are_refused(whole: float, parts: list[tuple[float, float]]) -> None:
    with pytest.raises(ConfigError, match="expected times above 0 s"):
        predict_speedup(whole, parts)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", PRECISIONS["cuda"])
def test_on_a_gpu(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIDE", {"cuda": 256})
    monkeypatch.setattr(module, "LARGE", {"cuda": 2**20})
    limits = ceilings("cuda", precision)
    assert min(limits.rate, limits.bandwidth, limits.launch) > 0


class TestWork:
    def test_operators(self) -> None:
        x = torch.ones(2, 3)
        assert count_work(lambda: (x + 1) * 2).operators == 2  # add, mul
        assert count_work(lambda: x.t()[None].expand(4, 3, 2).unbind()).operators == 0  # views alone
        assert count_work(lambda: x.t().contiguous()).operators == 1  # clone
        assert count_work(lambda: None).operators == 0

    def test_operators_of_the_backward_pass(self) -> None:
        x = torch.ones(3, requires_grad=True)
        forward = count_work(lambda: (x * x).sum()).operators
        both = count_work(lambda: torch.autograd.grad((x * x).sum(), x)).operators
        assert forward == 2  # mul, sum
        assert both == 2 + 4  # ones_like of the sum; mul twice, once for each factor, and their add; expand is a view

    def test_compiled_calls_are_counted(self) -> None:
        x = torch.ones(3)
        double = torch.compile(lambda x: x * 2 + 1, fullgraph=True, backend="eager")
        double(x)
        assert count_operators(lambda: double(x)) == count_work(lambda: x * 2 + 1).operators == 2
        with pytest.raises(RuntimeError, match="no compiled frames"):
            count_work(lambda: double(x))  # the mutant: under the counter of FLOPs torch refuses compiled code

    def test_no_other_calls_are_counted(self) -> None:
        before = count_work(lambda: torch.ones(1))
        torch.ones(1) + 1
        assert count_work(lambda: torch.ones(1)) == before == Work(1, 0, 4)

    @pytest.mark.parametrize("with_bias", [False, True])
    def test_products_forward_and_backward(self, with_bias: bool) -> None:
        G, N, K, M = 3, 4, 5, 6
        a, b = torch.ones(G, N, K, requires_grad=True), torch.ones(G, K, M, requires_grad=True)
        bias = torch.ones(G, 1, M, requires_grad=True)
        work = count_work(lambda: (torch.baddbmm(bias, a, b) if with_bias else a @ b).sum().backward())
        assert work.flops == 3 * 2 * G * N * K * M  # the product, and one for the gradient of each factor
        assert work.products == tuple(sorted({(G, N, K, M): 1, (G, K, N, M): 1, (G, N, M, K): 1}.items()))

    def test_products_without_a_batch(self) -> None:
        layer, x = torch.nn.Linear(5, 6), torch.ones(4, 5)
        work = count_work(lambda: layer(layer(x) @ torch.ones(6, 5)))
        assert work.flops == 2 * 4 * 5 * 6 * 3
        assert work.products == (((1, 4, 5, 6), 2), ((1, 4, 6, 5), 1))

    @pytest.mark.parametrize("groups", [1, 2])
    def test_convolutions_are_products_over_patches(self, groups: int) -> None:
        """Two maps 5 x 6 of 4 channels and a kernel 3 x 2: 2 x 3 x 5 rows, 3 x 2 x 4 / groups features each."""
        x = torch.ones(2, 4, 5, 6, requires_grad=True)
        weight = torch.ones(8, 4 // groups, 3, 2, requires_grad=True)
        rows, depth, channels = 30, 24 // groups, 8 // groups
        work = count_work(lambda: torch.nn.functional.conv2d(x, weight, groups=groups))
        assert work.products == (((groups, rows, depth, channels), 1),)
        assert (work.flops, work.bytes) == (2 * groups * rows * depth * channels, 0)
        both = count_work(lambda: torch.nn.functional.conv2d(x, weight, groups=groups).sum().backward())
        forward, inputs, weights = (rows, depth, channels), (rows, channels, depth), (depth, rows, channels)
        assert dict(both.products) == {(groups, *shape): 1 for shape in (forward, inputs, weights)}
        assert both.flops == 3 * work.flops

    def test_bytes_read_and_written(self) -> None:
        x = torch.ones(2, 3)  # 24 bytes
        half = torch.ones(2, 3, dtype=torch.bfloat16)
        row = torch.ones(3)
        assert count_work(lambda: (x + 1) * 2).bytes == 2 * (24 + 24)
        assert count_work(lambda: half + half).bytes == 3 * 12
        assert count_work(lambda: x.t()[None]).bytes == 0  # a view moves nothing
        assert count_work(lambda: row.expand(4, 3) * 2).bytes == 12 + 48  # one row is read, however often
        assert count_work(lambda: x @ x.t()).bytes == 0  # a product's traffic is part of its rate
        assert count_work(lambda: torch.cat((x, x))).bytes == 48 + 48

    def test_bytes_of_operators_that_return_nothing(self) -> None:
        adam = torch.optim.Adam([torch.ones(100, requires_grad=True)], fused=True)
        (x,) = adam.param_groups[0]["params"]
        x.grad = torch.ones(100)
        adam.step()
        work = count_work(adam.step)
        # parameter, gradient, two moments and the step, read and written; and the step counted up beside
        assert 2 * 4 * 400 <= work.bytes <= 2 * 4 * 400 + 100

    @pytest.mark.parametrize("rows", [10, 1000])
    def test_a_table_counts_by_the_rows_that_are_touched(self, rows: int) -> None:
        table, index, new = torch.zeros(rows, 2), torch.tensor([1, 5, 7]), torch.ones(3, 2)  # 24 bytes each
        assert count_work(lambda: table[index]).bytes == 2 * (24 + 24)
        assert count_work(lambda: table.index_select(0, index)).bytes == 2 * (24 + 24)

        def write() -> None:
            table[index] = new

        assert count_work(write).bytes == 2 * (24 + 24)
        assert count_work(lambda: table.index_copy_(0, index, new)).bytes == 2 * (24 + 24)

    def test_the_whole_table_would_be_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "INDEXED", frozenset())
        with pytest.raises(AssertionError):
            self.test_a_table_counts_by_the_rows_that_are_touched(1000)
