"""Ceilings are FLOPs and bytes over the best of some rounds, at the sizes asked for, and measured once."""

from collections.abc import Callable, Iterator

import pytest
import torch

from uavlab.profiling import roofline as module
from uavlab.profiling.roofline import PRECISIONS, Ceilings, ceilings, matrix_rate
from uavlab.runtime.stage_timer import Work, count_work

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Measure on operands that take no time, and keep nothing."""
    monkeypatch.setattr(module, "SIDE", {"cpu": 8})
    monkeypatch.setattr(module, "LARGE", {"cpu": 4096})
    monkeypatch.setattr(module, "ROUND", 1e-5)
    kept = (module._product_rate, module._bandwidth, module._launch)
    for each in kept:
        each.cache_clear()
    yield
    for each in kept:
        each.cache_clear()


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """Let every call take half a second; what the calls did is collected."""
    done: list[Work] = []

    def scripted(call: Callable[[], object], device: torch.device) -> float:
        done.append(count_work(call))
        return 0.5

    monkeypatch.setattr(module, "_best", scripted)
    return done


@pytest.mark.parametrize("precision", PRECISIONS["cpu"])
def test_everything_measured_is_positive(precision: str) -> None:
    found = ceilings("cpu", precision)
    assert found.rate > 0
    assert found.bandwidth > 0
    assert 0 < found.launch < 1


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


def test_the_best_round_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUND", 0.01)
    asked: list[int] = []
    #        prepares, tells 2 ms: rounds of 5; the quickest took 7.5 ms
    scripted = iter([9.0, 0.002, 0.010, 0.0075, 0.05, 0.011, 0.009])
    monkeypatch.setattr(module, "_seconds", lambda call, device, repeats: (asked.append(repeats), next(scripted))[1])
    assert module._best(lambda: None, CPU) == pytest.approx(0.0015)
    assert asked == [1, 1, 5, 5, 5, 5, 5]


def test_seconds_of_repeated_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = iter([10.0, 13.0]), []
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(now))
    assert module._seconds(lambda: calls.append(1), CPU, 7) == 3.0
    assert len(calls) == 7


@pytest.mark.parametrize(("precision", "expected"), [("tf32", "tf32"), ("fp32", "ieee"), ("bf16", "ieee")])
def test_products_of_float32_are_what_the_precision_says(
    monkeypatch: pytest.MonkeyPatch, precision: str, expected: str
) -> None:
    settings, inside = torch.backends.cuda.matmul, []
    before = settings.fp32_precision
    monkeypatch.setattr(module, "_best", lambda call, device: inside.append(settings.fp32_precision) or 1.0)
    assert matrix_rate(CPU, precision) == 2 * 8**3
    assert (inside, settings.fp32_precision) == ([expected], before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", PRECISIONS["cuda"])
def test_on_a_gpu(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIDE", {"cuda": 256})
    monkeypatch.setattr(module, "LARGE", {"cuda": 2**20})
    found = ceilings("cuda", precision)
    assert min(found.rate, found.bandwidth, found.launch) > 0
