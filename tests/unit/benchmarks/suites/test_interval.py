"""The same updates, however steps are gathered; clocks are not judged."""

from typing import Any

import pytest

from uavlab.benchmarks import format_rows
from uavlab.core.text import printable
from uavlab_lab.claims.measures import Bench
from uavlab_lab.claims.update_interval import BLOCK, Block
from uavlab_lab.scaling import longest_wait
from uavlab_lab.suites import interval
from uavlab_lab.suites.interval import compare_paces, interval_suite, time_ranks, waiting

TINY = {"hidden": 8, "batch": 8}


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of updates of 2 ms that do not wait: k steps, then k updates, or both at once."""

    def blocks(bench: Bench, setting: Any) -> Any:
        overlap = setting.get("prefetch") == "overlap"

        def block(step_ms: float) -> Block:
            ms = max(step_ms, 2.0) if overlap else step_ms + 2.0
            return Block(0.0 if overlap else 2.0 / ms, 0.0 if overlap else step_ms / ms, BLOCK * ms / 1e3)

        return block

    monkeypatch.setattr(interval, "paced_blocks", blocks)


@pytest.mark.usefixtures("simulated")
def test_an_interval_is_worth_nothing_in_one_process_and_overlap_the_shorter_half() -> None:
    record = interval_suite(6, "cpu", worlds=(1, 4), pace=1.5)
    assert (record["update_ms"], record["pace"]) == (2.0, 1.5)
    rows = record["rows"]
    assert [(row["worlds"], row["overlap"], row["interval"]) for row in rows] == [
        (count, overlap, k) for count in (1, 4) for overlap in (False, True) for k in (1, 5, 10, 20)
    ]
    for row in rows:
        assert row["step_ms"] == 3.0
        assert row["over_first"] == pytest.approx(5 / 3 if row["overlap"] else 1, abs=1e-4)
        assert row["rows_per_s"] == pytest.approx(row["worlds"] * row["updates_per_s"], abs=0.5)
        assert row["share"] == (None if row["overlap"] else 0.4)
    assert "over_first" in format_rows(rows)


def test_what_devices_wait_for_by_hand() -> None:
    gains = {(row["devices"], row["interval"]): row["gain"] for row in waiting(1.0)}
    assert gains[2, 1] == 1
    # an update of 1, and pauses of mean 1: the slower of two waits 1.5 at interval 1, longest_wait(2, 5) / 5 at 5
    assert gains[2, 5] == pytest.approx((1 + 1.5) / (1 + longest_wait(2, 5) / 5), abs=1e-3)
    assert gains[64, 20] > gains[8, 20] > gains[2, 20] > gains[2, 5] > 1


def test_ranks_are_timed_in_turn_beside_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of 10 ms, steps of 2 ms and pauses of 3 ms, of which the slower of two ranks waits for 4.5."""

    def time_groups(groups: Any, cycles: int, rounds: int, device: str) -> Any:
        assert groups == {k: (f"interval_{k}", 2) for k in (1, 5, 10, 20)}
        update_s = {k: (10 + 2 + 3 * longest_wait(2, k) / k) / 1e3 for k in groups}
        return {k: [cycles * update_s[k]] * rounds for k in groups}, {}

    monkeypatch.setattr(interval, "time_groups", time_groups)
    rows = time_ranks(2, 6, "cpu")
    assert [(row["ranks"], row["interval"]) for row in rows] == [(2, 1), (2, 5), (2, 10), (2, 20)]
    assert rows[0]["update_ms"] == pytest.approx(16.5)
    for row in rows:
        assert row["over_first"] == pytest.approx(row["gain"], abs=2e-3)


def test_paced() -> None:
    settings = {"one": {}, "overlap": {"prefetch": "overlap"}, "both": {"worlds": 16, "ratio": 4}}
    rows = compare_paces(Bench(2, **TINY, device="cpu"), settings, [1.0, 0.0])
    assert [(row["step_ms"], row["setting"]) for row in rows] == [(ms, name) for ms in (1.0, 0.0) for name in settings]
    assert (rows[0]["over_first"], rows[0]["low"], rows[0]["high"]) == (1, 1, 1)
    for row in rows:
        assert (row["share"] is None) == (row["setting"] == "overlap")
        assert row["share"] is None or 0 < row["share"] < 1
        assert row["low"] <= row["over_first"] <= row["high"]
        factor = 16 / 4 if row["setting"] == "both" else 1
        assert row["rows_per_s"] == pytest.approx(factor * row["updates_per_s"], abs=1)
    assert rows[0]["updates_per_s"] < 1000  # an update waits for a step of 1 ms


def test_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval, "INTERVALS", (1, 20))
    record = interval_suite(1, "cpu", (2,), 0.1, **TINY)
    assert [(row["interval"], row["overlap"]) for row in record["rows"]] == [
        (1, False),
        (20, False),
        (1, True),
        (20, True),
    ]
    assert all(BLOCK % k == 0 for k in interval.INTERVALS)
    assert printable(format_rows(record["rows"]))
