"""The suite ``ranks``: what ranks answer, and a rank that ends."""

import io
import json
import sys
from contextlib import nullcontext
from typing import Any

import pytest

from uavlab import benchmarks as registry
from uavlab.core.errors import ResourceError
from uavlab.profiling.timing import WARM_UP
from uavlab_lab.suites import ranks


def test_a_rank_answers_each_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n3\n"))
    ranks.serve("leader_follower_quick", "cpu")
    first, *times = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["agent_steps"] == 128
    assert len(times) == 2


def test_a_rank_that_fails_says_why_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(SystemExit, match=r"^ConfigError: ranks: WORLD_SIZE is 'two'; expected"):
        ranks.serve("leader_follower_quick", "cpu")


class Ended:
    """A process that ended with a code, or runs (None)."""

    def __init__(self, code: int | None) -> None:
        self.code, self.stdout, self.stdin = code, io.StringIO(""), self

    def poll(self) -> int | None:
        return self.code

    def wait(self, seconds: float) -> int | None:
        return self.code

    def write(self, text: str) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize(
    ("codes", "lost"),
    [
        ([1, -9], "rank 1 of 2 with -9 ended"),  # rank 0 ended because of it
        ([-9, 1], "rank 0 of 2 with -9 ended"),
        ([1, 1, None], "rank 0 of 3 with 1, rank 1 of 3 with 1 ended"),
    ],
)
def test_a_rank_that_ends_is_named(codes: list[int | None], lost: str) -> None:
    processes = ranks.RankProcesses("interval_1", [Ended(code) for code in codes])  # type: ignore[misc]
    for call in (processes.read, lambda: processes.block_seconds(3)):
        with pytest.raises(ResourceError, match=rf"^bench: interval_1: {lost} before it answered; expected .* fewer"):
            call()


def test_numbers_of_ranks_are_timed_in_turn_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[str, int]] = []

    class Processes:
        def __init__(self, preset: str, size: int) -> None:
            self.key = preset, size

        def read(self) -> dict[str, Any]:
            return {"agent_steps": 10, "gradient_bytes": 8, "all_reduce_us": 0.0}

        def block_seconds(self, cycles: int) -> float:
            log.append(self.key)
            return cycles * 0.01 * self.key[1]  # so many ranks take so many times as long

    monkeypatch.setattr(ranks, "PRESETS", {"leader_follower_quick": 5})
    monkeypatch.setattr(ranks, "group", lambda preset, size, device: nullcontext(Processes(preset, size)))
    rows = registry.bench("ranks", rounds=3, device="cpu", ranks=(4, 2, 4))["rows"]
    assert log == [("leader_follower_quick", size) for size in (2, 4)] * (3 + WARM_UP)
    assert [(row["ranks"], row["cycles_per_s"], row["agent_steps_per_s"]) for row in rows] == [
        (2, 50.0, 1000),
        (4, 25.0, 1000),
    ]
    assert [row["efficiency"]["mean"] for row in rows] == [1.0, 0.5]
