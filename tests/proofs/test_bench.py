"""Suites and a profile measured for real, with their processes; the unit tests replace what is measured."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures_config import TINY
from tests.support.registries import registered
from uavlab_lab.measure import profile_run
from uavlab_lab.measure.profile_run import format_profile, profile_preset
from uavlab_lab.suites import external, mapping, ranks, runs
from uavlab_lab.suites.update import RUNGS, ladder_suite

UNCOMPILED = {name: rung for name, rung in RUNGS.items() if "compile" not in rung}


def test_rows_of_missions_in_one_process_and_in_several() -> None:
    record = mapping.maps_suite(3, "cpu", missions=(1, 2), workers=2, compiled=False, cells=48)
    keys = [(row["path"], row["setting"], row["missions"]) for row in record["rows"]]
    assert keys == [
        ("host", "one process", 2),
        ("host", "2 processes", 2),
        ("device", "eager", 1),
        ("device", "eager", 2),
        ("device", "eager, fresh memory", 2),
    ]
    assert record["rows"][0]["over_host"] == 1.0
    for row in record["rows"]:
        assert row["team_step_ms"] > 0
        assert 0 < row["low"] <= row["over_host"] <= row["high"]
        assert (row["over_pool"] == 1) is (row["setting"] == "2 processes")
    assert len({row["bytes_per_mission"] for row in record["rows"]}) == 1


def test_the_processes_of_runs_train() -> None:
    code = runs.ALONE.format(hidden=8, device="cpu", updates=2)
    assert runs._seconds([[runs.sys.executable, "-c", code, "3", "2"]]) > 0


def test_groups_of_ranks_are_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "PRESETS", {"leader_follower_quick": 2})
    record = ranks.ranks_suite(2, "cpu")
    one, two = record["rows"]
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert one["efficiency"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert (one["all_reduce_us"], two["all_reduce_us"] > 0) == (0.0, True)
    assert two["gradient_bytes"] == one["gradient_bytes"] > 10_000
    steps = 64 * 2  # worlds and agents of the preset
    assert two["agent_steps_per_s"] == pytest.approx(2 * steps * two["cycles_per_s"], rel=0.01)


def test_rows_and_scaling_of_external_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "SIZES", ((1, 1), (1, 2)))
    monkeypatch.setattr(external, "BATCHES", (8,))
    monkeypatch.setattr(external, "WORKERS", 1)
    monkeypatch.setattr(external, "LEARN", {**external.LEARN, "worlds": 2, "learning_starts": 16, "hidden": 8})
    with registered():
        record: dict[str, Any] = external.external_suite(3, "cpu", 0.0)
    assert [row["setting"] for row in record["rows"]] == ["alternating", "overlap", "overlap, interval 1"]
    assert record["rows"][0]["over_first"] == 1.0
    assert record["batch"] == 8
    assert 0 < record["environment_share"] < 1
    assert [(row["workers"], row["worlds"]) for row in record["scaling"]] == [(1, 1), (1, 2)]
    assert all(row["steps_per_s"] > 0 and row["of_ideal"] == 0 for row in record["scaling"])


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_run, "TRIED", {**profile_run.TRIED, "compile": ()})
    monkeypatch.setattr(profile_run, "CYCLES", 4)


@pytest.mark.usefixtures("uncompiled")
def test_a_whole_profile(tmp_path: Path) -> None:
    record = profile_preset("leader_follower", TINY, rounds=3, trace=tmp_path / "trace.json")
    stages = {row["name"]: row["share"] for row in record["stages"]}
    assert {"environment", "acting", "draw", "store"} <= set(stages)
    assert 0.5 < sum(stages.values()) <= 1.0001
    assert record["kind"] in ("environment", "copy", "launch", "arithmetic", "memory")
    assert record["verdict"].startswith(f"{record['kind']}-bound")
    assert len(record["candidates"]) == profile_run.WORTH
    measured = [row["measured"] for row in record["candidates"]]
    assert measured == sorted(measured, reverse=True)
    assert all({"toggle", "predicted", "measured"} <= set(row) for row in record["candidates"])
    assert record["update"]["flops"] > 0
    assert (tmp_path / "trace.json").stat().st_size > 1000
    text = format_profile(record)
    assert record["verdict"] in text
    assert text.index(record["candidates"][0]["toggle"]) < text.index(record["candidates"][1]["toggle"])


@pytest.mark.usefixtures("uncompiled")
def test_a_profile_of_a_part_of_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_run, "SHORT_S", 0.0)
    small = {"worlds": 4, "rollout_steps": 8, "minibatches": 4, "epochs": 1, "spares": 1, "hidden": 8}
    record = profile_preset("pursuit", small, rounds=3)
    assert record["shortened"]["settings"] == {"rollout_steps": 2, "minibatches": 1}
    steps = {row["name"]: row["calls"] for row in record["stages"]}
    assert steps["environment"] == 2 * steps["target"]  # steps of a batch, each with one pass over its targets
    assert format_profile(record).startswith("part of a cycle, ")


def test_every_rung_at_every_size() -> None:
    lines: list[str] = []
    rows = ladder_suite(
        3, "cpu", threads=[1], say=lines.append, rungs=UNCOMPILED, sizes={"batch": 16, "hidden": 16, "share": False}
    )["rows"]
    assert [(row["agents"], row["setting"]) for row in rows] == [(n, name) for n in (2, 4, 8) for name in UNCOMPILED]
    columns = {"agents", "setting", "threads", "ms", "over_loop", "low", "high", "over_cached"}
    columns |= {"over_below", "ops", "first_call_s", "share"}
    assert all(set(row) == {*columns, "best", "paid_back"} and row["threads"] == 1 for row in rows)
    assert [sum(row["best"] for row in rows if row["agents"] == n) for n in (2, 4, 8)] == [1, 1, 1]
    by_name = {(row["agents"], row["setting"]): row for row in rows}
    loops = [by_name[n, "loop"]["ops"] for n in (2, 4, 8)]
    assert loops[0] < loops[1] / 1.5 < loops[2] / 3  # operators of the loop grow with the team
    assert len({by_name[n, "batched, fused Adam"]["ops"] for n in (2, 4, 8)}) == 1  # those of the batch do not
    assert {row["over_cached"] for row in rows if row["setting"] == "cached"} == {1.0}
    assert len(lines) == 3
