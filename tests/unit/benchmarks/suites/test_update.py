"""Rows of the suites: every agent counts, what is compared with what, which rung is best, when a warm-up pays off."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import TINY
from uavlab.core.errors import ResourceError
from uavlab.experiment.config import configure
from uavlab.profiling import timing
from uavlab.runtime import wrappers
from uavlab.runtime.runtime import Runtime
from uavlab_lab.measure import compare
from uavlab_lab.suites import update
from uavlab_lab.suites.update import RUNGS, ladder_suite

EAGER = {name: rung for name, rung in RUNGS.items() if "compile" not in rung}
COMPILED = "batched, compiled, bf16"
SMALL = {"batch": 16, "hidden": 16, "share": False}


def test_update_suite_counts_operators() -> None:
    threads = torch.get_num_threads()
    rows = update.update_suite(3, "cpu", SMALL)["rows"]
    assert torch.get_num_threads() == threads
    required = {"agents", "setting", "threads", "ms", "ops", "over_loop", "low", "high", "over_cached", "original_ms"}
    assert all(required == set(row) and row["threads"] == 1 for row in rows)
    ops = {(row["setting"], row["agents"]): row["ops"] for row in rows}
    assert set(ops) == {(kind, agents) for kind in ("loop", "cached", "batched") for agents in (2, 4, 8)}
    assert ops["batched", 2] == ops["batched", 4] == ops["batched", 8] > 0
    for agents, most in ((2, 1300), (4, 3000), (8, 7500)):
        assert ops["batched", agents] < ops["cached", agents] < ops["loop", agents] <= most


def test_every_world_is_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(ticks)))  # every timed call takes one second
    compiled: list[str] = []

    def compile_function(fn: Any, name: str, *_: Any) -> Any:
        compiled.append(name)
        return fn

    monkeypatch.setattr(wrappers, "compile_function", compile_function)
    rows = update.env_suite(3, "cpu")["rows"]
    required = {"env", "agents", "worlds", "setting", "agent_steps_per_s", "compiled_over_plain", "low", "high"}
    assert all(required <= set(row) for row in rows)
    assert all(row["compiled_agent_steps_per_s"] == row["agent_steps_per_s"] for row in rows)  # of the same steps
    assert all(name == "environment" for name in compiled)
    assert compiled
    assert {(row["worlds"], row["agent_steps_per_s"]) for row in rows} == {
        (64, 64 * 64 * 5),  # steps x worlds x agents
        (1024, 64 * 1024 * 5),
    }
    assert len({(row["setting"], row["worlds"]) for row in rows}) == len(rows) == 4


def test_a_round_holds_whole_refills_of_the_pool() -> None:
    assert update.STEPS % update.POOL_STEPS == 0


def test_guard_suite_times_the_same_run_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "configure", lambda preset, layer: configure(preset, TINY, layer))
    checks: list[object] = []
    monkeypatch.setattr(Runtime, "check", lambda self, numbers: checks.append(numbers))
    rows = update.guard_suite(3, "cpu", "leader_follower")["rows"]
    assert [row["agents"] for row in rows] == [2, 8]
    assert all(row["guarded_over_plain"] > 0 and row["guarded_ms"] > 0 < row["plain_ms"] for row in rows)
    cycles = 2 * (timing.WARM_UP + 3) * update.CYCLES
    first = 4  # steps of exploration: 16 rows from 4 worlds
    assert len(checks) == cycles * (2 + 2) + 2 * 2 * first  # two of the state and the update, two of each step


def test_a_warm_up_pays_off_by_what_it_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call that takes 7 s more than that of the fastest uncompiled rung saves 2 s each time: earned after 4."""
    each_s = dict.fromkeys(EAGER, 6.0) | {"cached": 4.0, "batched, bf16": 3.0, COMPILED: 1.0}
    times = {name: [seconds] * 3 for name, seconds in each_s.items()}
    monkeypatch.setattr(torch, "compile", lambda fn, **options: fn)
    monkeypatch.setattr(compare, "time_in_turn", lambda calls, rounds, device, **options: times)
    prepare = update.prepare

    def slow_start(*given: Any) -> Any:
        return {name: replace(one, first_s=11.0 if name == COMPILED else 4.0) for name, one in prepare(*given).items()}

    monkeypatch.setattr(update, "prepare", slow_start)
    rungs = {**EAGER, COMPILED: RUNGS[COMPILED]}
    record = ladder_suite(3, "cpu", [1], say=lambda line: None, rungs=rungs, sizes=SMALL)
    *_, slow, fastest, last = [row for row in record["rows"] if row["agents"] == 2]
    assert (last["setting"], last["over_loop"], last["over_below"], last["over_cached"]) == (COMPILED, 6, 3, 4)
    assert (last["low"], last["high"]) == (6, 6)
    assert (last["paid_back"], last["best"]) == (4, True)
    assert (fastest["paid_back"], fastest["best"]) == (0, False)
    assert slow["paid_back"] == 0  # no first call is shorter


class TestProcesses:
    """The ladder starts a process for each thread count; here none of them is started."""

    def test_each_thread_count_has_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def run(command: list[str], **options: Any) -> Any:
            row = {"threads": int(command[command.index("--threads") + 1]), "command": command}
            return SimpleNamespace(returncode=0, stdout="a table\n" + json.dumps({"rows": [row]}))

        monkeypatch.setattr(update.subprocess, "run", run)
        rows = ladder_suite(7, "cpu", threads=[1, 2], full=True)["rows"]
        assert [row["threads"] for row in rows] == [1, 2]
        options = ["--rounds", "7", "--device", "cpu", "--threads", "2", "--full", "--json"]
        assert rows[1]["command"] == [sys.executable, "-m", "uavlab", "bench", "ladder", *options]

    def test_one_that_fails_ends_the_suite(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(update.subprocess, "run", lambda command, **options: SimpleNamespace(returncode=5))
        with pytest.raises(ResourceError, match="bench ladder with 1 threads ended with 5; see its output above"):
            ladder_suite(3, "cpu", threads=[1, 2])
