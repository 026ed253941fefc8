"""All time belongs to one stage or none, only ``read`` waits for a GPU, and counts of work match those by hand."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from tests.support.devices import DEVICES
from tests.support.sync_debug import sync_debug
from uavlab.runtime import stage_timer
from uavlab.runtime.stage_timer import RECENT, Monitor, Work, count_operators, count_work, memory


class Clock:
    """A clock that tests move by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stage_timer.time, "perf_counter", lambda: clock.now)
    return clock


class FakeEvent:
    """A CUDA event; the stream is some events behind the host."""

    behind, recorded, waits = 0, 0, 0
    now: Callable[[], float]

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Any) -> None:
        type(self).recorded += 1
        self.number, self.at = self.recorded, type(self).now()

    def query(self) -> bool:
        return self.number <= self.recorded - self.behind

    def synchronize(self) -> None:
        type(self).behind, type(self).waits = 0, self.waits + 1

    def elapsed_time(self, other: "FakeEvent") -> float:
        assert self.query()
        assert other.query()
        return 1e3 * (other.at - self.at)


@pytest.fixture
def gpu(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> type[FakeEvent]:
    event = type("Event", (FakeEvent,), {"now": staticmethod(lambda: clock.now)})
    monkeypatch.setattr(torch.cuda, "Event", event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: None)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: None)
    return event


def test_stages_of_other_threads_are_theirs(clock: Clock) -> None:
    watch = Monitor("cpu")

    def beside() -> None:
        with watch.scope("environment"):
            clock.passes(5)

    with watch.scope("forward"):
        clock.passes(1)
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
    assert [(row["name"], row["total_ms"]) for row in watch.read()] == [("forward", 6000.0)]


def test_a_reset_begins_to_time_its_own_thread(clock: Clock) -> None:
    watch = Monitor("cpu")
    assert watch.resets == 1

    def beside() -> None:
        watch.reset()
        with watch.scope("environment"):
            clock.passes(5)

    with watch.scope("forward"):
        clock.passes(1)
    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    with watch.scope("forward"):  # no longer its thread
        clock.passes(1)
    assert [(row["name"], row["total_ms"]) for row in watch.read()] == [("environment", 5000.0)]
    watch.reset()
    with watch.scope("forward"):
        clock.passes(1)
    assert [(row["name"], row["total_ms"]) for row in watch.read()] == [("forward", 1000.0)]
    assert watch.resets == 3


def test_stages_by_update(clock: Clock) -> None:
    watch = Monitor("cpu")
    for number, calls in enumerate([(1, 2), (), (4,)], 1):
        watch.begin_update(number)
        for seconds in calls:
            with watch.scope("forward"):
                clock.passes(seconds)
        with watch.scope("update"):
            clock.passes(1)
    assert watch.by_update(0) == {"forward": [3.0, 4.0], "update": [1.0, 1.0, 1.0]}
    assert watch.by_update(1) == {"forward": [4.0], "update": [1.0, 1.0]}
    assert watch.by_update(3) == {"forward": [], "update": []}
    for number in range(4, RECENT + 4):
        watch.begin_update(number)
        with watch.scope("update"):
            clock.passes(1)
    assert len(watch.by_update(0)["update"]) == RECENT


def test_a_monitor_of_all_threads_is_caught(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_timer.threading, "get_ident", lambda: 1)
    for test in (test_stages_of_other_threads_are_theirs, test_a_reset_begins_to_time_its_own_thread):
        with pytest.raises(AssertionError):
            test(clock)


def update(watch: Monitor, clock: Clock) -> None:
    """10 s: 1 s outside, 2 s forward, 4 s backward with 1 s of the optimizer within, 1 s forward, 2 s outside."""
    clock.passes(1)
    with watch.scope("forward"):
        clock.passes(2)
    with watch.scope("backward"):
        clock.passes(2)
        with watch.scope("optimizer"):
            clock.passes(1)
        clock.passes(1)
    with watch.scope("forward"):
        clock.passes(1)
    clock.passes(2)


def shares(watch: Monitor) -> dict[str, float]:
    return {row["name"]: round(row["share"], 6) for row in watch.read()}


def require_own_time(watch: Monitor, clock: Clock) -> None:
    update(watch, clock)
    rows = [{k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()} for row in watch.read()]
    columns = ("name", "calls", "total_ms", "mean_ms", "p50_ms", "p95_ms", "share")
    assert all(tuple(row) == columns for row in rows)
    assert [tuple(row.values()) for row in rows] == [
        ("forward", 2, 3000.0, 1500.0, 1500.0, 1950.0, 0.3),  # 95 % of the way from 1 to 2 s
        ("backward", 1, 3000.0, 3000.0, 3000.0, 3000.0, 0.3),  # 4 s less the optimizer's
        ("optimizer", 1, 1000.0, 1000.0, 1000.0, 1000.0, 0.1),
    ]


def interrupted(watch: Monitor, clock: Clock) -> None:
    with watch.scope("forward"), watch.scope("copy"):
        clock.passes(1)
        raise ZeroDivisionError


def require_care(watch: Monitor, clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError):
        interrupted(watch, clock)
    with watch.scope("draw"):
        clock.passes(3)
    clock.passes(1)
    assert shares(watch) == {"draw": 0.6, "copy": 0.2, "forward": 0.0}


@pytest.mark.parametrize("require", [require_own_time, require_care])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_time_is_a_stages_own_whatever_happens(
    clock: Clock, gpu: type[FakeEvent], device: str, require: Callable[[Monitor, Clock], None]
) -> None:
    require(Monitor(device), clock)


def test_percentiles(clock: Clock) -> None:
    watch = Monitor("cpu")
    for seconds in (4.0, 1.0, 3.0, 2.0):
        with watch.scope("draw"):
            clock.passes(seconds)
    (row,) = watch.read()
    assert (row["p50_ms"], row["p95_ms"]) == (pytest.approx(2500.0), pytest.approx(3850.0))  # 3 + 0.85 x (4 - 3)


def test_a_stage_within_itself_is_counted_once(clock: Clock) -> None:
    watch = Monitor("cpu")
    with watch.scope("a"):
        clock.passes(1)
        with watch.scope("a"):
            clock.passes(2)
    (row,) = watch.read()
    assert (row["calls"], row["total_ms"], row["share"]) == (2, 3000.0, 1.0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_reset_within_a_stage_keeps_the_rest(clock: Clock, gpu: type[FakeEvent], device: str) -> None:
    watch = Monitor(device)
    with watch.scope("forward"):
        clock.passes(100)
        with watch.scope("copy"):
            clock.passes(100)
            watch.reset()
            clock.passes(1)
        clock.passes(2)
    clock.passes(1)
    assert shares(watch) == {"forward": 0.5, "copy": 0.25}


def test_an_unfinished_stage_is_not_read_yet(clock: Clock) -> None:
    watch = Monitor("cpu")
    with watch.scope("forward"):
        clock.passes(1)
        assert watch.read() == []
        clock.passes(1)
    assert shares(watch) == {"forward": 1.0}


def timed_updates(kind: type[Monitor], every: int, count: int) -> list[int]:
    """Return which of some updates are timed, as their stage says."""
    watch, numbers = kind("cpu"), []
    for number in range(1, count + 1):
        watch.begin_update(number, every)
        before = sum(row["calls"] for row in watch.read())
        with watch.scope("update"):
            pass
        numbers += [number] * (sum(row["calls"] for row in watch.read()) - before)
    assert watch.updates == len(numbers)
    return numbers


def require_every_phase(kind: type[Monitor]) -> None:
    """Of any rhythm of the loop, such as a step before every tenth update, each phase is timed about as often."""
    numbers = timed_updates(kind, every=8, count=4000)
    assert len(numbers) == pytest.approx(500, abs=2)
    for period in (2, 5, 8, 10, 16, 20):
        counts = [sum(number % period == phase for number in numbers) for phase in range(period)]
        assert max(counts) < 1.4 * min(counts)


class EveryEighth(Monitor):
    """A broken monitor: it keeps time with loops of eight updates."""

    def begin_update(self, number: int, every: int = 1) -> None:
        self.active = number % every == 0
        self.updates += self.active


def test_some_updates_stand_for_all() -> None:
    assert timed_updates(Monitor, every=1, count=5) == [1, 2, 3, 4, 5]
    require_every_phase(Monitor)
    with pytest.raises(AssertionError):
        require_every_phase(EveryEighth)


def test_a_reset_counts_timed_updates_anew() -> None:
    watch = Monitor("cpu")
    watch.begin_update(1)
    watch.reset()
    assert watch.updates == 0


class Inclusive(Monitor):
    """A broken monitor: a stage's time includes that of stages within."""

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        began = self._mark()
        yield
        self._stages.setdefault(name, stage_timer._Stage(name)).add(self._mark() - began, self.updates)


class Careless(Monitor):
    """A broken monitor: what raises stays open."""

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._cut()
        self._open.append(stage_timer._Call(name, self))
        yield
        self._cut(last=True)
        self._open.pop()


@pytest.mark.parametrize(("broken", "require"), [(Inclusive, require_own_time), (Careless, require_care)])
def test_broken_monitors_are_caught(
    clock: Clock, broken: type[Monitor], require: Callable[[Monitor, Clock], None]
) -> None:
    with pytest.raises(AssertionError):
        require(broken("cpu"), clock)


def test_memory_is_bounded(clock: Clock) -> None:
    watch = Monitor("cpu")
    for number in range(3 * RECENT):
        with watch.scope("draw"):
            clock.passes(1.0 if number < 2 * RECENT else 3.0)
    (row,) = watch.read()
    assert (row["calls"], row["mean_ms"]) == (3 * RECENT, pytest.approx(5000 / 3))  # exact, over all
    assert row["p50_ms"] == 3000.0  # of the last ones
    assert len(watch._stages["draw"].recent) == RECENT
    assert len(watch._segments) == 0


class TestOnAGpu:
    def test_only_reading_waits(self, clock: Clock, gpu: type[FakeEvent]) -> None:
        gpu.behind = 10
        watch = Monitor("cuda")
        for _ in range(RECENT):
            update(watch, clock)
        assert gpu.waits == 0
        assert len(watch._segments) <= RECENT + gpu.behind
        assert shares(watch) == {"forward": 0.3, "backward": 0.3, "optimizer": 0.1}
        assert gpu.waits == 1
        assert len(watch._segments) == 0

    def test_nothing_is_counted_while_a_graph_is_captured(
        self, clock: Clock, gpu: type[FakeEvent], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch = Monitor("cuda")
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        recorded = gpu.recorded
        update(watch, clock)
        assert gpu.recorded == recorded
        assert watch.read() == []

    def test_stages_are_ranges(self, clock: Clock, gpu: type[FakeEvent], monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[str] = []
        monkeypatch.setattr(torch.cuda.nvtx, "range_push", seen.append)
        monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append("pop"))
        with pytest.raises(ZeroDivisionError), Monitor("cuda").scope("draw"):
            _ = 1 / 0
        assert seen == ["uavlab.draw", "pop"]

    @pytest.mark.parametrize("device", DEVICES)
    def test_a_real_stream_is_never_waited_for(self, device: str) -> None:
        watch = Monitor(device)
        side = 512 if device == "cuda" else 16  # on a GPU long enough to be waited for
        x = torch.ones(side, side, device=device)
        with sync_debug("error", device):
            for _ in range(RECENT):
                with watch.scope("forward"):
                    y = x @ x
                    with watch.scope("backward"):
                        y @ x
        rows = watch.read()
        assert {row["name"]: row["calls"] for row in rows} == {"forward": RECENT, "backward": RECENT}
        assert all(row["total_ms"] > 0 for row in rows)
        assert sum(row["share"] for row in rows) <= 1 + 1e-3
        assert set(memory(device)) == {"resident"} | (set() if device == "cpu" else {"allocated", "peak", "reserved"})


def test_memory_of_this_process() -> None:
    held = memory("cpu")
    assert set(held) == {"resident"}
    assert held["resident"] > 10_000_000  # torch alone is larger


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
        monkeypatch.setattr(stage_timer, "INDEXED", frozenset())
        with pytest.raises(AssertionError):
            self.test_a_table_counts_by_the_rows_that_are_touched(1000)


def test_tracing_is_off_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[str] = []
    monkeypatch.setattr(torch.profiler, "record_function", lambda name: ranges.append(name) or nullcontext())
    watch = Monitor("cpu")
    with watch.scope("draw"):
        pass
    watch.tracing = True
    with watch.scope("copy"):
        pass
    assert ranges == ["uavlab.copy"]
