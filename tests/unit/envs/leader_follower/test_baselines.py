"""The plan by hand: ways past obstacles, turns and speeds; and what it reaches with detours and without."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.envs.leader_follower.test_env import Place, world
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.rng import Streams
from uavlab.envs.leader_follower import env as module
from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower, steer, way
from uavlab.evaluation import Planner, episodes, summary

ENV = LeaderFollower()
NOISE = torch.zeros(1, 2, dtype=torch.float64)
EAST, NORTH = 0.0, math.pi / 2


def act(*places: Place, **more: Any) -> Tensor:
    """Return the actions of a leader and followers, one row each."""
    state = world(*places, **more)
    return steer(ENV, state, NOISE)[0]


@pytest.mark.parametrize(
    ("obstacles", "turn"),
    [
        (((270, 300),), 0),  # behind
        (((350, 346),), 0),  # beside, farther than the margin
        (((476, 300),), 0),  # farther than the leader looks
        (((360, 310),), 4),  # 10 px to the right of the way: 42 px from it at 45 degrees to the left, 48 px at 60
        (((360, 290),), -4),
        (((360, 310), (330, 250)), -5),  # the left is not clear; to the right 38 px at 60 degrees, 46 px at 75
        (((360, 310), (330, 250), (330, 350)), 2),  # nothing is clear: 33 px on both sides at 30 degrees
    ],
)
def test_the_way_past_obstacles(obstacles: tuple[Place, ...], turn: int) -> None:
    state = world((310, 300), (290, 300), goal=(700, 300), obstacles=obstacles)
    assert way(state)[0].item() == pytest.approx(turn * math.pi / 12)


def test_the_leader_does_not_look_beyond_the_goal() -> None:
    obstacle = ((380, 300),)
    near, far = (way(world((310, 300), goal=(x, 300), obstacles=obstacle))[0].item() for x in (330, 440))
    assert near == 0 != far


@pytest.mark.parametrize(
    ("heading", "turn"),
    [(EAST, 0.0), (-0.3, 0.5), (0.3, -0.5), (NORTH, -1.0), (-NORTH, 1.0), (2 * math.pi - 0.3, 0.5)],
)
def test_the_leader_turns_to_the_goal_by_the_shorter_way(heading: float, turn: float) -> None:
    leader = act((310, 300), (290, 300), heading=heading, goal=(400, 300), obstacles=((600, 600),))[0]
    assert leader[1].item() == pytest.approx(turn)  # of 0.6 rad/s


def test_the_leader_slows_down_to_its_lowest_speed() -> None:
    actions = [
        act((310, 300), (290, 300), speed=(speed, 15.0), goal=(400, 300))[0, 0].item() for speed in (20, 10.15, 10)
    ]
    assert actions == pytest.approx([-1.0, -0.5, 0.0])  # of 0.3 px/s^2


def test_followers_aim_before_the_leader_and_arrive_at_its_speed() -> None:
    # 30 px behind: sqrt(2 x 0.6 x 30) = 6 px/s faster than the leader; to the right of its heading, so turn left.
    action = act((310, 300), (280, 300), (310, 330), speed=(10.0, 16.3, 15.4), heading=EAST, goal=(700, 300))
    assert action[1].tolist() == pytest.approx([-0.5, 0.0])
    assert action[2].tolist() == pytest.approx([1.0, math.atan2(30, 20) / 1.2])


def fly(env: LeaderFollower) -> dict[str, float]:
    """Return the mean figures of the plan in 100 episodes."""
    results = episodes(env, Planner(steer), Streams([0]), 100)
    return {name: figure["mean"] for name, figure in summary(results, env.metrics).items()}


@pytest.mark.parametrize(
    "env",
    [
        LeaderFollower(horizon=100),
        LeaderFollower(followers=4, horizon=100),
        LeaderFollower(obstacles=4, horizon=100),
        replace(PUBLISHED, horizon=600),
    ],
    ids=["default", "followers", "obstacles", "published"],
)
def test_the_team_arrives_in_formation(env: LeaderFollower) -> None:
    assert ENVIRONMENTS["leader_follower"].baselines == {"steer": steer}
    figures = fly(env)
    assert figures["completion"] >= 0.97
    assert figures["formation_mean"] >= 0.8


def test_without_detours_leaders_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    env = LeaderFollower(obstacles=4, horizon=100)
    lost = fly(env)["collision"]
    monkeypatch.setattr(module, "TURNS", (0.0,))
    assert fly(env)["collision"] > max(5 * lost, 0.1)
