"""An interval moves steps and updates about and leaves both totals the same, whatever is claimed of it."""

from collections.abc import Callable

import pytest

from tests.unit.bench.claims.test_leader_follower import TINY
from uavlab.bench.claims import update_interval
from uavlab.bench.claims.leader_follower import Bench, NotTestable, Setting
from uavlab.bench.claims.update_interval import BLOCK, INTERVALS, MEASURES, PACE, Block, beside, counted
from uavlab.envs.leader_follower import delayed

UPDATE_MS = 2.0


def simulated(bench: Bench, setting: Setting) -> Callable[[float], Block]:
    """Make blocks without waiting: k steps, then k updates, or both at once."""

    def block(step_ms: float) -> Block:
        at_once = setting.get("prefetch") == "overlap"
        ms = max(step_ms, UPDATE_MS) if at_once else step_ms + UPDATE_MS
        return Block(0.0 if at_once else UPDATE_MS / ms, 0.0 if at_once else step_ms / ms, BLOCK * ms / 1e3)

    return block


class TestPaced:
    @pytest.fixture
    def bench(self, monkeypatch: pytest.MonkeyPatch) -> Bench:
        monkeypatch.setattr(update_interval, "beside", simulated)
        return Bench(6, **TINY)

    @pytest.mark.parametrize("interval", INTERVALS)
    def test_the_learner_is_as_busy_at_every_interval(self, bench: Bench, interval: int) -> None:
        assert MEASURES[f"busy_interval_{interval}"](bench).value == pytest.approx(22.5 / 102.5)  # 0.22

    def test_nothing_gets_faster_but_by_doing_both_at_once(self, bench: Bench) -> None:
        found = MEASURES["interval_speedup"](bench)
        assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)
        assert found.note.endswith(": 1.28x")  # (80 + 22.5) / 80

    def test_the_pace_follows_the_update(self, bench: Bench) -> None:
        found = update_interval.paced(bench)
        assert {name: len(blocks) for name, blocks in found.items()} == dict.fromkeys(found, 2)
        assert found["5"][0].seconds == pytest.approx(BLOCK * UPDATE_MS * (1 + PACE) / 1e3)


class TestBeside:
    def test_shares_of_learner_and_environment(self) -> None:
        block = beside(Bench(3, **TINY), {"interval": 5})(0.0)
        assert 0 < block.environment < 1
        assert 0 < block.learner < 1
        assert block.learner + block.environment < 1
        assert block.seconds > 0

    def test_the_world_takes_as_long_as_it_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waits: list[float] = []
        monkeypatch.setattr(delayed.time, "sleep", waits.append)
        block = beside(Bench(3, **TINY), {"interval": 10})
        assert waits == []  # not while it is prepared
        block(20.0)
        assert waits == [0.02] * BLOCK

    def test_steps_and_updates_at_once_are_timed_as_a_whole(self) -> None:
        block = beside(Bench(3, **TINY), {"interval": 10, "prefetch": "overlap"})(0.0)
        assert (block.learner, block.environment) == (0.0, 0.0)
        assert block.seconds > 0

    @pytest.mark.parametrize(("prefetch", "before"), [("off", 0), ("overlap", 10)])
    def test_steps_made_between_blocks_count_for_none(
        self, monkeypatch: pytest.MonkeyPatch, prefetch: str, before: int
    ) -> None:
        made: list[str] = []
        monkeypatch.setattr(update_interval, "make_cycle", lambda *loop: lambda: made.append("cycle"))
        monkeypatch.setattr(update_interval, "timed", lambda call, device: (made.append("timed"), call())[:0] or 1.0)
        block = beside(Bench(3, **TINY), {"interval": 10, "prefetch": prefetch})
        made.clear()
        block(0.0)
        assert made == ["cycle"] * before + ["timed"] + ["cycle"] * BLOCK


def test_the_game_as_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_interval, "beside", simulated)
    assert MEASURES["game_share"](Bench(3, **TINY)).value == pytest.approx(80 / 82)


def test_blocks_are_whole_rounds() -> None:
    assert [BLOCK % interval for interval in INTERVALS] == [0, 0, 0, 0]


@pytest.mark.parametrize(("steps", "every", "updates"), [(200, 10, 200), (200, 1, 200), (60, 20, 60), (50, 20, 60)])
def test_updates_of_an_episode(steps: int, every: int, updates: int) -> None:
    """As many updates as steps; a round that the episode's end cuts is made all the same."""
    assert counted(Bench(3, **TINY), steps, every).value == updates


def test_what_is_multiplied() -> None:
    assert MEASURES["updates_multiplied"](Bench(3, **TINY)).value == 1_000_000  # 6,250 x 200 = 1.25 million, / 10 x 8


def test_the_game_is_not_here() -> None:
    with pytest.raises(NotTestable, match="needs the game's own engine"):
        MEASURES["game_engine"](Bench(3, **TINY))
