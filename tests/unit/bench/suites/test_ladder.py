"""The ladder's rows: what each rung is compared with, which is best, and when a warm-up is earned."""

from typing import Any

import pytest
import torch

from uavlab.bench.suites import ladder
from uavlab.bench.suites.ladder import RUNGS, ladder_suite

EAGER = {name: rung for name, rung in RUNGS.items() if "compile" not in rung}
COMPILED = "batched, compiled, bf16"
COLUMNS = {"agents", "setting", "threads", "ms", "over_loop", "over_below", "ops", "first_call_s", "best"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "SIZES", {"batch": 16, "hidden": 16, "share": False})
    monkeypatch.setattr(ladder, "RUNGS", EAGER)


@pytest.mark.usefixtures("small")
def test_every_rung_at_every_size() -> None:
    record = ladder_suite(3, "cpu", threads=[1], say=(said := []).append)
    rows = record["rows"]
    assert [(row["agents"], row["setting"]) for row in rows] == [(n, name) for n in (2, 4, 8) for name in EAGER]
    assert all(set(row) >= COLUMNS and row["threads"] == 1 for row in rows)
    assert [sum(row["best"] for row in rows if row["agents"] == n) for n in (2, 4, 8)] == [1, 1, 1]
    by_name = {(row["agents"], row["setting"]): row for row in rows}
    loops = [by_name[n, "loop"]["ops"] for n in (2, 4, 8)]
    assert loops[0] < loops[1] / 1.5 < loops[2] / 3  # operators of the loop grow with the team
    assert len({by_name[n, "batched, fused Adam"]["ops"] for n in (2, 4, 8)}) == 1  # those of the batch do not
    assert len(said) == 3


def test_a_warm_up_is_earned_by_what_it_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call that takes 7 s more than that of the fastest uncompiled rung saves 2 s each time: earned after 4."""
    times = {name: [6.0, 6.0, 6.0] for name in EAGER} | {"batched, bf16": [3.0, 3.0, 3.0], COMPILED: [1.0, 1.0, 1.0]}
    monkeypatch.setattr(ladder, "SIZES", {"batch": 16, "hidden": 16, "share": False})
    monkeypatch.setattr(ladder, "RUNGS", {**EAGER, COMPILED: RUNGS[COMPILED]})
    monkeypatch.setattr(torch, "compile", lambda fn, **options: fn)
    monkeypatch.setattr(ladder, "interleaved", lambda calls, rounds, device: times)
    prepared = ladder.prepared

    def slow_start(makers: Any) -> Any:
        made, first = prepared(makers)
        return made, {**dict.fromkeys(first, 4.0), COMPILED: 11.0}

    monkeypatch.setattr(ladder, "prepared", slow_start)
    found = [row for row in ladder_suite(3, "cpu", [1], say=lambda line: None)["rows"] if row["agents"] == 2]
    *_, slow, at_once, last = found
    assert (last["setting"], last["over_loop"], last["over_below"]) == (COMPILED, 6, 3)
    assert (last["paid_back"], last["best"]) == (4, True)
    assert (at_once["paid_back"], at_once["best"]) == (0, False)
    assert slow["paid_back"] == 0  # no first call is shorter


@pytest.mark.usefixtures("small")
def test_each_thread_count_has_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_a_process(rounds: int, device: str, threads: int, full: bool) -> dict[str, Any]:
        row = {"threads": threads, "rounds": rounds, "full": full}
        return {"command": "its own", "suite": "ladder", "rounds": rounds, "machine": {}, "rows": [row]}

    monkeypatch.setattr(ladder, "_in_a_process", in_a_process)
    record = ladder_suite(7, "cpu", threads=[1, 2], full=True)
    assert record["rows"] == [{"threads": n, "rounds": 7, "full": True} for n in (1, 2)]
    assert "command" not in record
