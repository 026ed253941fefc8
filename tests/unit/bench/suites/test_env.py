"""Rows of the suite count every agent of every world."""

import pytest

from uavlab.bench import timing
from uavlab.bench.suites import env


def test_every_world_is_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(ticks)))  # every timed call takes one second
    rows = env.env_suite(3, "cpu")["rows"]
    required = {"env", "agents", "worlds", "setting", "agent_steps_per_s"}
    assert all(required <= set(row) for row in rows)
    assert {(row["worlds"], row["agent_steps_per_s"]) for row in rows} == {
        (64, 64 * 64 * 5),  # steps x worlds x agents
        (1024, 64 * 1024 * 5),
    }
    assert len({(row["setting"], row["worlds"]) for row in rows}) == len(rows) == 4


def test_a_round_holds_whole_refills_of_the_pool() -> None:
    assert env.STEPS % env.POOL_STEPS == 0
