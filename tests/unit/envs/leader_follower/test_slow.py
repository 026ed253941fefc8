"""The task with a delay equals the one without, except for the host's time."""

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import TINY
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.types import Transition, leaves
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.envs.leader_follower.env import LeaderFollower, SlowLeaderFollower, rank, waits
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.runtime import wrappers

VARIANT: dict[str, Any] = {
    "followers": 2,
    "obstacles": 3,
    "sight": 2,
    "obstacle_speed": 9.0,
    "lagged": True,
    "horizon": 9,
}


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record durations of sleep instead of sleeping."""
    durations: list[float] = []
    monkeypatch.setattr(time, "sleep", durations.append)
    return durations


def flight(env: LeaderFollower) -> Transition:
    generator = torch.Generator().manual_seed(5)
    spec = env.spec
    worlds = start_worlds(env, torch.rand(6, spec.initial_noise, generator=generator))
    pool = make_pool(env, torch.rand(4, 6, spec.initial_noise, generator=generator))
    for _ in range(30):
        action = 2 * torch.rand(6, spec.agents, 2, generator=generator) - 1
        worlds, row = advance(env, worlds, action, torch.zeros(6, 0), pool)
    return row


@pytest.mark.parametrize("step_ms", [0.0, 2.5])
def test_steps_equal_those_without_a_delay_bit_for_bit(naps: list[float], step_ms: float) -> None:
    late, fast = flight(SlowLeaderFollower(**VARIANT, step_ms=step_ms)), flight(LeaderFollower(**VARIANT))
    for (name, a), (_, b) in zip(leaves(late), leaves(fast), strict=True):
        assert torch.equal(a, b), name
    assert naps == ([0.0025] * 30 if step_ms else [])  # once per step, however many worlds there are


def test_random_pauses_have_their_mean_and_change_no_result(naps: list[float]) -> None:
    late, fast = flight(SlowLeaderFollower(**VARIANT, step_ms=1.0, pause_ms=4.0)), flight(LeaderFollower(**VARIANT))
    for (name, a), (_, b) in zip(leaves(late), leaves(fast), strict=True):
        assert torch.equal(a, b), name
    env = SlowLeaderFollower(step_ms=1.0, pause_ms=4.0)
    state = env.initial(torch.rand(1, env.spec.initial_noise))
    for _ in range(2000):
        env.transition(state, torch.zeros(1, 2, 2), torch.zeros(1, 0))
    mean = sum(naps) / len(naps)
    spread = (sum((nap - mean) ** 2 for nap in naps) / len(naps)) ** 0.5
    assert min(naps) >= 0.001
    assert mean == pytest.approx(0.005, rel=0.1)  # 1 ms and 4 ms; the standard error is 2 %
    assert spread == pytest.approx(0.004, rel=0.15)  # an exponential distribution is as wide as its mean


def test_each_rank_waits_in_its_own_way(naps: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    waits.cache_clear()
    env = SlowLeaderFollower(step_ms=1.0, pause_ms=1.0, rank_ms=10.0)
    state = env.initial(torch.rand(1, env.spec.initial_noise))
    for text in ("0", "2", "0", "x"):
        monkeypatch.setenv("RANK", text)
        env.transition(state, torch.zeros(1, 2, 2), torch.zeros(1, 0))
    draws = [random.Random(number).expovariate(1.0) for number in (0, 2)]
    assert naps[:2] == [pytest.approx((1 + draws[0]) / 1e3), pytest.approx((21 + draws[1]) / 1e3)]
    assert draws[0] != draws[1]
    assert naps[2] != naps[0]  # the next draw of the same rank
    assert rank() == 0  # what is no number counts as no rank


def test_it_is_the_same_task_with_more_settings() -> None:
    assert ENVIRONMENTS["slow_leader_follower"].kind is SlowLeaderFollower
    config = configure("slow_leader_follower", {"step_ms": 3.0, "eval_step_ms": 0.0, "followers": 3})
    assert config.env == SlowLeaderFollower(followers=3, step_ms=3.0)
    assert config.evaluation == SlowLeaderFollower(followers=3, step_ms=0.0)
    assert config.env.spec == LeaderFollower(followers=3).spec
    assert SlowLeaderFollower.score is LeaderFollower.score


def test_training_waits_and_its_evaluation_does_not(naps: list[float]) -> None:
    values = {**TINY, "step_ms": 4.0, "eval_step_ms": 0.0}
    run = Run(configure("slow_leader_follower", values))
    surveyed = len(naps)
    for _ in run.train():
        pass
    assert naps[surveyed:] == [0.004] * run.source.steps
    fast = Run(configure("leader_follower", TINY))
    for _ in fast.train():
        pass
    assert (run.digest, run.best_score.tolist()) == (fast.digest, fast.best_score.tolist())


def test_a_graph_that_would_leave_the_time_out_is_refused(monkeypatch: pytest.MonkeyPatch, naps: list[float]) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    state: Any = SimpleNamespace(step=SimpleNamespace(is_cuda=True))
    with pytest.raises(RuntimeError, match=r"^step_ms keeps the host waiting"):
        SlowLeaderFollower().transition(state, torch.zeros(1, 2, 2), torch.zeros(1, 0))
    assert naps == []


def test_compilation_that_would_leave_the_time_out_falls_back() -> None:
    reasons: list[str] = []
    env = SlowLeaderFollower(step_ms=0.1)
    state = env.initial(torch.rand(3, env.spec.initial_noise))
    fast = wrappers.compile_function(env.transition, "environment", "default", reasons.append)
    for _ in range(2):
        state = fast(state, torch.zeros(3, 2, 2), torch.zeros(3, 0))
    assert len(reasons) == 1
    assert reasons[0].startswith("environment: ")
