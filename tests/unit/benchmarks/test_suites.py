"""Every suite runs with small arguments and returns rows with the keys that tables and notebooks read.

What decides something is computed by hand; a study that ended goes on.
"""

import io
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import SMALL_MISSION, TINY, sizes, tiny
from uavlab import api
from uavlab import benchmarks as registry
from uavlab.benchmarks import format_rows, suite, suites
from uavlab.core.errors import ConfigError, DivergedError, ResourceError
from uavlab.core.statistics import student
from uavlab.experiment.config import configure, gather
from uavlab.experiment.fit import Pace
from uavlab.experiment.names import PRESETS, Preset
from uavlab.experiment.run import Run
from uavlab_lab import study
from uavlab_lab.measure import compare
from uavlab_lab.scaling import Link, Load, longest_wait
from uavlab_lab.suites import curriculum, interval, learners, learning, mapping, ranks, replay, scale, update

SMALL = {"batch": 16, "hidden": 16, "share": False}
UNCOMPILED = {name: rung for name, rung in update.RUNGS.items() if "compile" not in rung}
STUDY = {
    "minutes": None,
    "updates": 4,
    "runs": 2,
    "evaluate_every": 2,
    "evaluate_episodes": 4,
    "hidden": 8,
    "worlds": 4,
}
TABLE = {  # each seed advances with its first score that is no better than one before
    "metric": "formation_strict",
    "margin": 0.0,
    "stages": [{"present": [1, 1], "passes": 1000, "patience": 1}, {"present": [2, 2]}],
}
RUNG = {"agents", "setting", "threads", "ms", "over_loop", "low", "high", "over_cached", "ops"}
TRAINED = {
    "preset",
    "environment",
    "learner",
    "seeds",
    "updates",
    "minutes",
    "update_ms",
    "failed",
    "score",
    "episodes",
}
TRAINED |= {"validation", "trained"}
WALK: dict[str, tuple[dict[str, Any], set[str]]] = {  # small arguments, and the keys of a row
    "curriculum": (
        {"presets": ["steps"], "settings": {**TINY, **STUDY, "capacity": 128}},
        TRAINED | {"way", "seed", "last_stage", "difference", "stages", "reached", "decisions", "curve"},
    ),
    "env": (
        {},
        {"env", "agents", "worlds", "setting", "threads", "agent_steps_per_s", "compiled_agent_steps_per_s"}
        | {"compiled_over_plain", "low", "high"},
    ),
    "guard": ({}, {"agents", "setting", "threads", "guarded_ms", "plain_ms", "guarded_over_plain", "low", "high"}),
    "interval": (
        {"worlds": (2,), "pace": 0.1, "hidden": 8, "batch": 8},
        {
            "worlds",
            "interval",
            "overlap",
            "step_ms",
            "share",
            "updates_per_s",
            "rows_per_s",
            "over_first",
            "low",
            "high",
        },
    ),
    "ladder": (
        {"threads": [1], "rungs": UNCOMPILED, "sizes": SMALL, "teams": [2]},
        RUNG | {"over_below", "first_call_s", "share", "best", "paid_back"},
    ),
    "learners": (
        {"pairs": ["spread:masac"], "settings": {**STUDY, "checkpoint_every": 2, "horizon": 6}},
        TRAINED | {"best", "last", "random", "plan", "plans", "share"},
    ),
    "learning": (
        {"sets": ("laptop",)},
        {"setting", "seeds", "first_update_s", "updates_per_s", "fell_back", "completion", "to_goal_s"}
        | {"to_goal_warm_s", "curve"},
    ),
    "maps": (
        {"missions": (1, 2), "compiled": False, "cells": 48},
        {"path", "setting", "missions", "threads", "team_step_ms", "over_host", "low", "high", "over_pool"}
        | {"over_original", "bytes_per_mission", "fell_back"},
    ),
    "missions": (
        {"training": {**SMALL_MISSION, "updates": 1}},
        {"setting", "moves", "passes", "s", "s_per_300", "over_plain", "low", "high", "over_original", "moves_per_s"}
        | {"fell_back"},
    ),
    "ranks": (
        {"ranks": (2, 4)},
        {"preset", "ranks", "threads", "cycles_per_s", "agent_steps_per_s", "efficiency", "gradient_bytes"}
        | {"all_reduce_us"},
    ),
    "replay": (
        {"capacity": 300},
        {"structure", "capacity", "batch", "row_bytes", "threads", "draw_ms", "gather_ms", "reweight_ms", "total_ms"}
        | {"over_binary", "over_cumsum"},
    ),
    "scale": (
        {"presets": ["leader_follower"], "devices": 3, **SMALL, "worlds": 2, "learning_starts": 16},
        {"preset", "cluster", "devices", "update_ms", "steps_ms", "gradient_mb", "reductions", "devices_ms", "gain"},
    ),
    "telemetry": (
        {"preset": "telemetry", "sizes": sizes("telemetry")},
        {
            "path",
            "loader",
            "model",
            "both",
            "of_model",
            "low",
            "high",
            "over_per_item",
            "bytes",
            "raw_bytes",
            "threads",
        },
    ),
    "update": ({"sizes": SMALL}, RUNG | {"original_ms"}),
}


class Group:
    """Ranks that take as many times as long as there are ranks; a real group is in the proofs."""

    def __init__(self, preset: str, size: int, device: str) -> None:
        self.size = size

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *error: object) -> None:
        """End nothing."""

    def read(self) -> dict[str, Any]:
        return {"agent_steps": 10, "gradient_bytes": 8, "all_reduce_us": 0.0}

    def block_seconds(self, cycles: int) -> float:
        return cycles * 0.01 * self.size


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register small presets, compile nothing, start no processes, and forget suites that a test registers."""
    own = {"followers": 2, "present": [1, 2], "curriculum": TABLE}
    for name, preset in (
        ("steps", Preset("leader_follower", "Small.", own)),
        ("leader_follower_quick", Preset("leader_follower", "Small.", TINY)),
        ("spread_quick", Preset("spread", "Small.", {})),
    ):
        monkeypatch.setitem(PRESETS, name, preset)
    monkeypatch.setattr("uavlab.runtime.wrappers.compile_function", lambda function, *_: function)
    monkeypatch.setattr(ranks, "group", Group)
    monkeypatch.setattr(ranks, "PRESETS", {"leader_follower_quick": 5})
    monkeypatch.setattr(registry, "REGISTRY", dict(suites()))
    monkeypatch.setattr(interval, "INTERVALS", (1, 20))
    monkeypatch.setattr(mapping, "ProcessPoolExecutor", Inline)


class Inline:
    """A pool that works in this process."""

    def __init__(self, *given: object, **named: object) -> None:
        self.map = map

    def __enter__(self) -> "Inline":
        return self

    def __exit__(self, *error: object) -> None:
        """End nothing."""


def test_every_suite_is_walked() -> None:
    assert list(suites()) == sorted(WALK)


@pytest.mark.parametrize("name", WALK)
def test_rows_have_the_keys_that_are_read(name: str, tmp_path: Path) -> None:
    options, keys = WALK[name]
    if "settings" in options:
        options = {**options, "folder": tmp_path, "say": lambda line: None}
    record = suites()[name].run(2, "cpu", **options)
    assert json.loads(json.dumps(record)) == record
    for row in record["rows"]:
        assert keys <= set(row)
        assert not row.get("failed")
    assert format_rows(record["rows"])


class TestRegistry:
    def test_a_file_in_a_folder_is_a_suite(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        copy = ModuleType("copied_suites")
        copy.__path__ = [str(tmp_path)]
        (tmp_path / "mine.py").write_text(
            "from uavlab.benchmarks import suite\n\n\n@suite('dropped', about='a file in the folder')\n"
            "def dropped(rounds, device):\n    return {'rows': [{'rounds': rounds, 'device': device}]}\n"
        )
        monkeypatch.setattr(registry, "entry_points", lambda group: [SimpleNamespace(value="copied_suites")])
        monkeypatch.setitem(sys.modules, "copied_suites", copy)
        assert suites()["dropped"].run(3, "cpu")["rows"] == [{"rounds": 3, "device": "cpu"}]
        monkeypatch.delitem(sys.modules, "copied_suites.mine")

    def test_a_name_belongs_to_one_function(self) -> None:
        for _ in range(2):  # a cell of a notebook may run twice

            @suite("mine", about="first")
            def mine(rounds: int, device: str) -> dict[str, Any]:
                return {"rows": []}

        with pytest.raises(ConfigError, match=r"suite 'mine' is already registered, by tests\.unit\.bench"):

            @suite("mine", about="second")
            def other(rounds: int, device: str) -> dict[str, Any]:
                return {"rows": []}

    def test_rows_as_text_show_intervals_and_leave_out_lists(self) -> None:
        figure = {"mean": 0.123456, "low": -1.0, "high": 2.5, "each": [0.1, 0.2]}
        rows = [
            {"setting": "a", "worlds": 1024, "best": figure, "curve": [1, 2], "seeds": []},
            {"setting": "b", "worlds": 64, "best": None, "curve": [], "seeds": 2},
        ]
        assert format_rows(rows).splitlines() == [
            "setting  worlds             best",
            "      a   1,024  0.123 [-1, 2.5]",
            "      b      64             None",
        ]


class TestByHand:
    def test_the_loop_grows_with_the_team_and_the_batch_does_not(self) -> None:
        rows = update.update_suite(2, "cpu", SMALL)["rows"]
        ops = {(row["setting"], row["agents"]): row["ops"] for row in rows}
        assert ops["batched", 2] == ops["batched", 4] == ops["batched", 8] > 0
        for agents, most in ((2, 1300), (4, 3000), (8, 7500)):
            assert ops["batched", agents] < ops["cached", agents] < ops["loop", agents] <= most

    def test_a_warm_up_pays_off_by_what_it_saves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A first call that takes 7 s more than that of the fastest uncompiled rung saves 2 s a call: earned by 4."""
        compiled = "batched, compiled, bf16"
        rungs = {**UNCOMPILED, compiled: update.RUNGS[compiled]}
        seconds = dict.fromkeys(UNCOMPILED, 6.0) | {"cached": 4.0, "batched, bf16": 3.0, compiled: 1.0}
        times = {name: [one] * 3 for name, one in seconds.items()}
        monkeypatch.setattr(torch, "compile", lambda fn, **options: fn)
        monkeypatch.setattr(compare, "time_in_turn", lambda *_, **__: times)
        prepare = update.prepare

        def slow_start(*given: Any) -> Any:
            calls = prepare(*given)
            return {name: replace(one, first_s=11.0 if name == compiled else 4.0) for name, one in calls.items()}

        monkeypatch.setattr(update, "prepare", slow_start)
        options = {"say": lambda line: None, "rungs": rungs, "sizes": SMALL, "teams": [2]}
        *_, slow, fastest, last = update.ladder_suite(3, "cpu", [1], **options)["rows"]
        assert (last["setting"], last["over_loop"], last["over_below"], last["over_cached"]) == (compiled, 6, 3, 4)
        assert (last["paid_back"], last["best"]) == (4, True)
        assert (fastest["paid_back"], fastest["best"], slow["paid_back"]) == (0, False, 0)

    @pytest.mark.parametrize("capacity", [1, 100, 128, 20_000])
    def test_structures_draw_the_same_rows_before_and_after_new_priorities(self, capacity: int) -> None:
        generator = torch.Generator().manual_seed(0)
        mass = torch.randint(1, 2**30, (1, capacity), generator=generator)
        env = replay.LeaderFollower(followers=1)
        world = replay.start_worlds(env, torch.zeros(1, env.spec.initial_noise))
        row = replay.tree_map(lambda leaf: leaf[None], replay.blank_row(env, world))
        plain = replay.prioritized.ByPriority(row, capacity, replay.SETTINGS)
        replay.sum_tree.fill(plain.tree, mass)
        plain.ring.size.fill_(capacity)
        structures = [replay.wide(plain), replay.binary(mass[0].clone()), replay.cumsum(mass[0].clone())]
        for _ in range(5):
            noise = torch.randint(2**62, (1, 64), generator=generator)
            first, *others = [structure.draw(noise) for structure in structures]
            assert all(torch.equal(first, other) for other in others)
            slot = torch.randperm(capacity, generator=generator)[None, :64]
            for structure in structures:
                structure.reweight(slot, 100 * torch.ones(slot.shape))

    def test_gradients_of_masac(self) -> None:
        load = scale.measure_load(tiny(interval=3, ratio=2), 1)
        # an actor of 7 observations, two layers of 8 units, and means and deviations of 2 actions; two critics of 2 x 7
        # observations and 4 actions; a temperature; all in 4 bytes, of both agents
        actor, critic = 8 * 8 + 9 * 8 + 9 * 4, 19 * 8 + 9 * 8 + 9
        assert load.gradient_bytes == 2 * 4 * (actor + 2 * critic + 1)
        assert (load.reductions, load.interval) == (3, 3)
        assert load.learner_s > 0 < load.collect_s

    def test_what_devices_would_do(self) -> None:
        load = Load(0.018, collect_s=0.002, gradient_bytes=8e6)
        row = scale.plan_row("x", load, "four", 4, Link(1e9, 1e-3))
        assert (row["update_ms"], row["steps_ms"], row["devices_ms"]) == (20.0, 2.0, 38.0)  # 18 ms around the ring
        assert (row["gain"], row["gradient_mb"], row["devices"]) == (round(4 * 20 / 38, 2), 8.0, 4)
        gains = {(one["devices"], one["interval"]): one["gain"] for one in interval.waiting(1.0)}
        # an update of 1 and pauses of mean 1: the slower of two waits 1.5 at interval 1, longest_wait(2, 20) / 20 at 20
        assert gains[2, 20] == pytest.approx((1 + 1.5) / (1 + longest_wait(2, 20) / 20), abs=1e-3)

    def test_a_rank_that_ends_is_named(self) -> None:
        ended = [
            SimpleNamespace(stdout=io.StringIO(""), wait=lambda _: 1, poll=lambda code=code: code) for code in (1, -9)
        ]
        processes = ranks.RankProcesses("interval_1", ended)  # type: ignore[arg-type]
        with pytest.raises(ResourceError, match="interval_1: rank 0 of 2 with 1, rank 1 of 2 with -9 ended before"):
            processes.read()

    def test_a_goal_is_reached_when_it_is_first_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Completion passes 0.95 at the second score, after 30 s, 20 of which came before the second update."""
        scores = [(500, 10.0, 0.4), (1000, 30.0, 0.96), (1500, 40.0, 0.9)]
        curve = [{"update": n, "seconds": s, "each": {"completion": [c]}} for n, s, c in scores]
        row = {"setting": "laptop", "first_update_s": 20.0, "curve": curve}
        monkeypatch.setattr(learning, "learning", lambda *_, **__: [dict(row)])
        (first, *_) = learning.learning_suite(3, "cpu", sets=("laptop",))["rows"]
        assert (first["to_goal_s"], first["to_goal_warm_s"], first["completion"]) == (30, 10, 0.96)
        (never, *_) = learning.learning_suite(3, "cpu", sets=("laptop",), goal=0.99)["rows"]
        assert (never["to_goal_s"], never["to_goal_warm_s"]) == (None, None)

    def test_the_share_of_the_way(self) -> None:
        """Of pursuit by MASAC, with all intervals; random actions and plan taken as exact gave 1.71 to 2.10."""
        best = {"mean": 0.953, "low": 0.919, "high": 0.987, "each": [0.62, 0.795]}
        random = {"mean": 0.620, "low": 0.589, "high": 0.651}
        got = learners.share(best, random, {"mean": 0.795, "low": 0.766, "high": 0.824})
        assert got is not None
        assert got["each"] == [0.0, 1.0]
        assert (got["mean"], got["low"], got["high"]) == pytest.approx((1.90286, 1.56, 2.41), abs=5e-3)
        assert learners.share(best, random, random) is None  # a plan that may be no better makes no way


class TestStudies:
    @pytest.mark.parametrize(
        ("update_s", "score_s", "points", "updates"),
        [
            (0.1, 2.0, 20, 280),  # 28 s of updates and 2 s of a score
            (0.1, 10.0, 20, 400),  # a score takes more than a fifth: 40 s of updates for one of 10 s
            (50.0, 1.0, 20, 1),
            (1.0, None, 20, 30),
            (1.0, 1.0, 60, 9),
        ],
    )
    def test_scores_come_by_the_clock(self, update_s: float, score_s: float | None, points: int, updates: int) -> None:
        pace = Pace(1, 1.0, "", update_s, 0.0, score_s, "")
        assert study.updates_between_scores(pace, 10.0, points) == updates

    def test_figures_and_their_bounds(self) -> None:
        assert study.score_bounds(configure("spread").env) == (float("-inf"), 1.0)
        figure = study.figure_of(torch.tensor([[1.0, 1.0], [0.0, 0.5]]), (0.0, 1.0))
        assert figure == study.over_seeds([1.0, 0.25], (0.0, 1.0))
        assert figure == {"mean": 0.625, "low": 0.0, "high": 1.0, "each": [1.0, 0.25]}
        free = study.over_seeds([1.0, 0.25])  # Student's, 12.7062 times 0.375 on both sides
        assert (free["low"], free["high"]) == pytest.approx((0.625 - 4.76483, 0.625 + 4.76483), abs=1e-4)

    def test_a_command_trains_the_same_run(self) -> None:
        config = configure("leader_follower", {"followers": 2, "present": [1, 2], "curriculum": TABLE, "lr": 1e-5})
        words = shlex.split(study.command(config))
        assert words[:5] == ["uavlab", "train", "leader_follower", "--learner", "masac"]
        texts = [word for option, word in pairwise(words) if option == "--set"]
        assert configure("leader_follower", gather(None, texts, {})).values == config.values

    def test_an_interrupted_study_goes_on_with_the_same_scores(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Scores are those of ``evaluate`` in other episodes than those that chose the policies."""
        options = {**WALK["learners"][0], "say": lambda line: None}
        (whole,) = learners.learners_suite(3, "cpu", folder=tmp_path / "whole", **options)["rows"]
        figures = api.evaluate(tmp_path / "whole" / "spread_quick-masac", episodes=4)
        each = [sum(whole["score"][name] * figures[name]["each"][at] for name in whole["score"]) for at in range(2)]
        assert whole["best"]["each"] == pytest.approx(each, rel=1e-4)
        train = Run.train

        def interrupted(run: Run) -> Iterator[Any]:
            for progress in train(run):
                if progress.number == 3:
                    raise KeyboardInterrupt
                yield progress

        monkeypatch.setattr(Run, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learners.learners_suite(3, "cpu", folder=tmp_path / "parts", **options)
        monkeypatch.setattr(Run, "train", train)
        (row,) = learners.learners_suite(3, "cpu", folder=tmp_path / "parts", **options)["rows"]
        assert [row[name] for name in ("best", "last", "plans")] == [whole[name] for name in ("best", "last", "plans")]
        other = {**options, "settings": {**options["settings"], "runs": 3}}
        with pytest.raises(ConfigError, match="cannot go on with runs 2 -> 3"):
            learners.learners_suite(3, "cpu", folder=tmp_path / "parts", **other)

    def test_both_ways_of_a_curriculum_are_compared_in_pairs(self, tmp_path: Path) -> None:
        options = {**WALK["curriculum"][0], "say": lambda line: None, "folder": tmp_path}
        staged, alone = curriculum.curriculum_suite(3, "cpu", **options)["rows"]
        ways = curriculum.both_ways("steps", options["settings"])
        different = {name for name, value in ways["curriculum"].values.items() if ways["alone"].values[name] != value}
        assert different == {"curriculum", "present"}
        each = [a - b for a, b in zip(staged["last_stage"]["each"], alone["last_stage"]["each"], strict=True)]
        assert staged["difference"]["each"] == pytest.approx(each, abs=1e-4)
        ends = [staged["difference"][name] for name in ("mean", "low", "high")]
        assert ends == pytest.approx(student(each), abs=1e-3)
        assert (alone["difference"], alone["reached"], alone["decisions"]) == (None, [2, 2], [])
        assert [point["update"] for point in staged["curve"]] == [2, 4]

    def test_a_run_that_fails_has_a_row(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(run: Run) -> Any:
            raise DivergedError({"tensor": "loss", "value": 1e30, "expected": "less"}, "Lower rates.")

        monkeypatch.setattr(Run, "train", fail)
        options: Mapping[str, Any] = {"say": lambda line: None, "folder": tmp_path}
        (row,) = learners.learners_suite(3, "cpu", **WALK["learners"][0], **options)["rows"]
        assert row["failed"].startswith("DivergedError: training: loss is 1e+30")
        assert [row[name] for name in (*learners.MEASURED, "share")] == [None] * 6
        staged, _ = curriculum.curriculum_suite(3, "cpu", **WALK["curriculum"][0], **options)["rows"]
        assert [stage["score"] for stage in staged["stages"]] == [None, None]
