"""Verdicts and predictions from numbers that can be worked out on paper."""

import math

import pytest

from uavlab.core.errors import ConfigError
from uavlab.profiling.bottleneck import predicted, verdict
from uavlab.profiling.roofline import Ceilings

CEILINGS = Ceilings(rate=100e9, bandwidth=10e9, launch=5e-6)


def judged(update_ms: float, operators: int, gflop: float, megabytes: float, **shares: float) -> tuple[str, str]:
    return verdict(shares, update_ms / 1e3, operators, int(gflop * 1e9), int(megabytes * 1e6), CEILINGS)


def test_arithmetic() -> None:
    # 0.6 GFLOP take 6 ms, 20 MB 2 ms, 200 launches 1 ms; of 10 ms, 2 ms more are explained by launching alone
    kind, sentence = judged(10, 200, 0.6, 20, environment=0.05)
    assert kind == "arithmetic"
    assert sentence == (
        "arithmetic-bound: of an update's 10 ms, matrix products 60%, reading and writing memory 20% and starting 200 "
        "operators 20%; of the loop, the environment takes 5% and copies 0%."
    )


def test_memory() -> None:
    kind, sentence = judged(10, 200, 0.1, 70)  # 1 ms, 7 ms
    assert kind == "memory"
    assert sentence.startswith(
        "memory-bound: of an update's 10 ms, reading and writing memory 70%, matrix products 10%"
    )


def test_launching_has_what_work_does_not_explain() -> None:
    kind, sentence = judged(10, 200, 0.1, 20)  # 1 ms, 2 ms; 200 launches take 1 ms at least, but 7 ms are left
    assert kind == "launch"
    assert "starting 200 operators 70%" in sentence


def test_a_replayed_graph_is_not_bound_by_launches() -> None:
    assert judged(3, 1, 0.2, 8)[0] == "arithmetic"  # 2 ms of 3; 0.8 ms; 0.2 ms left


def test_floors_above_the_measured_time_keep_their_proportions() -> None:
    kind, sentence = judged(10, 400, 0.4, 140)  # 4 ms, 14 ms and 2 ms are 20 ms
    assert kind == "memory"
    assert "memory 70%" in sentence
    assert "products 20%" in sentence
    assert "operators 10%" in sentence


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({"environment": 0.6, "copy": 0.1}, "environment-bound: stepping the worlds takes 60% of the time."),
        ({"copy": 0.51}, "copy-bound: copies between host and device take 51% of the time."),
    ],
)
def test_a_stage_that_outweighs_all_else_binds(shares: dict[str, float], expected: str) -> None:
    kind, sentence = judged(10, 200, 0.6, 20, **shares)
    assert sentence == expected
    assert sentence.startswith(f"{kind}-bound")


def test_a_stage_of_half_the_time_does_not_outweigh_the_rest() -> None:
    assert judged(10, 200, 0.6, 20, environment=0.5, copy=0.3)[0] == "arithmetic"


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_an_update_without_time_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="update_seconds: expected a time above 0 s"):
        verdict({}, seconds, 1, 1, 1, CEILINGS)


@pytest.mark.parametrize(
    ("share", "gain", "speedup"),
    [(0.5, 2.0, 4 / 3), (1.0, 3.0, 3.0), (0.0, 9.0, 1.0), (0.75, math.inf, 4.0), (0.5, 0.5, 2 / 3)],
)
def test_amdahl(share: float, gain: float, speedup: float) -> None:
    assert predicted(8.0, [(8 * share, 8 * share / gain)]) == pytest.approx(speedup)


def test_several_parts() -> None:
    # 10 s with parts of 4 and 2 s that would take 1 s each: 4 s remain beside, so 10 / (4 + 1 + 1)
    assert predicted(10, [(4, 1), (2, 1)]) == pytest.approx(10 / 6)
    assert predicted(10, []) == 1.0
    assert predicted(10, [(2, 4)]) == pytest.approx(10 / 12)  # a part may lose


def test_parts_that_outlast_the_whole_leave_nothing_else() -> None:
    assert predicted(10, [(8, 2), (4, 2)]) == pytest.approx(12 / 4)


@pytest.mark.parametrize(("whole", "parts"), [(0.0, []), (1.0, [(1.0, 0.0)]), (1.0, [(0.5, -0.1)]), (1.0, [(-0.5, 1)])])
def test_impossible_times_are_refused(whole: float, parts: list[tuple[float, float]]) -> None:
    with pytest.raises(ConfigError, match="expected times above 0 s"):
        predicted(whole, parts)
