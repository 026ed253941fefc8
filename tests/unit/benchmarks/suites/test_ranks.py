"""The suite ``ranks``: groups in turn, what their ranks answer, and a rank that ends."""

import io
import json
import sys
from typing import Any

import pytest

from uavlab.benchmarks.suites import ranks
from uavlab.core.errors import ResourceError


def test_groups_are_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "PRESETS", {"leader_follower_quick": 2})
    record = ranks.ranks_suite(2, "cpu")
    one, two = record["rows"]
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert one["efficiency"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert (one["all_reduce_us"], two["all_reduce_us"] > 0) == (0.0, True)
    assert two["gradient_bytes"] == one["gradient_bytes"] > 10_000
    steps = 64 * 2  # worlds and agents of the preset
    assert two["agent_steps_per_s"] == pytest.approx(2 * steps * two["cycles_per_s"], rel=0.01)


def test_a_rank_answers_each_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n3\n"))
    ranks.serve("leader_follower_quick", "cpu")
    first, *times = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["agent_steps"] == 128
    assert len(times) == 2


def test_a_rank_that_ends_is_reported() -> None:
    class Ended:
        stdout: Any = io.StringIO("")

    with pytest.raises(ResourceError, match="a rank ended before it answered"):
        ranks.read(Ended())  # type: ignore[arg-type]
