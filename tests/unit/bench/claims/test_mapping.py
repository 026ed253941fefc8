"""Counts follow the published formula, timed numbers come from what was timed, and each part is judged by itself."""

from typing import Any

import pytest
import torch

from tests.support.fixtures_mapping import SMALL, drawn
from uavlab.bench.claims import mapping as maps
from uavlab.bench.claims.leader_follower import Bench, Measured, NotTestable
from uavlab.bench.claims.ledger import select, verdict
from uavlab.envs.mapping.numpy_reference import HostMapping

TINY: dict[str, Any] = {"device": "cpu", "cells": 64, "cell": 50 / 64, "width": 8, "hidden": 8}


@pytest.fixture
def bench() -> Bench:
    return Bench(3, **TINY)


@pytest.fixture
def cycles(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Answer for training steps from a table: seconds by preset."""
    answers: dict[str, list[float]] = {}
    monkeypatch.setattr(maps, "cycle", lambda bench, preset, setting: answers[preset])
    return answers


class TestCounts:
    @pytest.mark.parametrize(
        ("settings", "missions"),
        [((1500, 64, 3, 14), 4800), ((1000, 48, 3, 12), 2769), ((800, 48, 2, 10), 1745), ((500, 32, 2, 8), 889)],
    )
    def test_missions_by_the_published_formula(self, settings: tuple[int, ...], missions: int) -> None:
        assert round(maps.missions(*settings)) == missions

    @pytest.mark.parametrize("budget", [6, 8, 10, 14])
    def test_team_steps_do_not_depend_on_the_budget(self, budget: int) -> None:
        assert maps.missions(1500, 64, 3, budget) * (budget + 1) == pytest.approx(72_000)

    def test_another_formula_would_be_seen(self) -> None:
        assert round(1500 * 64 * 3 / (10 * 4)) != round(maps.missions(1500, 64, 3, 10))  # the budget without the first

    @pytest.mark.parametrize(
        ("claim", "value", "said"),
        [
            ("full-steps", 1500, "does not hold"),
            ("budget-10", 1, "does not hold"),
            ("budget-8", 0.6, "partly"),
            ("map-operations", 288_000, "ill-defined"),
            ("balanced-missions", 2769.2, "does not hold"),
            ("fast-missions", 888.9, "does not hold"),
        ],
    )
    def test_counted_claims(self, bench: Bench, claim: str, value: float, said: str) -> None:
        [row] = select([claim])
        found = maps.MEASURES[row.measure](bench)
        assert found.value == pytest.approx(value, rel=1e-3)
        assert verdict(row, vars(found)) == said


class TestTimed:
    def test_hours_are_those_of_all_training_steps(self, bench: Bench, cycles: dict[str, list[float]]) -> None:
        cycles |= {"mapping_fast": [7.2, 7.2, 7.0], "mapping_full": [2.4]}
        assert maps.MEASURES["fast_hours"](bench).value == pytest.approx(1.0)  # 500 x 7.2 s
        assert maps.MEASURES["full_hours"](bench).value == pytest.approx(1.0)  # 1500 x 2.4 s
        assert maps.MEASURES["fast_step"](bench) == Measured(7.2, note="64 moves; 7 to 7.2 s in 3 repetitions")

    def test_moves_in_a_second(self, bench: Bench, cycles: dict[str, list[float]]) -> None:
        cycles["mapping_full"] = [2.0]
        assert maps.MEASURES["map_rate"](bench).value == pytest.approx(3 * 14 * 4 / 2)

    def test_the_share_of_making_inputs(
        self, bench: Bench, cycles: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cycles["mapping_full"] = [16.5]
        monkeypatch.setattr(bench, "once", lambda key, make: 0.01)  # seconds of a team's inputs
        assert maps.MEASURES["map_preparing"](bench).value == pytest.approx(1.65)
        assert maps.MEASURES["map_prepared_share"](bench).value == pytest.approx(0.1)

    def test_one_call_over_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(maps, "interleaved", lambda *_, **__: {"a": [0.3, 0.3, 0.3], "b": [0.1, 0.1, 0.1]})
        assert maps.over({}, "a", "b", 3) == Measured(3.0, 3.0, 3.0, "300 ms before, 100 ms after")

    def test_parts_come_from_one_profile(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = [
            {"name": "beliefs", "share": 0.5},
            {"name": "resizing", "share": 0.2},
            {"name": "all else", "share": 0.9},
        ]
        monkeypatch.setattr(maps, "profile_host", lambda *_: {"parts": rows, "profiled_over_plain": 1.25})
        found = maps.MEASURES["resizing_share"](bench)
        assert found.value == 0.2
        assert found.note == "most goes to beliefs, 50%; by a profile that makes a step 1.25 times as long"


class TestHere:
    """Small tasks, end to end: whatever the machine, numbers are there."""

    def test_steps_of_whole_runs(self, bench: Bench) -> None:
        assert len(maps.cycle(bench, maps.FULL, maps.HOST)) == 3
        assert maps.MEASURES["smaller_networks"](bench).value > 0
        assert maps.MEASURES["map_constants"](bench).value > 0

    def test_a_pool_steps_four_missions(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(maps, "WORKERS", 1)
        assert maps.pool(bench).value > 0

    def test_without_a_gpu_utilisation_has_a_reason(self, bench: Bench) -> None:
        with pytest.raises(NotTestable, match="needs a GPU: device utilisation"):
            maps.busy(bench)

    def test_kept_constants_show_the_same(self) -> None:
        env = HostMapping(cells=SMALL.cells, cell=SMALL.cell, uavs=SMALL.uavs)
        kept = maps.KeptConstants(cells=SMALL.cells, cell=SMALL.cell, uavs=SMALL.uavs)
        state, _ = drawn(env, 1)
        assert torch.equal(env.observe(state).maps, kept.observe(state).maps)


class TestResizing:
    def test_bilinear_is_not_by_area(self, bench: Bench) -> None:
        found = maps.apart(SMALL)
        assert (found["area"] - found["bilinear"]).abs().max() > 0.05
        assert (found["area"] - found["opencv"]).abs().max() < 1e-5
        assert maps.equal_resizing(bench).value == 0

    def test_equal_resizing_would_be_said_to_be_equal(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        same = torch.rand(5, 5)
        monkeypatch.setattr(maps, "apart", lambda env: {"area": same, "bilinear": same.clone()})
        assert maps.equal_resizing(bench).value == 1
