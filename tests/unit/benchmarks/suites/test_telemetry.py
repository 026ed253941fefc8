"""The suite measures a run on every path; loader and model alone and together; and the pace of each interval."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import sizes
from uavlab.experiment import build
from uavlab.experiment.config import configure
from uavlab_lab.measure import compare
from uavlab_lab.measure.compare import (
    CYCLES,
    IN_A_ROW,
    INTERVALS,
    format_throughput,
    loading_calls,
    rates,
    throughput,
)
from uavlab_lab.suites import telemetry
from uavlab_lab.suites.telemetry import PATHS, memory_bytes, paths, raw_bytes, telemetry_suite


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set what the system counts, reading by reading."""

    def count(*values: Any) -> None:
        readings = iter(values)
        monkeypatch.setattr(compare.psutil, "Process", lambda: SimpleNamespace(io_counters=lambda: next(readings)))

    return count


def test_a_row_for_each_path() -> None:
    record = telemetry_suite(2, "cpu", "telemetry", {**sizes("telemetry"), "flights": 6})
    rows = {row["path"]: row for row in record["rows"]}
    assert list(rows) == list(PATHS)
    assert all(row[name] > 0 for row in rows.values() for name in ("loader", "model", "both"))
    assert rows["per_item"]["over_per_item"] == 1.0
    assert len({row["raw_bytes"] for row in rows.values()}) == 1
    assert rows["stream"]["bytes"] < rows["device"]["bytes"] == rows["stream, cached"]["bytes"]
    assert rows["device"]["bytes"] < rows["per_item, cached"]["bytes"] < rows["per_item"]["bytes"]
    assert record["batch"] == 8


def test_a_gpu_is_also_measured_without_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths("cpu") == PATHS
    monkeypatch.setattr(telemetry.build, "runtime", lambda run: SimpleNamespace(device=torch.device("cuda")))
    more = {path: settings for path, settings in paths("auto").items() if path not in PATHS}
    assert more["stream, not pinned"] == {"loader": "stream", "pinned": False}
    assert len(more) == 3


def test_bytes_by_hand() -> None:
    _, _, _, source = build.assemble(configure("telemetry", sizes("telemetry"), {"loader": "device"}))
    count = int(source.sets.training.bounds[-1])
    assert raw_bytes(source.sets.training) == 4 * count * (33 + 6 + 3)
    assert memory_bytes(source) == raw_bytes(source.sets.training) + 8 * len(source.starts)
    assert source.starts.dtype == torch.int64


def test_windows_per_second_by_hand() -> None:
    paces = rates({"loader": [2.0] * 3, "model": [4.0] * 3, "both": [5.0] * 3}, windows=20)
    assert (paces["loader"], paces["model"], paces["both"]) == (20 * IN_A_ROW / 2, 5, 4)
    assert paces["of_model"] == paces["low"] == paces["high"] == 0.8


@pytest.mark.parametrize("loader", ["device", "stream", "per_item"])
def test_calls_load_as_a_run_does(loader: str) -> None:
    config = configure("telemetry", sizes("telemetry"), {"loader": loader, "runs": 2})
    _, source, calls = loading_calls(config)
    loads = []
    bring = source._load
    source._load = lambda: loads.append(None) or bring()  # type: ignore[func-returns-value]
    for name, batches in (("loader", IN_A_ROW), ("model", 0), ("both", 1)):
        loads.clear()
        calls[name]()
        assert len(loads) == batches


def test_an_interval_counts_by_itself(monkeypatch: pytest.MonkeyPatch, counters: Any) -> None:
    """Windows over the time since the beginning would fall from interval to interval; these only show the slow one."""
    config = configure("telemetry", sizes("telemetry"))
    counters(SimpleNamespace(read_bytes=0, read_chars=0), SimpleNamespace(read_bytes=20 * 2**20, read_chars=60 * 2**20))
    ticks = iter([0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 6.0, 6.0, 7.0, 7.0, 8.0, 8.0, 9.0, 9.0, 13.0, 13.0, 20.0, 20.0])
    monkeypatch.setattr(compare, "time_in_turn", lambda calls, rounds, device: dict.fromkeys(calls, [1.0] * rounds))
    monkeypatch.setattr(compare.time, "perf_counter", lambda: next(ticks))
    record = throughput(config, 3)
    windows = CYCLES * config.source.batch
    assert record["intervals"] == [round(windows / last) for last in (1, 1, 4, 1, 1, 1, 4, 7)]
    assert len(record["intervals"]) == INTERVALS
    assert (record["disk_mib_per_s"], record["read_mib_per_s"]) == (1.0, 3.0)  # in 20 s


@pytest.mark.parametrize(
    ("count", "last"),
    [
        (None, "windows/s, interval by interval: 80 80"),
        (SimpleNamespace(read_bytes=5), "disk: 0.0 MiB/s"),
        (SimpleNamespace(read_bytes=5, read_chars=5), "disk: 0.0 MiB/s; with the system's cache 0.0 MiB/s read"),
    ],
)
def test_what_the_system_does_not_count_is_left_out(counters: Any, count: Any, last: str) -> None:
    counters(count)
    disk, read = (None if each is None else 0.0 for each in compare._bytes_read())
    record = {
        **rates({"loader": [1.0], "model": [0.1], "both": [0.2]}, 8),
        "intervals": [80, 80],
        "disk_mib_per_s": disk,
        "read_mib_per_s": read,
    }
    lines = format_throughput(record)
    assert lines[0] == "windows/s: loader alone 80, model alone 80, both 40 (50% of the model's pace, 50% to 50%)"
    assert lines[-1] == last
