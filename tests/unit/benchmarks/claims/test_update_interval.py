"""An interval reorders steps and updates and leaves both totals the same."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.benchmarks.claims.test_measures import TINY
from uavlab.core.errors import ResourceError
from uavlab.envs.leader_follower import env as slow
from uavlab_lab.claims import update_interval
from uavlab_lab.claims.ledger import select
from uavlab_lab.claims.measures import Bench, NotTestable, Setting
from uavlab_lab.claims.report import measure_claim, verdict
from uavlab_lab.claims.update_interval import (
    BLOCK,
    PACE,
    Block,
    game_share,
    interval_gain,
    measure_intervals,
    paced_blocks,
)

UPDATE_MS = 2.0


def simulated(bench: Bench, setting: Setting) -> Callable[[float], Block]:
    """Return blocks without waiting: k steps, then k updates, or both at once."""

    def block(step_ms: float) -> Block:
        overlap = setting.get("prefetch") == "overlap"
        ms = max(step_ms, UPDATE_MS) if overlap else step_ms + UPDATE_MS
        return Block(0.0 if overlap else UPDATE_MS / ms, 0.0 if overlap else step_ms / ms, BLOCK * ms / 1e3)

    return block


class TestPaced:
    @pytest.fixture
    def bench(self, monkeypatch: pytest.MonkeyPatch) -> Bench:
        monkeypatch.setattr(update_interval, "paced_blocks", simulated)
        return Bench(6, **TINY)

    @pytest.mark.parametrize("interval", ["1", "10"])
    def test_the_learner_is_as_busy_at_every_interval(self, bench: Bench, interval: str) -> None:
        for block in measure_intervals(bench)[interval]:
            assert block.learner == pytest.approx(22.5 / 102.5)  # 0.22

    def test_only_overlap_is_faster(self, bench: Bench) -> None:
        result = interval_gain(bench)
        assert (result.value, result.low, result.high, result.rounds) == (1.0, 1.0, 1.0, 2)
        assert result.note.endswith(": 1.28x")  # (80 + 22.5) / 80

    def test_the_pace_follows_the_update(self, bench: Bench) -> None:
        intervals = measure_intervals(bench)
        assert {name: len(blocks) for name, blocks in intervals.items()} == dict.fromkeys(intervals, 2)
        assert intervals["10"][0].seconds == pytest.approx(BLOCK * UPDATE_MS * (1 + PACE) / 1e3)


class TestBlocks:
    def test_shares_of_learner_and_environment(self) -> None:
        block = paced_blocks(Bench(3, **TINY), {"interval": 5})(0.0)
        assert 0 < block.environment < 1
        assert 0 < block.learner < 1
        assert block.learner + block.environment < 1
        assert block.seconds > 0

    def test_the_world_takes_the_time_of_a_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waits: list[float] = []
        monkeypatch.setattr(slow.time, "sleep", waits.append)
        block = paced_blocks(Bench(3, **TINY), {"interval": 10})
        assert waits == []  # not while it is prepared
        block(20.0)
        assert waits == [0.02] * BLOCK

    def test_steps_and_updates_at_once_are_timed_as_a_whole(self) -> None:
        block = paced_blocks(Bench(3, **TINY), {"interval": 10, "prefetch": "overlap"})(0.0)
        assert (block.learner, block.environment) == (0.0, 0.0)
        assert block.seconds > 0

    @pytest.mark.parametrize(("prefetch", "before"), [("off", 0), ("overlap", 10)])
    def test_steps_between_blocks_count_for_none(
        self, monkeypatch: pytest.MonkeyPatch, prefetch: str, before: int
    ) -> None:
        calls: list[str] = []
        monkeypatch.setattr("uavlab_lab.measure.compare.make_cycle", lambda *loop: lambda: calls.append("cycle"))
        monkeypatch.setattr(
            update_interval, "time_call", lambda call, device: (calls.append("timed"), call())[:0] or 1.0
        )
        block = paced_blocks(Bench(3, **TINY), {"interval": 10, "prefetch": prefetch})
        calls.clear()
        block(0.0)
        assert calls == ["cycle"] * before + ["timed"] + ["cycle"] * BLOCK


def test_the_game_as_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_interval, "paced_blocks", simulated)
    assert game_share(Bench(3, **TINY), "environment").value == pytest.approx(80 / 82)
    assert game_share(Bench(3, **TINY), "learner", batch=512).value == pytest.approx(2 / 82)


def test_blocks_are_whole_rounds() -> None:
    assert BLOCK % 10 == 0


def test_the_game_is_not_here() -> None:
    with pytest.raises(NotTestable, match="needs the game's own engine"):
        measure_claim(select(["slow-env"])[0], Bench(3, **TINY))


@pytest.mark.parametrize(
    ("name", "preset"), [("eight-devices", "interval_1"), ("eight-devices-interval", "interval_10")]
)
def test_what_needs_eight_devices_has_a_plan_two_ranks_and_no_verdict(
    name: str, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_groups(groups: Any, cycles: int, rounds: int, device: str) -> Any:
        assert (groups, cycles, device) == ({1: ("interval_1", 1), 2: (preset, 2)}, BLOCK, "cpu")
        return {1: [1.2] * rounds, 2: [1.6] * rounds}, {}  # twice the rows in 4 / 3 of the time

    monkeypatch.setattr(update_interval, "time_groups", time_groups)
    (claim,) = select([name])
    numbers = (
        rf"[1-8]\.\d\dx by the model .*, where no step waits; two ranks of {preset} on .* cores?\), whose steps wait "
        r"5 ms in the mean: 1\.50x the rows per second of one rank of interval_1 \(1\.50 to 1\.50 in 3 rounds\)$"
    )
    with pytest.raises(NotTestable, match=rf"^needs 8 GPUs with a rank on each; {numbers}"):
        measure_claim(claim, Bench(3, **TINY))
    assert verdict(claim, None) == "not measured"


def test_ranks_that_fail_leave_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_groups(*arguments: Any) -> Any:
        raise ResourceError("bench: interval_1: rank 1 of 2 with 1 ended.")

    monkeypatch.setattr(update_interval, "time_groups", time_groups)
    (claim,) = select(["eight-devices"])
    with pytest.raises(NotTestable, match=r"x by the model .*; two ranks of interval_1 .* fail: .* with 1 ended$"):
        measure_claim(claim, Bench(3, **TINY))
