"""Numbers are what one computes by hand from timed rows and counted work; what cannot be had says why."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from uavlab.bench.claims import gpu, leader_follower
from uavlab.bench.claims.leader_follower import (
    LOOP,
    LOW,
    MEASURES,
    STAGE_1,
    Bench,
    Measure,
    Measured,
    NotTestable,
    duplicates,
    gain,
    share,
)
from uavlab.experiment.config import configure

TINY: dict[str, Any] = {"hidden": 8, "batch": 8, "learning_starts": 16, "capacity": 128, "device": "cpu"}


def rows(ms: list[float], spread: float = 0.1, **fell_back: str) -> list[dict[str, Any]]:
    """Lay out what ``compare`` would say of these times, with an interval of 10 % to each side."""
    made = []
    for number, each in enumerate(ms):
        over = ms[0] / each
        ends = {"low": over * (1 - spread), "high": over * (1 + spread)}
        made.append({"setting": str(number), "ms": each, "over_first": over, **ends, "fell_back": fell_back})
    return made


@pytest.fixture
def bench() -> Bench:
    return Bench(3, **TINY)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Answer ``compare`` from a table: times (ms) by the settings that the second one changes."""
    answers: dict[str, list[float]] = {}

    def compare(preset: str, settings: Mapping[str, Mapping[str, Any]], **how: Any) -> list[dict[str, Any]]:
        slow, fast = settings.values()
        changed = {name for name in fast if fast[name] != slow[name]}
        return rows(answers[f"{how['call']} {fast['followers'] + 1} {' '.join(sorted(changed))}"])

    monkeypatch.setattr(leader_follower, "compare", compare)
    return answers


class TestArithmetic:
    def test_a_speed_up_with_its_interval(self, bench: Bench, timed: dict[str, list[float]]) -> None:
        timed["update 2 update"] = [12.0, 8.0]
        assert gain(bench, "update", LOOP, STAGE_1) == Measured(
            1.5, pytest.approx(1.35), pytest.approx(1.65), "12 ms before, 8 ms after"
        )

    def test_what_is_lost_without_it(self, bench: Bench, timed: dict[str, list[float]]) -> None:
        timed["update 2 update"] = [12.0, 8.0]  # a third of the time is not needed
        found = MEASURES["lost_to_loop"](bench)
        assert (found.value, found.low, found.high) == pytest.approx((1 / 3, 1 - 1 / 1.35, 1 - 1 / 1.65))

    def test_growth_with_agents(self, bench: Bench, timed: dict[str, list[float]]) -> None:
        stages = "acting adam compile optimizers precision prefetch update"
        timed |= {f"cycle 2 {stages}": [20.0, 10.0], f"cycle 4 {stages}": [45.0, 15.0]}
        found = MEASURES["growth"](bench)
        assert found.value == pytest.approx(3 / 2)
        assert (found.low, found.high) == pytest.approx((2.7 / 2.2, 3.3 / 1.8))  # the worst and the best that may be

    def test_hours(self, bench: Bench, timed: dict[str, list[float]]) -> None:
        timed["cycle 2 acting adam compile optimizers precision prefetch update"] = [20.0, 6.0]
        found = MEASURES["hours_2"](bench)
        assert found.value == pytest.approx(0.1001)  # 60,060 steps of 6 ms are 360.36 s
        assert found.note.startswith("50 updates/s before and 167 updates/s after;")

    @pytest.mark.parametrize(("low", "expected"), [([20.0, 10.0], 1.0), ([20.0, 19.0], 0.0)])
    def test_only_beyond_doubt_does_something_help_a_cpu(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, low: list[float], expected: float
    ) -> None:
        monkeypatch.setattr(leader_follower, "compare", lambda preset, settings, **how: rows(low))
        assert MEASURES["on_cpu"](bench).value == expected

    def test_rows_learned_per_second(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[list[int]] = []

        def compare(preset: str, settings: Mapping[str, Mapping[str, Any]], **how: Any) -> list[dict[str, Any]]:
            asked.append([setting["batch"] for setting in settings.values()])
            return [row | {"setting": name} for name, row in zip(settings, rows([10.0, 12.0, 40.0]), strict=True)]

        monkeypatch.setattr(leader_follower, "compare", compare)
        found = MEASURES["batch"](bench)
        assert asked == [[8, 16, 32]]
        assert found.value == pytest.approx(2 * 10 / 12)  # twice the rows in 12 ms; four times in 40 ms are no gain
        assert found.note.startswith("16 rows: 0.83 times the updates per second; 32 rows: 0.25")

    def test_low_precision_tells_both(self, bench: Bench, timed: dict[str, list[float]]) -> None:
        timed["update 2 precision"] = [12.0, 10.0]
        found = MEASURES["precision"](bench)
        assert found.value == pytest.approx(1.2)
        assert found.note == "in bf16: 12 ms before, 10 ms after; in fp16 itself: 1.20x"


class TestBench:
    def test_settings_lie_over_the_technique_over_the_plain_reference(self) -> None:
        layer = Bench(3, hidden=8, device="cpu").layer({"update": "merged", "precision": LOW, "hidden": 64}, agents=4)
        assert (layer["update"], layer["acting"], layer["followers"], layer["batch"]) == ("merged", "loop", 3, 128)
        assert (layer["precision"], layer["hidden"]) == ("bf16", 8)

    def test_what_several_need_is_measured_once(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[Any] = []

        def compare(preset: str, settings: Mapping[str, Any], **how: Any) -> list[dict[str, Any]]:
            made.append(settings)
            return rows([2.0, 1.0])

        monkeypatch.setattr(leader_follower, "compare", compare)
        for name in ("compile", "lost_to_eager", "compile", "stage_1", "cached"):
            MEASURES[name](bench)
        assert len(made) == 3

    def test_a_toggle_that_fell_back_is_no_number(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            leader_follower, "compare", lambda preset, settings, **how: rows([1, 1], compile="no compiler")
        )
        with pytest.raises(NotTestable, match="compile cannot be used: no compiler"):
            MEASURES["compile"](bench)
        assert leader_follower.told(bench, MEASURES["compile"]) == "none, compile cannot be used: no compiler"


class TestCounted:
    @pytest.mark.parametrize(("agents", "made", "kept"), [(2, 8, 4), (4, 32, 8)])  # 2 N^2 and 2 N
    def test_evaluations_of_actors(self, bench: Bench, agents: int, made: int, kept: int) -> None:
        found = duplicates(bench, agents)
        assert found.value == 1 - 1 / agents
        assert found.note.startswith(f"{made} evaluations of actors in an update, {kept} ")

    def test_a_loop_that_repeats_nothing_wastes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert duplicates(Bench(3, **TINY, update="cached"), 2).value == 0


class TestShares:
    def test_of_a_plain_loop(self, bench: Bench) -> None:
        names = [name for name in MEASURES if name.endswith("_share") and name != "copy_share"]
        shares = {name: MEASURES[name](bench).value for name in names}
        assert len(shares) == 5
        assert all(part > 0 for part in shares.values())
        assert sum(shares.values()) < 1

    def test_of_several_stages_is_their_sum(self, bench: Bench) -> None:
        bench.once("shares", lambda: {"forward": 0.25, "target": 0.125, "backward": 0.5})
        assert share(bench, ("forward", "target")).value == 0.375


def test_every_measure_gives_a_number_or_says_why_not(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_follower, "compare", valid)
    found = answers(bench, {**MEASURES, **gpu.MEASURES})
    refused = {name: reason for name, reason in found.items() if isinstance(reason, str)}
    assert set(refused) == {*gpu.MEASURES, "copy_share"}
    assert all(reason.startswith("needs a") for reason in refused.values())


def valid(preset: str, settings: Mapping[str, Mapping[str, Any]], **how: Any) -> list[dict[str, Any]]:
    """Time nothing, but see to it that every setting is one."""
    assert all(configure(preset, setting).toggles for setting in settings.values())
    return [row | {"setting": name} for name, row in zip(settings, rows([2.0] * len(settings)), strict=True)]


def answers(bench: Bench, asked: Mapping[str, Measure]) -> dict[str, Measured | str]:
    found: dict[str, Measured | str] = {}
    for name, measure in asked.items():
        try:
            found[name] = made = measure(bench)
        except NotTestable as reason:
            found[name] = str(reason)
        else:
            assert math.isfinite(made.value), name
            assert (made.low is None) == (made.high is None), name
            assert made.low is None or made.low <= made.value <= made.high, name
    return found
