"""Rungs agree in float64, actors are evaluated as often as theory has it, and runs held together learn alike."""

from typing import Any

import pytest
import torch

from tests.support.fixtures_config import TINY
from uavlab.core.errors import ConfigError
from uavlab_lab.lessons import update_ladder

PRESET = "leader_follower"
SMALL = {**TINY, "share": False}
WAYS = {name: {"update": name} for name in ("loop", "cached", "merged", "vmap", "batched")}


class TestDifferences:
    def test_all_rungs_agree_to_rounding(self) -> None:
        rows = update_ladder.differences(PRESET, WAYS, SMALL, {"followers": 2}, updates=3)
        assert [row["setting"] for row in rows] == list(WAYS)
        assert rows[0]["difference"] == 0
        assert max(row["difference"] for row in rows) < 1e-12

    def test_another_learner_is_told_apart(self) -> None:
        settings = {"one": {}, "other": {"tau": 0.02}}
        assert update_ladder.differences(PRESET, settings, SMALL, updates=3)[1]["difference"] > 1e-6

    def test_float32_would_differ_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        streams = update_ladder.build.streams
        monkeypatch.setattr(update_ladder.build, "streams", lambda run, device, dtype: streams(run, device))
        rows = update_ladder.differences(PRESET, {name: WAYS[name] for name in ("loop", "batched")}, SMALL, updates=3)
        assert rows[1]["difference"] > 1e-10

    @pytest.mark.skipif(torch.cuda.is_available(), reason="a graph can be captured here")
    @pytest.mark.filterwarnings("ignore::uavlab.core.errors.FallbackWarning")
    def test_what_fell_back_is_named(self) -> None:
        rows = update_ladder.differences(PRESET, {"eager": {}, "graph": {"graph": "update"}}, SMALL, updates=2)
        assert rows[0]["fell_back"] == {}
        assert "needs a CUDA device" in rows[1]["fell_back"]["graph"]
        assert rows[1]["difference"] == 0


class TestEvaluations:
    @pytest.mark.parametrize("agents", [2, 3])
    def test_the_loop_makes_them_for_every_agent_again(self, agents: int) -> None:
        rows = update_ladder.count_evaluations(PRESET, WAYS, SMALL, {"followers": agents - 1})
        counts = {row["setting"]: row["evaluations"] for row in rows}
        assert counts == {"loop": 2 * agents**2, **dict.fromkeys(["cached", "merged", "vmap", "batched"], 2 * agents)}
        assert {row["agents"] for row in rows} == {agents}

    def test_stacked_operators_do_not_grow_with_the_team(self) -> None:
        few, many = (update_ladder.count_evaluations(PRESET, WAYS, SMALL, {"followers": n}) for n in (1, 3))
        grown = {a["setting"]: b["operators"] - a["operators"] for a, b in zip(few, many, strict=True)}
        assert grown["vmap"] == grown["batched"] == 0
        assert min(grown[name] for name in ("loop", "cached", "merged")) > 0


class TestTogether:
    def test_runs_held_together_learn_what_they_learn_alone(self) -> None:
        assert update_ladder.compare_with_single_runs(PRESET, TINY, runs=2, updates=3) < 1e-5

    def test_another_seed_would_be_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        configure = update_ladder.configure

        def shifted(preset: str, *layers: Any) -> Any:
            later = {"seed": 7} if layers[-1].get("runs") == 1 else {}
            return configure(preset, *layers, later)

        monkeypatch.setattr(update_ladder, "configure", shifted)
        assert update_ladder.compare_with_single_runs(PRESET, TINY, runs=2, updates=3) > 1e-2


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'hiden'"):
        update_ladder.differences(PRESET, {"a": {"hiden": 8}})
