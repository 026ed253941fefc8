"""A profile calls the step ten times, its counts match those by hand, and it writes a whole trace or none."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from uavlab.core.errors import ResourceError
from uavlab.runtime.stage_timer import Monitor
from uavlab_lab.measure import profile_run as module
from uavlab_lab.measure.profile_run import GRAPHS, PYTHON, profile


class Loop:
    """Two products and a sum per step, in stages."""

    def __init__(self) -> None:
        self.watch, self.steps = Monitor("cpu"), 0
        self.x = torch.ones(64, 64)

    def step(self) -> None:
        self.steps += 1
        with self.watch.scope("forward"):
            y = self.x @ self.x @ self.x
        with self.watch.scope("logging"):
            y.sum()


def test_rows_are_per_step(capfd: pytest.CaptureFixture[str]) -> None:
    loop = Loop()
    result = profile(loop.step, "cpu", top=100)
    assert loop.steps == 10
    rows = {row["operator"]: row for row in result}
    assert {name: rows[name]["calls"] for name in ("aten::mm", "aten::sum", PYTHON)} == {
        "aten::mm": 2.0,
        "aten::sum": 1.0,
        PYTHON: 0.0,
    }
    assert all(set(row) == {"operator", "calls", "cpu_ms", "share"} for row in result)
    assert [row["cpu_ms"] for row in result] == sorted((row["cpu_ms"] for row in result), reverse=True)
    assert sum(row["share"] for row in result) == pytest.approx(1)
    assert "USDT" not in capfd.readouterr().err  # the profiler's library keeps to itself


def test_the_longest_come_first() -> None:
    assert len(profile(Loop().step, "cpu", top=2)) == 2


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_trace(tmp_path: Path, name: str) -> None:
    loop, path = Loop(), tmp_path / name
    profile(loop.step, "cpu", path, monitor=loop.watch)
    assert list(tmp_path.iterdir()) == [path]
    with gzip.open(path) if name.endswith("gz") else path.open("rb") as file:
        events = json.load(file)["traceEvents"]
    assert {"aten::mm", "uavlab.forward", "uavlab.logging"} <= {event["name"] for event in events}
    assert [64, 64] in next(event for event in events if event["name"] == "aten::mm")["args"]["Input Dims"]
    assert not loop.watch.tracing


def test_one_long_step_is_recorded() -> None:
    loop = Loop()
    (row,) = [row for row in profile(loop.step, "cpu", top=100, once=True) if row["operator"] == "aten::mm"]
    assert (loop.steps, row["calls"]) == (3, 2.0)


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"none/trace\.json: cannot be written \(No such file or directory\)"):
        profile(Loop().step, "cpu", tmp_path / "none" / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_raises_leaves_everything_ready(tmp_path: Path) -> None:
    loop = Loop()

    def broken() -> None:
        loop.step()
        if loop.steps == 4:  # while recording
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        profile(broken, "cpu", tmp_path / "trace.json", monitor=loop.watch)
    assert list(tmp_path.iterdir()) == []
    assert not loop.watch.tracing
    assert profile(loop.step, "cpu") != []


def event(key: str, cpu_us: float, device_us: float, count: int = 6, kernel: bool = False, **given: Any) -> Any:
    kind = DeviceType.CUDA if kernel else DeviceType.CPU
    times = {"self_cpu_time_total": cpu_us, "self_device_time_total": device_us}
    return SimpleNamespace(
        **{"key": key, "count": count, "device_type": kind, "is_user_annotation": False, **times, **given}
    )


def test_rows_of_a_gpu() -> None:
    """6 recorded steps: kernels took 36 ms, of which operators launched 24 and a graph the rest."""
    rows = module._rows(
        [
            event("aten::mm", 1000, 18_000, count=12),
            event("aten::sum", 2000, 6_000),
            event("ProfilerStep*", 600, 36_000),
            event("uavlab.forward", 1200, 30_000),
            event("gemm", 0, 18_000, kernel=True),
            event("reduce", 0, 6_000, kernel=True),
            event("fused", 0, 12_000, kernel=True),
            event("uavlab.forward", 0, 36_000, kernel=True, is_user_annotation=True),
        ],
        cuda=True,
    )
    rounded = [[round(v, 6) if isinstance(v, float) else v for v in row.values()] for row in rows]
    assert rounded == [
        ["aten::mm", 2.0, 0.166667, 3.0, 0.5],
        [GRAPHS, 0.0, 0.0, 2.0, 0.333333],
        ["aten::sum", 1.0, 0.333333, 1.0, 0.166667],
        [PYTHON, 0.0, 0.3, 0.0, 0.0],
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu(tmp_path: Path) -> None:
    x = torch.ones(512, 512, device="cuda")
    result = profile(lambda: x @ x, "cuda", tmp_path / "trace.json")
    (row,) = [row for row in result if row["operator"] == "aten::mm"]
    assert row["calls"] == 1.0
    assert row["device_ms"] > 0
    assert row["share"] > 0.9
