"""The suite measures what a run does, on every path, and tells what the flights take."""

import pytest
import torch

from tests.support.fixtures_config import sizes
from uavlab.bench.suites import telemetry
from uavlab.bench.suites.telemetry import PATHS, held, raw, telemetry_suite
from uavlab.experiment.config import configure


def test_a_row_for_each_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(preset: str, *layers: dict[str, object]) -> object:
        return configure("telemetry", sizes("telemetry"), *[{**layer, "flights": 6} for layer in layers])

    monkeypatch.setattr(telemetry, "configure", small)
    record = telemetry_suite(2, "cpu")
    rows = {row["path"]: row for row in record["rows"]}
    assert tuple(rows) == PATHS
    assert all(row[name] > 0 for row in rows.values() for name in ("loader", "model", "both"))
    assert rows["per_item"]["over_per_item"] == 1.0
    assert len({row["raw_bytes"] for row in rows.values()}) == 1
    assert rows["stream"]["bytes"] < rows["device"]["bytes"] < rows["per_item"]["bytes"]
    assert record["batch"] == 8


def test_bytes_by_hand() -> None:
    from uavlab.experiment import build

    _, _, _, source = build.assembled(configure("telemetry", sizes("telemetry"), {"loader": "device"}))
    count = int(source.sets.training.bounds[-1])
    assert raw(source.sets.training) == 4 * count * (33 + 6 + 3)
    assert held(source) == raw(source.sets.training) + 8 * len(source.starts)
    assert source.starts.dtype == torch.int64
