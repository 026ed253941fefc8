"""Counts follow the published formula, timed numbers come from what was timed, and each part is judged by itself."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.support.fixtures_mapping import SMALL, start_missions
from uavlab.envs.mapping.numpy_reference import HostMapping
from uavlab_lab.claims import mapping as maps
from uavlab_lab.claims.ledger import select
from uavlab_lab.claims.measures import Bench, Estimate, NotTestable
from uavlab_lab.claims.report import measure_claim, verdict
from uavlab_lab.suites.mapping import PARTS

TINY: dict[str, Any] = {"device": "cpu", "cells": 64, "cell": 50 / 64, "width": 8, "hidden": 8}
HOST = {"maps": "host", "device": "cpu"}


@pytest.fixture
def bench() -> Bench:
    return Bench(3, **TINY)


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
            ("full-steps", 1500, "ill-defined"),
            ("budget-10", 0.5333, "ill-defined"),
            ("budget-8", 0.6, "partly"),
            ("fast-batch", 0.5, "holds"),
            ("map-operations", 1_881_600, "refuted by arithmetic"),
            ("balanced-missions", 2769.2, "ill-defined"),
            ("fast-missions", 888.9, "ill-defined"),
        ],
    )
    def test_counted_claims(self, claim: str, value: float, expected: str) -> None:
        [row] = select([claim])
        assert measure_claim(row, None).value == pytest.approx(value, rel=1e-3)
        assert verdict(row, None) == expected

    def test_the_note_of_a_count_names_its_factors(self, bench: Bench) -> None:
        assert maps.missions(bench, 1000, 48, 3, 12).note == "1,000 x 48 x 3 moves, 52 in a mission"


class TestTimed:
    def test_moves_in_a_second(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(maps, "duration", lambda *_, **__: Estimate(2.0))
        assert maps.moves_per_second(bench).value == pytest.approx(3 * 14 * 4 / 2)

    def test_preparing_inputs_is_all_that_makes_them(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        shares = {"beliefs from log odds": 0.25, "resizing": 0.15, "the sensor": 0.3, "all else": 0.3}
        rows = [{"name": name, "share": share} for name, share in shares.items()]
        monkeypatch.setattr(maps, "profile_host", lambda *_: {"parts": rows, "step_ms": 50.0})
        inputs = maps.preparation(bench, worlds=11)
        assert inputs.value == pytest.approx(0.4 * 0.05 * 11 * 15)
        assert inputs.note == "40% of 50 ms, 165 times; an upper bound, for rewards need some of it"
        assert inputs.rounds == 3
        monkeypatch.setattr(maps, "duration", lambda *_, **__: Estimate(33.0, rounds=4))
        share = maps.preparation_share(bench, "mapping_full", HOST | {"worlds": 11})
        assert share == Estimate(pytest.approx(0.1), note="3.3 of 33 s", rounds=4)

    def test_parts_are_those_of_the_profile(self) -> None:
        assert set(maps.PREPARATION) < set(PARTS)
        assert set(PARTS) - set(maps.PREPARATION) == {"the sensor", "adding measurements up"}


class TestHere:
    """Small tasks, end to end: whatever the machine, numbers are there."""

    def test_steps_of_whole_runs(self, bench: Bench) -> None:
        assert maps.preparation_share(bench, maps.FULL, {"worlds": 1, "measurements": 3, **HOST}).value > 0
        short = maps.cached_constants(Bench(7, **TINY))
        assert short.value > 0
        assert short.rounds == 7  # a short call has the rounds of an interval

    @pytest.mark.parametrize("cores", [1, 4])
    def test_a_pool_needs_a_core_for_each_process(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, cores: int
    ) -> None:
        monkeypatch.setattr(maps, "WORKERS", 2)
        monkeypatch.setattr(maps, "usable_cores", lambda: cores)
        monkeypatch.setattr(maps, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(2))
        if cores > 1:
            assert maps.observation_pool(bench).value > 0
        else:
            with pytest.raises(NotTestable, match=r"needs 2 cores; with 1 it is \d.*x, .* ms before, .* ms after"):
                maps.observation_pool(bench)

    def test_without_a_gpu_utilisation_has_a_reason(self, bench: Bench) -> None:
        with pytest.raises(NotTestable, match="needs a GPU: device utilisation"):
            measure_claim(select(["map-utilisation"])[0], bench)

    def test_cached_constants_give_equal_maps(self) -> None:
        env = HostMapping(cells=SMALL.cells, cell=SMALL.cell, uavs=SMALL.uavs)
        cached = maps.CachedConstants(cells=SMALL.cells, cell=SMALL.cell, uavs=SMALL.uavs)
        state, _ = start_missions(env, 1)
        assert torch.equal(env.observe(state).maps, cached.observe(state).maps)
