"""Counts follow the published formula, timed numbers come from what was timed, and each part is judged by itself."""

from typing import Any

import pytest
import torch

from tests.support.fixtures_mapping import SMALL, start_missions
from uavlab.benchmarks.claims import mapping as maps
from uavlab.benchmarks.claims.measures import Bench, Estimate, NotTestable
from uavlab.benchmarks.claims.report import measure_claim, select, verdict
from uavlab.envs.mapping.numpy_reference import HostMapping

TINY: dict[str, Any] = {"device": "cpu", "cells": 64, "cell": 50 / 64, "width": 8, "hidden": 8}
HOST = {"maps": "host", "device": "cpu"}
FAST = {"worlds": 2, **HOST}


@pytest.fixture
def bench() -> Bench:
    return Bench(3, **TINY)


@pytest.fixture
def cycles(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Answer for training steps from a table: seconds by preset."""
    answers: dict[str, list[float]] = {}
    monkeypatch.setattr(maps, "time_steps", lambda bench, preset, setting: answers[preset])
    return answers


class TestCounts:
    @pytest.mark.parametrize(
        ("settings", "missions"),
        [((1500, 64, 3, 14), 4800), ((1000, 48, 3, 12), 2769), ((800, 48, 2, 10), 1745), ((500, 32, 2, 8), 889)],
    )
    def test_missions_by_the_published_formula(self, settings: tuple[int, ...], missions: int) -> None:
        assert round(maps.count_missions(*settings)) == missions

    @pytest.mark.parametrize("budget", [6, 8, 10, 14])
    def test_team_steps_do_not_depend_on_the_budget(self, budget: int) -> None:
        assert maps.count_missions(1500, 64, 3, budget) * (budget + 1) == pytest.approx(72_000)

    def test_another_formula_would_be_seen(self) -> None:
        assert round(1500 * 64 * 3 / (10 * 4)) != round(
            maps.count_missions(1500, 64, 3, 10)
        )  # the budget without the first

    @pytest.mark.parametrize(
        ("claim", "value", "expected"),
        [
            ("full-steps", 1500, "does not hold"),
            ("budget-10", 1, "does not hold"),
            ("budget-8", 0.6, "partly"),
            ("map-operations", 288_000, "ill-defined"),
            ("balanced-missions", 2769.2, "does not hold"),
            ("fast-missions", 888.9, "does not hold"),
        ],
    )
    def test_counted_claims(self, bench: Bench, claim: str, value: float, expected: str) -> None:
        [row] = select([claim])
        result = measure_claim(row, bench)
        assert result.value == pytest.approx(value, rel=1e-3)
        assert verdict(row, vars(result)) == expected

    def test_the_note_of_a_count_names_its_factors(self, bench: Bench) -> None:
        assert maps.missions(bench, 1000, 48, 3, 12).note == "1,000 x 48 x 3 moves, 52 in a mission"


class TestTimed:
    def test_hours_are_those_of_all_training_steps(self, bench: Bench, cycles: dict[str, list[float]]) -> None:
        cycles |= {"mapping_fast": [7.2, 7.2, 7.0], "mapping_full": [2.4]}
        assert maps.training_hours(bench, "mapping_fast", FAST).value == pytest.approx(1.0)  # 500 x 7.2 s
        assert maps.training_hours(bench, "mapping_full", HOST).value == pytest.approx(1.0)  # 1500 x 2.4 s
        step = maps.training_step(bench, "mapping_fast", FAST)
        assert step == Estimate(7.2, note="64 moves; 7 to 7.2 s in 3 repetitions")

    def test_moves_in_a_second(self, bench: Bench, cycles: dict[str, list[float]]) -> None:
        cycles["mapping_full"] = [2.0]
        assert maps.moves_per_second(bench).value == pytest.approx(3 * 14 * 4 / 2)

    def test_the_share_of_making_inputs(
        self, bench: Bench, cycles: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cycles["mapping_full"] = [16.5]
        monkeypatch.setattr(maps, "time_in_turn", lambda calls, *_, **__: dict.fromkeys(calls, [0.01] * 3))
        assert maps.input_seconds(bench, worlds=11).value == pytest.approx(1.65)
        assert maps.input_share(bench, "mapping_full", HOST | {"worlds": 11}).value == pytest.approx(0.1)

    def test_one_call_over_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(maps, "time_in_turn", lambda *_, **__: {"slow": [0.3, 0.3, 0.3], "fast": [0.1, 0.1, 0.1]})
        assert maps.speedup(print, print, 3) == Estimate(3.0, 3.0, 3.0, "300 ms before, 100 ms after")

    def test_parts_come_from_one_profile(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = [
            {"name": "beliefs", "share": 0.5},
            {"name": "resizing", "share": 0.2},
            {"name": "all else", "share": 0.9},
        ]
        monkeypatch.setattr(maps, "profile_host", lambda *_: {"parts": rows, "profiled_over_plain": 1.25})
        result = maps.host_share(bench, "resizing")
        assert result.value == 0.2
        assert result.note == "most goes to beliefs, 50%; by a profile that makes a step 1.25 times as long"


class TestHere:
    """Small tasks, end to end: whatever the machine, numbers are there."""

    def test_steps_of_whole_runs(self, bench: Bench) -> None:
        assert len(maps.time_steps(bench, maps.FULL, HOST)) == 3
        [smaller] = select(["smaller-networks"])
        assert measure_claim(smaller, bench).value > 0
        assert maps.cached_constants(bench).value > 0

    def test_a_pool_steps_four_missions(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(maps, "WORKERS", 1)
        assert maps.process_pool(bench).value > 0

    def test_without_a_gpu_utilisation_has_a_reason(self, bench: Bench) -> None:
        with pytest.raises(NotTestable, match="needs a GPU: device utilisation"):
            measure_claim(select(["map-utilisation"])[0], bench)

    def test_cached_constants_give_equal_maps(self) -> None:
        env = HostMapping(cells=SMALL.cells, cell=SMALL.cell, uavs=SMALL.uavs)
        cached = maps.CachedConstants(cells=SMALL.cells, cell=SMALL.cell, uavs=SMALL.uavs)
        state, _ = start_missions(env, 1)
        assert torch.equal(env.observe(state).maps, cached.observe(state).maps)


class TestResizing:
    def test_bilinear_is_not_by_area(self, bench: Bench) -> None:
        resized = maps.compare_resizing(SMALL)
        assert (resized["area"] - resized["bilinear"]).abs().max() > 0.05
        assert (resized["area"] - resized["opencv"]).abs().max() < 1e-5
        assert maps.equal_resizing(bench).value == 0

    def test_equal_maps_are_equal(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        same = torch.rand(5, 5)
        monkeypatch.setattr(maps, "compare_resizing", lambda env: {"area": same, "bilinear": same.clone()})
        assert maps.equal_resizing(bench).value == 1
