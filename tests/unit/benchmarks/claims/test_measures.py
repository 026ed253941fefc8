"""Numbers are what one computes by hand from timed rows and counted work; what cannot be measured has a reason."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from uavlab.core.errors import FallbackWarning
from uavlab.experiment.config import configure
from uavlab.runtime.toggles import Toggles, resolve
from uavlab_lab.claims import compiled, measures
from uavlab_lab.claims.ledger import Claim, ledger
from uavlab_lab.claims.measures import (
    CHOSEN,
    LOOP,
    LOW,
    Bench,
    Estimate,
    NotTestable,
    Setting,
    acting_rate,
    batch_size,
    constant,
    duplicates,
    duration,
    gain,
    growth,
    helps,
    lost,
    share,
    speedup,
    time_growth,
)
from uavlab_lab.claims.report import measure_claim

TINY: dict[str, Any] = {"hidden": 8, "batch": 8, "learning_starts": 16, "capacity": 128, "device": "cpu"}
STAGE_1 = {"stage": 1}
COMPILED = {"update": "batched", "compile": "default"}
STAGE_3, BEST = {"stage": 3}, {"stage": CHOSEN}
ALL_STAGES = "acting adam compile optimizers precision prefetch update"


def rows(ms: list[float], spread: float = 0.1, **fell_back: str) -> list[dict[str, Any]]:
    """Return rows of ``compare`` for these times, with an interval of 10 % to each side."""
    overs = [ms[0] / each for each in ms]
    return [
        {
            "setting": str(number),
            "ms": each,
            "over_first": over,
            "low": over * (1 - spread),
            "high": over * (1 + spread),
            "first_call_s": 0.5,
            "rounds": 7,
            "fell_back": fell_back,
        }
        for number, (each, over) in enumerate(zip(ms, overs, strict=True))
    ]


@pytest.fixture
def bench() -> Bench:
    return Bench(3, **TINY)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Answer ``compare`` from a table: times (ms) by the settings that the second one changes."""
    answers: dict[str, list[float]] = {}

    def compare(preset: str, settings: Mapping[str, Mapping[str, Any]], **how: Any) -> list[dict[str, Any]]:
        slow, fast = settings.values()
        changed = {name for name in fast if fast[name] != slow[name]}
        return rows(answers[f"{how['call']} {fast['followers'] + 1} {' '.join(sorted(changed))}"])

    monkeypatch.setattr(measures, "compare", compare)
    return answers


class TestArithmetic:
    def test_a_speed_up_with_its_interval(self, bench: Bench, times: dict[str, list[float]]) -> None:
        times["update 2 update"] = [12.0, 8.0]
        interval = pytest.approx(1.35), pytest.approx(1.65)
        assert gain(bench, "update", LOOP, STAGE_1) == Estimate(1.5, *interval, "12 ms before, 8 ms after", 7)

    def test_a_speed_up_as_a_share_of_time_lost(self, bench: Bench, times: dict[str, list[float]]) -> None:
        times["update 2 update"] = [12.0, 8.0]  # a third of the time is not needed
        result = lost(bench, call="update", after=STAGE_1)
        assert (result.value, result.low, result.high) == pytest.approx((1 / 3, 1 - 1 / 1.35, 1 - 1 / 1.65))
        assert result.rounds == 7

    def test_growth_with_agents(self, bench: Bench, times: dict[str, list[float]]) -> None:
        times |= {f"cycle 2 {ALL_STAGES}": [20.0, 10.0], f"cycle 4 {ALL_STAGES}": [45.0, 15.0]}
        result = growth(bench, STAGE_3)
        assert result.value == pytest.approx(3 / 2)
        assert (result.low, result.high) == pytest.approx((2.7 / 2.2, 3.3 / 1.8))  # the worst and the best that may be

    def test_growth_of_time(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        seconds = {2: [0.02] * 9, 8: [0.01, 0.05, 0.09]}
        monkeypatch.setattr(measures, "time_setting", lambda bench, call, setting, agents: seconds[agents])
        note = "20 ms at 2 agents, 50 ms at 8"
        assert time_growth(bench, {"update": "batched"}) == Estimate(2.5, note=note, rounds=3)

    def test_time_in_any_unit(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(measures, "time_setting", lambda *_: [0.006, 0.002, 0.009])
        hours = duration(bench, setting=STAGE_3, count=60_060, unit_s=3600)
        assert hours == Estimate(pytest.approx(0.1001), note="60,060 times 6 ms", rounds=3)  # 360.36 s
        assert duration(bench) == Estimate(pytest.approx(0.006), rounds=3)
        assert duration(bench, unit_s=0.001).value == pytest.approx(6)

    @pytest.mark.parametrize(("after_ms", "helped"), [(10.0, 1.0), (19.0, 0.0)])
    def test_a_technique_helps_only_if_the_whole_interval_is_faster(
        self, bench: Bench, times: dict[str, list[float]], after_ms: float, helped: float
    ) -> None:
        """A claim about a CPU is judged by the document's technique; the toggles of a CPU stand beside it."""
        times |= {"cycle 2 update": [20.0, after_ms], "cycle 2 compile update": [20.0, 5.0]}
        beside = {"compiled": COMPILED}
        result = helps(bench, call="cycle", after=STAGE_1, beside=beside)
        numbers = f"{20 / after_ms:.2f}x on {bench.name}, 20 ms before, {after_ms:.3g} ms after; compiled: 4.00x"
        assert result == Estimate(helped, note=numbers, rounds=7)
        [claim] = [each for each in ledger() if each.claim == "cpu-not-applicable"]
        assert (claim.measure, claim.call["after"]) == ("helps", STAGE_1)

    def test_one_call_over_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seconds = {"slow": [0.3, 0.3, 0.3], "fast": [0.1, 0.1, 0.1]}
        monkeypatch.setattr(measures, "time_in_turn", lambda *_, **__: seconds)
        result = speedup(print, print, 9, torch.device("cpu"))
        assert result == Estimate(3.0, 3.0, 3.0, "300 ms before, 100 ms after", 3)  # the limit of time ended it

    def test_rows_learned_per_second(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        batches: list[list[int]] = []

        def compare(preset: str, settings: Mapping[str, Mapping[str, Any]], **how: Any) -> list[dict[str, Any]]:
            batches.append([setting["batch"] for setting in settings.values()])
            return [row | {"setting": name} for name, row in zip(settings, rows([10.0, 12.0, 40.0]), strict=True)]

        monkeypatch.setattr(measures, "compare", compare)
        result = batch_size(bench, STAGE_1)
        assert batches == [[8, 16, 32]]
        assert result.value == pytest.approx(2 * 10 / 12)  # twice the rows in 12 ms; four times in 40 ms are no gain
        assert result.rounds == 7
        assert result.note.startswith("16 rows: 0.83 times the updates per second; 32 rows: 0.25")

    def test_what_is_measured_beside_is_in_the_note(self, bench: Bench, times: dict[str, list[float]]) -> None:
        times |= {"update 2 precision": [12.0, 10.0], "update 2 compile": [12.0, 4.0]}
        low, beside = (
            {"stage": 1, "precision": LOW},
            {"in fp16 itself": STAGE_1 | {"precision": "fp16"}, "more": STAGE_1 | {"compile": "default"}},
        )
        result = gain(bench, "update", STAGE_1, low, beside=beside)
        assert result.value == pytest.approx(1.2)
        assert result.note == "12 ms before, 10 ms after; in fp16 itself: 1.20x; more: 3.00x"

    def test_a_long_first_call_is_in_the_note(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = [row | {"first_call_s": 61.4} for row in rows([12.0, 10.0])]
        monkeypatch.setattr(measures, "compare", lambda preset, settings, **how: slow)
        assert gain(bench, "update").note == "12 ms before, 10 ms after; the first call takes 61 s"

    def test_a_constant_is_a_number_or_a_reason(self, bench: Bench) -> None:
        assert constant(bench, "6 x 7", 42) == Estimate(42, note="6 x 7")
        with pytest.raises(NotTestable, match="needs luck"):
            constant(bench, "needs luck")


class TestBench:
    def test_settings_lie_over_the_technique_over_the_plain_reference(self) -> None:
        layer = Bench(3, hidden=8, device="cpu").layer({"update": "merged", "precision": LOW, "hidden": 64}, agents=4)
        assert (layer["update"], layer["acting"], layer["followers"], layer["batch"]) == ("merged", "loop", 3, 128)
        assert (layer["precision"], layer["hidden"]) == ("bf16", 8)

    def test_a_setting_may_begin_with_a_stage(self, bench: Bench) -> None:
        layer = bench.layer({"stage": 2, "prefetch": "off"})
        assert (layer["update"], layer["precision"], layer["prefetch"]) == ("merged", "bf16", "off")
        assert "stage" not in layer

    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    @pytest.mark.parametrize("stage", [0, 1, 2, 3, CHOSEN])
    def test_every_stage_can_be_used(self, bench: Bench, device: str, stage: int | str) -> None:
        assert unusable(bench, {"stage": stage}, device) == {}

    def test_a_stage_that_falls_back_is_caught(self, bench: Bench) -> None:
        assert set(unusable(bench, {"stage": 3, "precision": "fp16"}, "cuda")) == {"compile"}
        assert set(unusable(bench, {"stage": 3, "update": "merged"}, "cuda")) == {"compile"}

    @pytest.mark.parametrize(("setting", "placement"), [(LOOP, "host"), (STAGE_3, "host"), (BEST, "device")])
    def test_on_a_gpu_replay_is_on_the_host_as_claimed(self, bench: Bench, setting: Setting, placement: str) -> None:
        assert bench.layer(setting)["placement"] == "device"
        bench.device = torch.device("cuda")
        assert bench.layer(setting)["placement"] == placement
        assert bench.layer({"stage": 1, "placement": "device"})["placement"] == "device"

    def test_toggles_may_be_those_of_the_device(self, bench: Bench) -> None:
        layer = bench.layer({"stage": CHOSEN})
        assert (layer["update"], layer["compile"], layer["graph"]) == ("batched", "default", "off")

    def test_settings_of_another_task_lie_over_those_that_it_has(self) -> None:
        layer = Bench(3, **TINY, cells=64).layer({"hidden": 9}, preset="mapping_full")
        assert layer == {"hidden": 9, "device": "cpu", "cells": 64}

    def test_what_several_need_is_measured_once(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        comparisons: list[Any] = []

        def compare(preset: str, settings: Mapping[str, Any], **how: Any) -> list[dict[str, Any]]:
            comparisons.append(settings)
            return rows([2.0, 1.0])

        monkeypatch.setattr(measures, "compare", compare)
        for function in (gain, lost, gain):
            function(bench, call="update", before=STAGE_1, after=COMPILED)
        gain(bench, "cycle", LOOP, STAGE_1)
        gain(bench, "update", LOOP, {"update": "cached"})
        assert len(comparisons) == 3

    def test_one_setting_is_timed_where_its_toggles_are_in_effect(self) -> None:
        bench = Bench(3, **TINY)
        seconds = measures.time_setting(bench, "update", {"update": "batched"})
        assert len(seconds) == 3
        assert 0 < min(seconds) <= max(seconds) < 60
        reason = "update=merged is not written"
        with pytest.warns(FallbackWarning), pytest.raises(NotTestable, match=f"compile cannot be used: {reason}"):
            measures.time_setting(bench, "update", {"stage": 1, "compile": "default"})

    def test_a_toggle_that_fell_back_is_no_number(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        fallen = rows([1, 1], compile="no compiler")
        monkeypatch.setattr(measures, "compare", lambda preset, settings, **how: fallen)
        with pytest.raises(NotTestable, match="compile cannot be used: no compiler"):
            gain(bench, "update", STAGE_1, COMPILED)

        def compared(preset: str, settings: Mapping[str, Mapping[str, Any]], **how: Any) -> list[dict[str, Any]]:
            return fallen if settings["1"]["compile"] != "off" else rows([2, 1])

        monkeypatch.setattr(measures, "compare", compared)
        note = gain(bench, "update", LOOP, STAGE_1, beside={"compiled": COMPILED}).note
        assert note == "2 ms before, 1 ms after; compiled: none, compile cannot be used: no compiler"


class TestCounted:
    @pytest.mark.parametrize(("agents", "loop", "cached"), [(2, 8, 4), (4, 32, 8)])  # 2 N^2 and 2 N
    def test_evaluations_of_actors(self, bench: Bench, agents: int, loop: int, cached: int) -> None:
        result = duplicates(bench, agents)
        assert result.value == 1 - 1 / agents
        assert result.note.startswith(f"{loop} evaluations of actors in an update, {cached} ")

    def test_a_loop_that_repeats_nothing_wastes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert duplicates(Bench(3, **TINY, update="cached"), 2).value == 0


class TestShares:
    def test_of_a_plain_loop(self, bench: Bench) -> None:
        stages = (["environment"], ["draw"], ["forward", "target"], ["backward"], ["optimizer"])
        shares = [share(bench, each).value for each in stages]
        assert all(part > 0 for part in shares)
        assert sum(shares) < 1

    def test_of_several_stages_is_their_sum(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(measures, "loop_shares", lambda bench: {"forward": 0.25, "target": 0.125, "backward": 0.5})
        assert share(bench, ["forward", "target"]).value == 0.375


class TestActing:
    def test_acting_reaches_a_share_of_the_rate_of_products(self, bench: Bench) -> None:
        assert acting_rate(bench).value > 0


def test_every_claim_about_a_team_has_a_number_or_a_reason(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "compare", valid)
    monkeypatch.setattr(
        measures, "time_setting", lambda bench, call, setting, *_: [bool(bench.config(setting)) * 0.002]
    )
    monkeypatch.setattr(compiled, "compile_function", lambda function, *_: function)
    claims = [claim for claim in ledger() if claim.system == "leader_follower"]
    reasons = {claim.claim: reason for claim in claims if (reason := refusal(claim, bench))}
    gpu = {claim.claim for claim in claims if claim.measure in ("utilisation", "peak_memory")}
    reasoned = {"transfer-share", "transfer-loss", "download-share", "better-gpus-gain-more", "fine-tuning"}
    assert set(reasons) == gpu | reasoned
    openings = ("needs a GPU", "needs several GPUs", "nothing is copied", "the document names no technique")
    assert all(reason.startswith(openings) for reason in reasons.values())


def test_a_claim_about_a_cpu_is_measured_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []
    monkeypatch.setattr(measures, "time_setting", lambda bench, *_: devices.append(bench.device.type) or [1.0])
    bench = Bench(3, **TINY)
    bench.device = torch.device("cuda")
    for name in ("cpu-episode", "batch-512-update"):
        [claim] = [claim for claim in ledger() if claim.claim == name]
        measure_claim(claim, bench)
    assert devices == ["cpu", "cuda"]


def unusable(bench: Bench, setting: Setting, device: str) -> dict[str, str]:
    """Return the toggles of a setting that fall back on a device, with the reasons."""
    bench.device = torch.device(device)
    layer = bench.layer(setting)
    return resolve(Toggles(**{name: layer[name] for name in measures.PLAIN}), bench.device)[1]


def valid(preset: str, settings: Mapping[str, Mapping[str, Any]], **how: Any) -> list[dict[str, Any]]:
    """Time nothing, but check that every setting is one."""
    assert all(configure(preset, setting).toggles for setting in settings.values())
    return [row | {"setting": name} for name, row in zip(settings, rows([2.0] * len(settings)), strict=True)]


def refusal(claim: Claim, bench: Bench) -> str:
    try:
        result = measure_claim(claim, bench)
    except NotTestable as reason:
        return str(reason)
    assert math.isfinite(result.value), claim
    assert (result.low is None) == (result.high is None), claim
    assert result.low is None or result.low <= result.value <= result.high, claim
    return ""
