"""Worlds with fewer followers and obstacles than slots are worlds of fewer, and the absent are never live."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.envs.leader_follower.env import AREA, LeaderFollower
from uavlab.evaluation import Planner, episodes
from uavlab.experiment.config import configure

SLOTS = LeaderFollower(
    followers=3, obstacles=4, sight=2, obstacle_speed=20.0, match_speed=100.0, crash_radius=40.0, present=(0, 3),
    present_obstacles=(2, 4), horizon=40,
)  # fmt: skip
WORLDS = 32


def smaller(noise: Tensor, followers: int, obstacles: int) -> tuple[LeaderFollower, Tensor, LeaderFollower, Tensor]:
    """Return a task with absent slots and its noise, and the task of fewer slots with the noise of the same worlds."""
    few = replace(SLOTS, followers=followers, obstacles=obstacles, present=None, present_obstacles=None)
    many = replace(SLOTS, present=(followers,) * 2, present_obstacles=(obstacles,) * 2)
    agents, goal, block, _ = noise.split([16, 2, 12, 2], 1)
    return many, noise, few, torch.cat((agents[:, : 4 * (followers + 1)], goal, block[:, : 3 * obstacles]), 1)


def compare(followers: int, obstacles: int, steps: int = 25) -> None:
    """Step both tasks by the same actions, and compare everything that one sees, gets and is scored by."""
    torch.manual_seed(0)
    many, noise, few, own = smaller(torch.rand(WORLDS, SLOTS.spec.initial_noise), followers, obstacles)
    padded, plain, there = many.initial(noise), few.initial(own), slice(0, followers + 1)
    for _ in range(steps):
        action = 2 * torch.rand(WORLDS, 4, 2) - 1
        after = many.transition(padded, action, noise[:, :0])
        after_plain = few.transition(plain, action[:, there], own[:, :0])
        reward = many.reward(padded, action, after)
        pairs = {
            "observe": (many.observe(after)[:, there], few.observe(after_plain)),
            "reward": (reward[:, there], few.reward(plain, action[:, there], after_plain)),
            "terminated": (many.terminated(after)[:, there], few.terminated(after_plain)),
        }
        measured = [
            env.measure(*each)
            for env, each in ((many, (padded, action, after)), (few, (plain, action[:, there], after_plain)))
        ]
        pairs |= {name: (measured[0][name], measured[1][name]) for name in measured[0]}
        for name, (one, other) in pairs.items():
            torch.testing.assert_close(one, other, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")
        assert not many.observe(after)[:, followers + 1 :].any()
        assert not reward[:, followers + 1 :].any()
        assert bool(many.terminated(after)[:, followers + 1 :].all())
        padded, plain = after, after_plain


@pytest.mark.parametrize(("followers", "obstacles"), [(0, 2), (1, 2), (2, 4), (3, 3)])
def test_a_world_of_fewer_is_the_smaller_task(followers: int, obstacles: int) -> None:
    compare(followers, obstacles)


def no_mask(self: LeaderFollower, state: Any) -> Tensor:
    return torch.ones_like(state.speed, dtype=torch.bool)


def brought_back(self: LeaderFollower, state: Any) -> tuple[Tensor, Tensor]:
    low, high = torch.tensor(AREA).view(2, 2)
    place = state.obstacle + state.drift * self.dt
    return place.clamp(low, high), torch.where((place < low) | (place > high), -state.drift, state.drift)


@pytest.mark.parametrize(("name", "broken"), [("takes_part", no_mask), ("_move_obstacles", brought_back)])
def test_an_absent_one_that_has_an_effect_is_seen(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(LeaderFollower, name, broken)
    with pytest.raises(AssertionError):
        compare(1, 2)


def test_numbers_are_drawn_within_their_limits() -> None:
    state = SLOTS.initial(torch.rand(2000, SLOTS.spec.initial_noise, generator=torch.Generator().manual_seed(0)))
    followers, obstacles = SLOTS.takes_part(state)[:, 1:].sum(1), (state.obstacle[..., 0] < 1000).sum(1)
    assert followers.unique().tolist() == [0, 1, 2, 3]
    assert obstacles.unique().tolist() == [2, 3, 4]
    assert int(followers.bincount().min()) > 400


def test_the_absent_are_never_live() -> None:
    env = replace(SLOTS, present=(0, 2), horizon=5)
    rng = Streams([0])
    noise = rng.uniform("worlds", WORLDS, env.spec.initial_noise)[0]
    worlds = start_worlds(env, noise, deaths=True)
    pool = make_pool(env, rng.uniform("pool", 3, WORLDS, env.spec.initial_noise)[0])
    replaced = 0
    for _ in range(12):
        assert worlds.live is not None
        there = env.takes_part(worlds.state)
        assert torch.equal(worlds.live, there)  # nobody's task ends before the world does
        action = torch.zeros(WORLDS, 4, 2)
        worlds, row = advance(env, worlds, action, noise[:, :0], pool)
        assert torch.equal(row.live, there)  # type: ignore[attr-defined]
        replaced = int(worlds.replaced.sum())
    assert replaced > WORLDS


def test_without_settings_nothing_is_drawn_and_nobody_is_absent() -> None:
    env = LeaderFollower(followers=2)
    assert (env.spec.deaths, env.spec.initial_noise) == (False, 4 * 3 + 2 + 3)
    assert bool(env.takes_part(env.initial(torch.rand(5, env.spec.initial_noise))).all())


def test_the_plan_flies_whoever_is_there() -> None:
    env = replace(SLOTS, obstacle_speed=0.0, crash_radius=20.0, horizon=200)
    plan = configure("leader_follower").task.environment.baselines["steer"]
    figures = episodes(env, Planner(plan), Streams([0]), 50)
    assert float(figures["completion"].mean()) > 0.9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"present": [0, 2]}, "present .0, 2.: expected fewest and most of the 1 followers"),
        ({"present": [1, 0]}, "present .1, 0.: expected fewest and most"),
        ({"present_obstacles": [0, 3]}, "present_obstacles .0, 3.: expected fewest and most of the 1 obstacles"),
    ],
)
def test_numbers_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure("leader_follower", changes)


def test_all_may_be_absent() -> None:
    env = configure("leader_follower", {"present": [0, 1], "present_obstacles": [0, 1]}).env
    state = env.initial(torch.zeros(1, env.spec.initial_noise))
    assert env.takes_part(state).tolist() == [[True, False]]
    assert float(state.clearance.min()) > 1000  # px, farther than any obstacle that is there
