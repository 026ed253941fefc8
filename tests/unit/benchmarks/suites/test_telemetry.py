"""The suite measures a run on every path; loader and model alone and together."""

from types import SimpleNamespace

import pytest
import torch

from tests.support.fixtures_config import sizes
from uavlab.experiment import build
from uavlab.experiment.config import configure
from uavlab_lab.measure.compare import IN_A_ROW, loading_calls, rates
from uavlab_lab.suites import telemetry
from uavlab_lab.suites.telemetry import PATHS, memory_bytes, paths, raw_bytes, telemetry_suite


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
