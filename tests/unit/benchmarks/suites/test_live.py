"""Changes within a run beside timings of the same settings: what is measured, and when both agree."""

from typing import Any

import pytest

from uavlab.experiment.run import Run
from uavlab_lab.live import trainer as comparison
from uavlab_lab.suites import live

ACTING = ({"acting": "loop"}, {"acting": "batched"})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "SLICE", 0.01)
    monkeypatch.setattr(live, "WARM", 3)
    monkeypatch.setattr(live, "CHANGES", (ACTING,))
    monkeypatch.setattr(live, "ALONE", {**live.ALONE, "hidden": 8, "batch": 8, "worlds": 4, "learning_starts": 16})


def test_a_change_is_measured_in_a_run() -> None:
    measured = live.change_in_a_run(*ACTING, 3, "cpu")
    assert measured["how"] == "interleaved"
    assert measured["slices"] == 3
    assert measured["low"] <= measured["ratio"] <= measured["high"]


def test_a_monitor_is_compared_with_none_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is an interval of the log; without a monitor, no stage is timed and nothing is read."""
    timed: dict[str, list[int]] = {"on": [], "off": []}
    runs: list[Run] = []

    def in_turn(calls: Any, rounds: int, device: Any, **options: Any) -> dict[str, list[float]]:
        run = runs[0]
        for name in ("off", "on", "off", "on"):
            before = run.number
            calls[name]()
            assert run.number == before + 32
            timed[name].append(run.rt.monitor.updates)  # type: ignore[union-attr]
            assert ("time/update" in run.recorder.rows[-1]) is (name == "on")
        return {"on": [3.2, 3.2], "off": [1.6, 1.6]}

    def one(config: Any) -> Run:
        runs.append(Run(config))
        return runs[0]

    monkeypatch.setattr(live, "ALONE", {**live.ALONE, "log_every": 32})
    monkeypatch.setattr(live, "Run", one)
    monkeypatch.setattr(live, "time_in_turn", in_turn)
    [row] = live.monitor_suite(3, "cpu", ["leader_follower"])["rows"]
    assert timed["off"][0] == 0
    assert timed["on"][0] == timed["off"][1] > 8  # one of two updates
    assert (row["off_ms"], row["on_ms"], row["on_over_off"]) == (50.0, 100.0, 2.0)


@pytest.mark.parametrize(("low", "high", "agree"), [(1.1, 1.3, True), (1.25, 1.4, False), (0.5, 1.0, True)])
def test_intervals_agree_where_they_share_a_value(
    low: float, high: float, agree: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def timed(before: Any, after: Any, rounds: int, device: str, at_once: int) -> dict[str, float]:
        calls.append(at_once)
        return {"mean": (low + high) / 2, "low": low, "high": high}

    monkeypatch.setattr(live, "timed_in_turn", timed)
    measured = {"ratio": 1.1, "low": 1.0, "high": 1.2, "warm_up_s": 2.0}
    monkeypatch.setattr(live, "change_in_a_run", lambda *arguments: measured)
    [row] = live.live_suite(5, "cpu")["rows"]
    assert (row["before"], row["after"], row["agree"]) == ("acting=loop", "acting=batched", agree)
    assert (row["live"], row["warm_up_s"]) == ({"mean": 1.1, "low": 1.0, "high": 1.2}, 2.0)
    assert calls == [live.BLOCK, 1]


def test_cycles_are_timed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def compare(preset: str, settings: Any, *layers: Any, **options: Any) -> list[dict[str, Any]]:
        asked.update(options, settings=settings)
        return [{}, {"over_first": 2.0, "low": 1.5, "high": 2.5}]

    monkeypatch.setattr(live, "compare", compare)
    assert live.timed_in_turn(*ACTING, 7, "cpu", 50) == {"mean": 2.0, "low": 1.5, "high": 2.5}
    assert asked == {"call": "cycle", "rounds": 7, "at_once": 50, "settings": {"before": ACTING[0], "after": ACTING[1]}}
