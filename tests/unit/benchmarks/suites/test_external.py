"""The batch of the comparison fits the time of a step, and rows hold what was asked for."""

from typing import Any

import pytest

from tests.support.registries import registered
from uavlab.benchmarks.suites import external


@pytest.mark.parametrize(
    ("step_ms", "expected"), [(1.0, (64, 2.0)), (5.0, (128, 4.0)), (7.0, (256, 8.0)), (99.0, (256, 8.0))]
)
def test_the_batch_whose_update_is_nearest_a_step(
    step_ms: float, expected: tuple[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from uavlab.benchmarks.compare import Call
    from uavlab.runtime.runtime import Runtime

    seconds = iter((0.002, 0.004, 0.008))
    monkeypatch.setattr(external, "BATCHES", (64, 128, 256))
    monkeypatch.setattr(external, "configure", lambda *layers: None)
    monkeypatch.setattr(external, "build_call", lambda config, piece: Call(lambda: None, Runtime()))
    monkeypatch.setattr(external, "time_in_turn", lambda calls, rounds, device: {"": [next(seconds)]})
    assert external._fitting_batch("", {}, step_ms, 3) == expected


def test_rows_and_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "SIZES", ((1, 1), (1, 2)))
    monkeypatch.setattr(external, "BATCHES", (8,))
    monkeypatch.setattr(external, "WORKERS", 1)
    monkeypatch.setattr(external, "LEARN", {**external.LEARN, "worlds": 2, "learning_starts": 16, "hidden": 8})
    with registered():
        record: dict[str, Any] = external.external_suite(3, "cpu", 0.0)
    assert [row["setting"] for row in record["rows"]] == ["alternating", "overlap", "overlap, interval 1"]
    assert record["rows"][0]["over_first"] == 1.0
    assert record["batch"] == 8
    assert 0 < record["environment_share"] < 1
    assert [(row["workers"], row["worlds"]) for row in record["scaling"]] == [(1, 1), (1, 2)]
    assert all(row["steps_per_s"] > 0 and row["of_ideal"] == 0 for row in record["scaling"])
