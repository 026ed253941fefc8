"""The published reward by hand, against plain Python, and what a mistake would change."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.python_assignment import World
from tests.unit.envs.target_assignment.test_env import EXACT, LEVELS, legal_move, noise_of
from uavlab.envs.target_assignment import env as module
from uavlab.envs.target_assignment.env import Assignment, State

ENV = Assignment(uavs=(4, 4), targets=(1, 1), obstacles=(0, 0), rewards="published", sectors=1)


def scene() -> State:
    """Four UAVs within 200 m of a target that needs 40 and 60, which two of them serve one after the other."""
    drawn = ENV.initial(noise_of(ENV, 1, seed=0))
    place = torch.tensor([[[0, 0], [100, 0], [150, 0], [0, 150], [100, 100]]], dtype=torch.float64)
    legs = ENV.legs(place, drawn.obstacle)
    return replace(
        drawn,
        pos=place,
        at=place[:, :4],
        way=legs[:, :4],
        leg=legs[:, 4:],
        ideal=torch.full((1, 1), 2.0, dtype=torch.float64),
        demand=torch.tensor([[[40.0, 60.0]]], dtype=torch.float64),
        rest=torch.tensor([[[40.0, 60.0]]], dtype=torch.float64),
        own=torch.tensor([[[30.0, 30.0], [10.0, 40.0], [5.0, 5.0], [5.0, 5.0]]], dtype=torch.float64),
        left=torch.full((1, 4), 1000.0, dtype=torch.float64),
        speed=torch.full((1, 4), 25.0, dtype=torch.float64),
        legal=torch.ones(1, 4, 1, 1, dtype=torch.bool),
    )


def decide(state: State, uav: int) -> tuple[float, State]:
    action = torch.tensor([[uav]])
    after = ENV.transition(state, action, torch.zeros(1, 0))
    return float(ENV.reward(state, action, after)), after


def check_by_hand() -> None:
    """UAV 0 flies 20 m beside the middle of the target, of which it gives 0.6; UAV 1 then gives the rest."""
    start = scene()
    first, after = decide(start, 0)
    way = ((120 - 0) ** 2 + 100**2) ** 0.5 + 20
    gain = 10 + 40 * 0.6 + 15 * 0.6**0.5 + 10 * 0.3 + 5  # the first UAV there, nothing is satisfied
    crowd = (1.5 * (3 / 2 - 1) + 0.5 * (3 - 2)) / 3  # 3 UAVs are active, of which 2 would do; 3 are within 200 m
    assert first == pytest.approx(gain * (1 - 0.03 - 0.02 * way / 1000 - 0.02 - 0.01 * way / 1000) - crowd)
    second, end = decide(after, 1)
    way = ((120 - 100) ** 2 + 100**2) ** 0.5 + 20
    gain = 100 + 10 + 40 * 0.4 + 15 * 0.4**0.5 + 10 * 0.1 + (0.5 + 1 + 1.5 + 2) + 0.2  # past all milestones at once
    crowd = (1.5 * (3 / 2 - 1) + 0.5 * (3 - 2)) / 3  # two UAVs are ideal for a demand of 60
    assert second == pytest.approx(gain * (1 - 0.05 - 0.03 * way / 1000) - crowd + 200)
    assert decide(end, 2)[0] == 0


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMITS", (-10.0, 1000.0))


def test_two_decisions_by_hand(wide: None) -> None:
    check_by_hand()


def test_a_reward_is_clipped() -> None:
    first, after = decide(scene(), 0)
    assert (first < 300, decide(after, 1)[0]) == (True, 300)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("SATISFIED", 99.0), ("ALL", 0.0), ("FIRST", 0.0), ("PROGRESS", 0.0), ("DISTANCE", (0.03, 0.03))),
        *(("TIME", (0.03, 0.03)), ("SURPLUS", 0.0), ("NEIGHBOUR", 0.0), ("APART", 105.0), ("MILESTONES", {0.5: 1.0})),
    ],
)
def test_other_numbers_are_noticed(wide: None, name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, value)
    with pytest.raises(AssertionError):
        check_by_hand()


def check_reference(level: str) -> None:
    env, dice = replace(LEVELS[level], rewards="published", load=30.0, ideal_limit=1), random.Random(2)
    noise = noise_of(env, 10, seed=3)
    state, twins = env.initial(noise), [World(env, row) for row in noise.tolist()]
    while not all(twin.ended() for twin in twins):
        action = torch.tensor([[legal_move(twin.moves(), dice)] for twin in twins])
        after = env.transition(state, action, noise[:, :0])
        expected = [twin.step(int(move)) for twin, move in zip(twins, action, strict=True)]
        reward = env.reward(state, action, after)
        torch.testing.assert_close(reward[:, 0], torch.tensor(expected, dtype=torch.float64), **EXACT)
        state = after


@pytest.mark.parametrize("level", LEVELS)
def test_a_batch_equals_the_reference(level: str) -> None:
    check_reference(level)


def without_congestion(real: Callable) -> Callable:
    return lambda env, state, after: real(env, state, replace(after, served=state.served))


def always_first(real: Callable) -> Callable:
    return lambda env, state, after: real(env, replace(state, served=torch.zeros_like(state.served)), after)


@pytest.mark.parametrize("broken", [without_congestion, always_first])
def test_mistakes_are_noticed(broken: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "published_reward", broken(module.published_reward))
    with pytest.raises(AssertionError, match="not close"):
        check_reference("medium")
