"""The largest batch equals that of a slow search over every size, by whole steps; the knee matches a table."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from uavlab.core.errors import ConfigError, ResourceError
from uavlab.profiling import batch_size
from uavlab.profiling.batch_size import Budget, knee, largest_batch
from uavlab.runtime.grad_step import GradientStep, Rows
from uavlab.runtime.toggles import Toggles

Step = Callable[[], Any]
REFUSALS: list[Exception] = [
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
    ResourceError("learner: 9 bytes, 8 are free on cpu; lower hidden, batch or runs."),
]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collect no garbage after each of a few hundred trials."""
    monkeypatch.setattr(batch_size, "free_cache", lambda: None)


def room_for(most: int, error: Exception | None = None) -> Callable[[int], Step]:
    def make_step(rows: int) -> Step:
        def step() -> None:
            if rows > most:
                raise error or MemoryError()

        return step

    return make_step


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("margin", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("low", "high"), [(1, 1), (1, 100), (7, 50), (16, 17)])
def test_it_finds_what_trying_every_size_finds(low: int, high: int, margin: float) -> None:
    for most in range(3 * high):
        fine = [rows for rows in range(low, high + 1) if rows <= (1 - margin) * most + 1e-9]
        if not fine:
            with pytest.raises(ResourceError, match="does not fit into the device; lower low, margin, hidden or runs"):
                largest_batch(room_for(most), low, high, margin)
            continue
        search = largest_batch(room_for(most), low, high, margin)
        assert search.rows == fine[-1], (most, search)
        assert search.trials == {rows: rows <= most for rows in search.trials}
        assert len(search.trials) <= 2 * (2 * high).bit_length() + 2


@pytest.mark.usefixtures("quick")
def test_it_doubles_and_then_bisects() -> None:
    search = largest_batch(room_for(21), 4, 512, margin=0.0)
    assert list(search.trials) == [4, 8, 16, 32, 24, 20, 22, 21]
    assert search.rows == 21


@pytest.mark.usefixtures("quick")
def test_a_tolerance_saves_trials_and_each_is_known_at_once() -> None:
    seen: list[tuple[int, bool]] = []
    search = largest_batch(room_for(2100), 8, 10_000, 0.0, None, 0.02, lambda *trial: seen.append(trial))
    assert 2100 / 1.02 <= search.rows <= 2100
    assert seen == list(search.trials.items())
    assert len(seen) < len(largest_batch(room_for(2100), 8, 10_000, 0.0).trials) - 3


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("error", REFUSALS, ids=repr)
def test_every_refusal_is_one_and_other_errors_are_raised(error: Exception) -> None:
    assert largest_batch(room_for(21, error), 4, 512, 0.0).rows == 21
    with pytest.raises(RuntimeError, match=r"^shapes differ$"):
        largest_batch(room_for(21, RuntimeError("shapes differ")), 4, 512)


@pytest.mark.parametrize(("low", "high", "margin"), [(0, 8, 0.1), (9, 8, 0.1), (1, 8, 1.0), (1, 8, -0.1)])
def test_senseless_bounds_are_refused(low: int, high: int, margin: float) -> None:
    with pytest.raises(ConfigError, match=f"got low={low}, high={high}, margin={margin}"):
        largest_batch(room_for(9), low, high, margin)


def test_no_search_inside_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "is_capturing", lambda: True)
    with pytest.raises(ConfigError, match="a CUDA graph is being captured; search before"):
        largest_batch(room_for(9), 1, 8)


WIDTH = 16


def loss(weight: Tensor, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    return torch.tanh(x @ weight).square().mean(), {}


def training_step(rows: int) -> Step:
    start = torch.zeros(WIDTH, WIDTH).requires_grad_()
    step = GradientStep([[start]], 0.1, 1.0, False, Toggles(adam="fused"))
    x = torch.ones(rows, WIDTH)
    return lambda: step(loss, start, Rows(x, 0))


def forward_pass(rows: int) -> Step:
    """The mutant: what needs no gradients, and no optimizer."""
    weight, x = torch.zeros(WIDTH, WIDTH), torch.ones(rows, WIDTH)

    def step() -> None:
        with torch.no_grad():
            loss(weight, x)

    return step


def peak(make_step: Callable[[int], Step], rows: int) -> int:
    with Budget(10**9) as budget:
        step = make_step(rows)
        step()
        step()
    return budget.peak


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("default")  # here all warnings are errors, so the search could forget to ask for that
def test_a_full_step_is_measured_and_one_that_had_to_be_cut_does_not_fit(proof: Callable[[str, str], None]) -> None:
    budget = 200_000
    search = largest_batch(training_step, 8, 10_000, margin=0.0, budget=budget)
    assert peak(training_step, search.rows) <= budget < peak(training_step, search.rows + 1)
    forward = largest_batch(forward_pass, 8, 10_000, margin=0.0, budget=budget)
    assert forward.rows > 1.2 * search.rows
    assert peak(training_step, forward.rows) > budget
    proof(
        "largest batch", f"{search.rows} rows by whole steps in {budget:,} bytes; forward passes promise {forward.rows}"
    )


def test_the_same_memory_lets_training_go_on_in_pieces() -> None:
    step = training_step(10_000)
    with pytest.warns(match="memory was refused in .* pieces instead of"), Budget(200_000) as budget:
        step()
    assert budget.peak <= 200_000


def test_nothing_is_left_behind() -> None:
    steps: list[Any] = []
    before = torch.get_rng_state()

    def make_step(rows: int) -> Step:
        steps.append(weakref.ref(step := training_step(rows)))
        return step

    largest_batch(make_step, 8, 64, budget=50_000)
    assert len(steps) > 2
    assert [step() for step in steps] == [None] * len(steps)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_budget_counts_what_lives() -> None:
    x = torch.ones(100)  # made outside: free
    with Budget(10_000) as budget:
        y = x + 1
        assert (budget.live, budget.peak) == (400, 400)
        view = y[::2].mul_(2)  # the same memory
        assert budget.live == 400
        z = torch.cat([x, x]).double()  # 800 bytes for a moment, 1600 to stay
        assert (budget.live, budget.peak) == (2000, 2800)
        del y, view
        assert budget.live == 1600
        z.square()
        assert (budget.live, budget.peak) == (1600, 3200)
        budget.limit = 9_000
        with pytest.raises(torch.OutOfMemoryError, match="8,000 bytes do not fit, 1,600 of 9,000 are taken"):
            torch.zeros(1000, dtype=torch.float64)
        assert budget.live == 1600
        weight = torch.ones(10, requires_grad=True)
        out = (weight.exp() * 3).sum()
        assert budget.live == 1600 + 40 + 40 + 4  # weight, its exp, which the gradient needs, and the sum
        out.backward()
        del out
        assert budget.live == 1600 + 40 + 40  # weight and its gradient


def test_the_knee_is_the_first_size_that_reaches_its_share() -> None:
    rates = {64: 100.0, 128: 190.0, 256: 340.0, 512: 380.0, 1024: 400.0, 2048: 390.0}
    assert knee(rates) == 512  # 380 of 400; 340 are 85 %
    assert knee(rates, share=0.85) == 256
    assert knee(rates, share=1.0) == 1024
    assert knee(dict(reversed(rates.items()))) == 512
    with pytest.raises(ConfigError, match="no rates were given"):
        knee({})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_filled_up_to_its_share() -> None:
    def make_step(rows: int) -> Step:
        start = torch.zeros(64, 64, device="cuda").requires_grad_()
        step = GradientStep([[start]], 0.1, 1.0, False, Toggles(adam="fused"))
        x = torch.ones(rows, 64, device="cuda")
        return lambda: step(loss, start, Rows(x, 0))

    make_step(16)()  # whatever a first step loads
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    share = (torch.cuda.memory_reserved() + 512 * 2**20) / total
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        search = largest_batch(make_step, 2**10, 2**24, margin=0.1)
        make_step(search.rows)()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert 2**18 < search.rows < 2**20  # 512 MiB hold at most a million rows of 2 x 64 floats
    before = torch.cuda.memory_allocated()
    largest_batch(make_step, 2**10, 2**12)
    assert torch.cuda.memory_allocated() == before
