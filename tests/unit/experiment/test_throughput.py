"""The knee is that of a table of rates, whatever one round says; sweeps end for the right reason and change nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import sizes, tiny
from uavlab.collectors import world_source
from uavlab.core.errors import ResourceError
from uavlab.experiment import sizes as automatic
from uavlab.experiment.config import configure
from uavlab.experiment.sizes import LONG_S, LONGEST_S, ROUNDS, sweep_worlds

RATES = {1: 10.0, 2: 20.0, 4: 38.0, 8: 70.0, 16: 98.0, 32: 100.0, 64: 99.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Return a function that gives each number of worlds a rate, and a sample a time; it returns what was sampled."""

    def install(rate: Callable[[int, int], float], sample_s: Callable[[int], float] = lambda worlds: 0.1) -> list[int]:
        sampled: list[int] = []

        def time_rounds(worlds: int, turns: int, least: int) -> tuple[float, float]:
            sampled.append(worlds)
            seconds = sample_s(worlds)
            return rate(worlds, sampled.count(worlds) - 1) * seconds / worlds / 2, seconds  # 2 agents

        monkeypatch.setattr(automatic, "_turns", lambda config, worlds: worlds)
        monkeypatch.setattr(automatic, "_time_rounds", time_rounds)
        monkeypatch.setattr(automatic, "fits", lambda make_step, worlds, budget: worlds <= (budget or 10**9))
        return sampled

    return install


def test_the_knee_is_the_first_within_2_percent_of_the_best(clock: Callable[..., list[int]]) -> None:
    sampled = clock(lambda worlds, nth: RATES[worlds])
    lines: list[str] = []
    sweep = sweep_worlds(tiny(capacity=10_000), 64, say=lines.append)
    assert sweep.rates == pytest.approx(RATES)
    assert (sweep.worlds, sweep.end) == (16, "64 is the largest number to try")
    assert str(sweep).startswith(
        "16 worlds, 98 agent-steps per second, the fewest within 2% of the best rate of 1 to 64"
    )
    assert lines[-1] == "worlds 64: 99 agent-steps per second"
    assert sampled == [*RATES, *[8, 16, 32, 64] * ROUNDS]  # in turn, without those far below the best


def test_neither_a_warm_up_nor_one_round_decides(clock: Callable[..., list[int]]) -> None:
    clock(lambda worlds, nth: RATES[worlds] * (3.0 if nth == 2 else 0.6 if nth == 0 and worlds == 16 else 1.0))
    assert sweep_worlds(tiny(capacity=10_000), 64).worlds == 16


def test_the_warm_up_is_not_in_the_median(clock: Callable[..., list[int]]) -> None:
    """Of 0.5, 0.9, 1.0 and 1.1 times a rate, the median without the first one is 1.0, with it 0.95."""
    clock(lambda worlds, nth: RATES[worlds] * (0.5, 0.9, 1.0, 1.1)[nth])
    assert sweep_worlds(tiny(capacity=10_000), 32).rates == pytest.approx(
        {worlds: RATES[worlds] * (1.0 if worlds >= 8 else 0.5) for worlds in (1, 2, 4, 8, 16, 32)}
    )  # far below the best there is no other sample


def test_one_sample_of_a_busy_machine_ends_no_sweep(clock: Callable[..., list[int]]) -> None:
    busy = (4, 16)  # numbers whose first sample is slow
    clock(
        lambda worlds, nth: RATES[worlds] / (5.0 if worlds in busy and nth == 0 else 1.0),
        lambda worlds: 5 * LONG_S if worlds in busy else 0.1,
    )
    assert max(sweep_worlds(tiny(capacity=10_000), 64).rates) == 64


@pytest.mark.parametrize(
    ("sample_s", "budget", "capacity", "most", "end"),
    [
        (0.1, 8, 10_000, 8, "16 do not fit into 8 bytes"),
        (0.1, None, 20, 16, "20 is the largest number to try"),
        (1.1 * LONG_S, None, 10_000, 128, f"a sample of 128 takes {1.1 * LONG_S:.1f} s"),  # the second below 32
        (1.1 * LONGEST_S, None, 10_000, 1, f"a sample of 1 takes {1.1 * LONGEST_S:.1f} s"),
    ],
)
def test_why_it_ends(
    clock: Callable[..., list[int]], sample_s: float, budget: int | None, capacity: int, most: int, end: str
) -> None:
    clock(lambda worlds, nth: RATES.get(worlds, 1.0) * (1.1 if worlds == 32 else 1.0), lambda worlds: sample_s)
    sweep = sweep_worlds(tiny(capacity=capacity), 1000, budget)
    assert (max(sweep.rates), sweep.end) == (most, end)


def test_one_world_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ResourceError, match="worlds: one does not fit into 1,000 bytes; lower batch, capacity"):
        sweep_worlds(tiny(), 4, budget=1000)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take short samples, survey few observations, and collect no garbage."""
    monkeypatch.setattr(world_source, "SURVEY_STEPS", 2)
    monkeypatch.setattr(automatic, "SAMPLE_S", 0.0)
    monkeypatch.setattr(automatic, "free_cache", lambda: None)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("env", "changes", "rounds"),
    [
        ("leader_follower", {}, (1, 32)),
        ("leader_follower", {"world_steps": 4, "interval": 2, "ratio": 3}, (6, 4)),  # 8 steps in every 6 turns
        ("leader_follower", {"learner": "mappo"}, (1, 7)),  # of 5 steps each
        ("mapping", {"measurements": 9}, (1, 4)),  # whole missions of 8 steps
        ("spread", {"runs": 2}, (1, 32)),
    ],
)
def test_whole_rounds_are_timed_and_nothing_else_changes(
    env: str, changes: dict[str, Any], rounds: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set()
    whole = automatic._time_rounds

    def time_rounds(turn: Any, *rounds: int) -> tuple[int, float]:
        asked.add(rounds)
        return whole(turn, *rounds)

    monkeypatch.setattr(automatic, "_time_rounds", time_rounds)
    config = configure(env, sizes(env, changes.get("learner")), changes)
    before = torch.get_rng_state()
    sweep = sweep_worlds(config, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert asked == {rounds}
    assert all(sweep.rates[worlds] > 0 for worlds in (1, 2))


@pytest.mark.usefixtures("quick")
def test_a_rate_counts_all_agents_of_all_worlds_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "_time_rounds", lambda turn, turns, least: (least, 2.0))
    settings = {**sizes("leader_follower"), "followers": 2, "runs": 2, "world_steps": 4, "interval": 2, "ratio": 3}
    sweep = sweep_worlds(configure("leader_follower", settings), 2)
    assert sweep.rates == {1: 4 * 8 * 3 * 2 / 2.0, 2: 2 * 4 * 8 * 3 * 2 / 2.0}  # rounds, steps, agents, runs, seconds
