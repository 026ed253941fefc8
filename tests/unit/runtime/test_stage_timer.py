"""All time belongs to one stage or none, and only ``read`` waits for a GPU."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from tests.support.devices import DEVICES
from tests.support.sync_debug import sync_debug
from uavlab.runtime import stage_timer
from uavlab.runtime.stage_timer import RECENT, Monitor
from uavlab.storage.machine import memory


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
