"""Records hold what later work reads."""

import pytest
import torch

from tests.support.fixtures_config import tiny
from uavlab.bench import timing
from uavlab.bench.suites import update
from uavlab.bench.suites.update import table
from uavlab.runtime.runtime import Runtime


def test_table() -> None:
    rows = [{"agents": 2, "worlds": 1024, "setting": "a"}, {"agents": 4, "worlds": 64, "setting": "long"}]
    assert table({"rows": rows}).splitlines() == [
        "agents  worlds  setting",
        "     2   1,024        a",
        "     4      64     long",
    ]


def test_update_suite_counts_operators() -> None:
    threads = torch.get_num_threads()
    record = update.update_suite(3, "cpu")
    assert torch.get_num_threads() == threads
    assert (record["suite"], record["rounds"]) == ("update", 3)
    assert record["machine"]["device"]
    required = {"agents", "setting", "threads", "ms", "ops", "batched_over_loop"}
    assert all(required <= set(row) for row in record["rows"])
    ops = {(row["setting"], row["agents"]): row["ops"] for row in record["rows"]}
    assert set(ops) == {(kind, agents) for kind in ("loop", "batched") for agents in (2, 4, 8)}
    assert ops["batched", 2] == ops["batched", 4] == ops["batched", 8] > 0
    for agents, most in ((2, 1300), (4, 3000), (8, 7500)):
        assert ops["batched", agents] < ops["loop", agents] <= most


def test_env_suite_steps_every_world(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(ticks)))  # every timed call takes one second
    record = update.env_suite(3, "cpu")
    required = {"env", "agents", "worlds", "setting", "agent_steps_per_s"}
    assert all(required <= set(row) for row in record["rows"])
    assert {(row["worlds"], row["agent_steps_per_s"]) for row in record["rows"]} == {
        (64, 64 * 64 * 5),  # steps x worlds x agents
        (1024, 64 * 1024 * 5),
    }
    assert len({(row["setting"], row["worlds"]) for row in record["rows"]}) == len(record["rows"]) == 4


def test_a_round_holds_whole_refills_of_the_pool() -> None:
    assert update.STEPS % update.POOL_STEPS == 0


def test_guard_suite_times_the_same_run_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "configure", lambda preset, given: tiny(share=True, **given))
    checks: list[object] = []
    monkeypatch.setattr(Runtime, "check", lambda self, numbers: checks.append(numbers))
    record = update.guard_suite(3, "cpu")
    assert (record["suite"], record["rounds"]) == ("guard", 3)
    assert [row["agents"] for row in record["rows"]] == [2, 8]
    assert all(row["guarded_over_plain"] > 0 and row["guarded_ms"] > 0 < row["plain_ms"] for row in record["rows"])
    guarded = 2 * (timing.WARM_UP + 3) * update.CYCLES
    first = 4  # steps of exploration: 16 rows from 4 worlds
    assert len(checks) == guarded * (2 + 2) + 2 * 2 * first  # two of the state and the update, two of each step
