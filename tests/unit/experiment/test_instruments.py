"""Shares of the time by stage since the reading before, of one monitor or of several in turn."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import tiny
from tests.support.live_runs import trained
from uavlab.experiment import instruments
from uavlab.experiment.instruments import Instruments, differs
from uavlab.runtime.runtime import Runtime


class FakeMonitor:
    """A monitor whose stages took what a test says."""

    def __init__(self, resets: int = 1, **total: float) -> None:
        self.resets, self.total = resets, total

    def read(self) -> list[dict[str, Any]]:
        return [{"name": name, "total_ms": total} for name, total in self.total.items()]


def shares(each: Any, monitor: Any) -> dict[str, float]:
    figures = each.read(SimpleNamespace(monitor=monitor, device=torch.device("cpu")))
    return {name[5:]: round(value, 6) for name, value in figures.items() if name.startswith("time/")}


def since_the_last_reading(kind: type[Instruments]) -> None:
    """Read a monitor twice, after a reset, and another one that may lie where the first one lay."""
    each, monitor = kind(), FakeMonitor(update=300.0, draw=100.0)
    assert shares(each, monitor) == {"update": 0.75, "draw": 0.25}
    monitor.total = {"update": 350.0, "draw": 200.0, "copy": 50.0}  # 50, 100 and 50 more
    assert shares(each, monitor) == {"update": 0.25, "draw": 0.5, "copy": 0.25}
    monitor.resets, monitor.total = 2, {"update": 10.0, "draw": 30.0}
    assert shares(each, monitor) == {"update": 0.25, "draw": 0.75}
    del monitor
    gc.collect()
    others = [FakeMonitor(resets=2, update=30.0, draw=10.0) for _ in range(100)]  # one in the place of the former
    for other in others:
        assert shares(each, other) == {"update": 0.75, "draw": 0.25}


class Cumulative(Instruments):
    """A broken one: shares of all the time so far."""

    def read(self, rt: Any) -> dict[str, float]:
        self._before = {}
        return super().read(rt)


class Blind(Instruments):
    """A broken one: it takes a monitor that was reset, or another one, for the former."""

    def read(self, rt: Any) -> dict[str, float]:
        self._of = (rt.monitor, rt.monitor.resets)
        return super().read(rt)


def test_shares_are_those_since_the_last_reading() -> None:
    since_the_last_reading(Instruments)


@pytest.mark.parametrize("broken", [Cumulative, Blind])
def test_broken_ones_are_caught(broken: type[Instruments]) -> None:
    with pytest.raises(AssertionError):
        since_the_last_reading(broken)


def test_several_read_one_monitor() -> None:
    one, other, monitor = Instruments(), Instruments(), FakeMonitor(update=10.0)
    shares(one, monitor)
    monitor.total = {"update": 10.0, "draw": 10.0}
    assert shares(one, monitor) == {"update": 0.0, "draw": 1.0}
    assert shares(other, monitor) == {"update": 0.5, "draw": 0.5}


def test_where_no_time_passed_there_are_no_shares() -> None:
    each, monitor = Instruments(), FakeMonitor(update=10.0)
    shares(each, monitor)
    assert shares(each, monitor) == {}


def test_without_a_monitor_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "memory", lambda device: 1 / 0)
    assert Instruments().read(Runtime()) == {}


def test_memory_is_in_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "memory", lambda device: {"resident": 3 * 2**20, "peak": 2**19})
    rt: Any = SimpleNamespace(monitor=FakeMonitor(), device=torch.device("cpu"))
    assert Instruments().read(rt) == {"memory/resident": 3.0, "memory/peak": 0.5}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("seconds", True), ("time/update", True), ("memory/resident", True), ("counts/rounds", True)),
        *(("eval/time", False), ("actor_loss", False), ("counts", False)),
    ],
)
def test_figures_that_differ_between_equal_runs(name: str, expected: bool) -> None:
    assert differs(name) is expected


def test_a_run_logs_them_and_its_digest_leaves_them_out() -> None:
    plain, watched = trained(tiny(updates=4)), trained(tiny(updates=4, monitor=True))
    row = watched.recorder.rows[-1]
    assert {"time/update", "time/acting", "time/environment", "memory/resident"} <= row.keys()
    assert sum(value for name, value in row.items() if name.startswith("time/")) == pytest.approx(1)
    assert not any(name.startswith(("time/", "memory/")) for row in plain.recorder.rows for name in row)
    assert plain.digest == watched.digest
