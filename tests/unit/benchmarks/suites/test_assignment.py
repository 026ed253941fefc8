"""Rows of the suite of assignment: what is timed against what, and the peak of memory."""

import pytest
import torch

from uavlab.benchmarks import timing
from uavlab.benchmarks.suites import assignment
from uavlab.benchmarks.suites.assignment import batched_decisions, network_rows, peak_bytes, python_episode
from uavlab.envs.target_assignment.env import Assignment
from uavlab.nets.attention import StackedAttention
from uavlab.runtime.runtime import Runtime

SIZE = (3, 2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every timed call take one second."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(ticks)))


@pytest.mark.usefixtures("clock")
def test_each_size_network_and_batch_has_a_row_for_each_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "SIZES", (SIZE, (4, 2)))
    monkeypatch.setattr(assignment, "NETWORKS", {"small": (8, 2, 1)})
    monkeypatch.setattr(assignment, "WORLDS", 4)
    record = assignment.assignment_suite(3, "cpu", batch=[5, 7])
    assert [(row["uavs"], row["targets"], row["threads"]) for row in record["rows"]] == [(3, 2, 1), (4, 2, 1)]
    for row in record["rows"]:
        assert row["us"] == pytest.approx(1e6 / (4 * row["decisions"]), abs=1e-3)
        assert {"mean", "low", "high"} == set(row["over_batched"])
    networks = record["networks"]
    settings = ("plain", "nearest", "whole", "layers")
    assert [(row["uavs"], row["batch"], row["setting"]) for row in networks] == [
        (uavs, batch, setting) for uavs in (3, 4) for batch in (5, 7) for setting in settings
    ]
    assert all((row["ms"], row["over_plain"]) == (1000.0, 1.0) for row in networks)


def test_settings_do_what_they_are_named_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers store less than all at once; one neighbour costs what all cost, because shapes stay."""
    seen: list[tuple[float, float]] = []
    call = StackedAttention.__call__

    def watch(self: StackedAttention, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        seen.append((self.recompute, float(x[0, 0, -1])))
        return call(self, theta, x)

    monkeypatch.setattr(StackedAttention, "__call__", watch)
    monkeypatch.setattr(assignment, "NETWORKS", {"deep": (16, 2, 6)})
    rows = {row["setting"]: row for row in network_rows(SIZE, "deep", 64, 3, Runtime())}
    assert set(seen) == {(torch.inf, 3.0), (torch.inf, 1.0), (0.0, 3.0)}
    assert rows["layers"]["peak_bytes"] < 0.7 * rows["plain"]["peak_bytes"]
    assert rows["whole"]["peak_bytes"] > rows["layers"]["peak_bytes"]
    assert rows["nearest"]["peak_bytes"] == rows["plain"]["peak_bytes"]


def test_a_peak_counts_what_lives_at_a_time() -> None:
    def call() -> None:
        for _ in range(3):
            torch.zeros(1000, dtype=torch.float64)
        first, second = torch.zeros(1000), torch.zeros(500)
        del first, second

    assert peak_bytes(call) == 8000


def test_decisions_are_as_many_as_the_worlds_and_steps() -> None:
    env = Assignment(uavs=(3, 3), targets=(2, 2))
    assert 1 <= python_episode(env, 0) <= env.spec.horizon
    starts: list[int] = []
    counting = type("Counting", (Assignment,), {"observe": lambda self, s: starts.append(len(s.own)) or env.observe(s)})
    call = batched_decisions(counting(uavs=(3, 3), targets=(2, 2)), Runtime(), steps=5)
    starts.clear()
    call()
    assert starts.count(assignment.WORLDS) >= 5
