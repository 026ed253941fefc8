"""What a loader and a model can do alone and together, in windows per second, and the pace of each interval."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fixtures_config import sizes
from uavlab.bench import dataloader as module
from uavlab.bench.dataloader import CYCLES, IN_A_ROW, INTERVALS, per_second, pieces, pipeline, told
from uavlab.experiment.config import configure


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the system tell of reads as given."""

    def told_by(*values: Any) -> None:
        counts = iter(values)
        monkeypatch.setattr(module.psutil, "Process", lambda: SimpleNamespace(io_counters=lambda: next(counts)))

    return told_by


def test_windows_per_second_by_hand() -> None:
    found = per_second({"loader": [2.0] * 3, "model": [4.0] * 3, "both": [5.0] * 3}, windows=20)
    assert (found["loader"], found["model"], found["both"]) == (20 * IN_A_ROW / 2, 5, 4)
    assert found["of_model"] == found["low"] == found["high"] == 0.8


@pytest.mark.parametrize("loader", ["device", "stream", "per_item"])
def test_pieces_do_what_a_run_does(loader: str) -> None:
    config = configure("telemetry", sizes("telemetry"), {"loader": loader, "runs": 2})
    _, source, calls = pieces(config)
    brought = []
    bring = source._bring
    source._bring = lambda: brought.append(None) or bring()  # type: ignore[func-returns-value]
    for name, batches in (("loader", IN_A_ROW), ("model", 0), ("both", 1)):
        brought.clear()
        calls[name]()
        assert len(brought) == batches


def test_an_interval_counts_by_itself(monkeypatch: pytest.MonkeyPatch, reads: Any) -> None:
    """Windows over the time since the beginning would fall from interval to interval; these only tell the slow one."""
    config = configure("telemetry", sizes("telemetry"))
    reads(SimpleNamespace(read_bytes=0, read_chars=0), SimpleNamespace(read_bytes=20 * 2**20, read_chars=60 * 2**20))
    ticks = iter([0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 6.0, 6.0, 7.0, 7.0, 8.0, 8.0, 9.0, 9.0, 13.0, 13.0, 20.0, 20.0])
    monkeypatch.setattr(module, "interleaved", lambda calls, rounds, device: dict.fromkeys(calls, [1.0] * rounds))
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))
    found = pipeline(config, 3)
    windows = CYCLES * config.source.batch
    assert found["intervals"] == [round(windows / last) for last in (1, 1, 4, 1, 1, 1, 4, 7)]
    assert len(found["intervals"]) == INTERVALS
    assert (found["disk_mib_per_s"], found["read_mib_per_s"]) == (1.0, 3.0)  # in 20 s


@pytest.mark.parametrize(
    ("counters", "last"),
    [
        (None, "windows/s, interval by interval: 80 80"),
        (SimpleNamespace(read_bytes=5), "disk: 0.0 MiB/s"),
        (SimpleNamespace(read_bytes=5, read_chars=5), "disk: 0.0 MiB/s; with the system's cache 0.0 MiB/s read"),
    ],
)
def test_what_the_system_does_not_tell_is_left_out(reads: Any, counters: Any, last: str) -> None:
    reads(counters)
    read = [None if each is None else 0.0 for each in module._read()]
    found = {
        **per_second({"loader": [1.0], "model": [0.1], "both": [0.2]}, 8),
        "intervals": [80, 80],
        "disk_mib_per_s": read[0],
        "read_mib_per_s": read[1],
    }
    lines = told(found)
    assert lines[0] == "windows/s: loader alone 80, model alone 80, both 40 (50% of the model's pace, 50% to 50%)"
    assert lines[-1] == last
