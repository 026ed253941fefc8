"""Returns count agents that take part alone; without absent agents they are plain means."""

import torch

from uavlab.core.rng import Streams
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.envs.tally import live_at_start, may_lack_agents, mean_reward
from uavlab.evaluation import Planner, episodes
from uavlab.experiment.config import configure

SLOTS = LeaderFollower(followers=3, present=(1, 1))
ALL = LeaderFollower(followers=1)


def test_absent_agents_do_not_count() -> None:
    state = SLOTS.initial(torch.rand(2, SLOTS.spec.initial_noise))
    assert may_lack_agents(SLOTS)
    assert live_at_start(SLOTS, state, 2, torch.device("cpu")).tolist() == [[True, True, False, False]] * 2
    reward = torch.tensor([[1.0, 5.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0]])
    assert mean_reward(SLOTS, state, reward).tolist() == [3.0, 2.0]


def test_all_agents_count_where_none_can_be_absent() -> None:
    state = ALL.initial(torch.rand(2, ALL.spec.initial_noise))
    assert not may_lack_agents(ALL)
    assert mean_reward(ALL, state, torch.tensor([[1.0, 5.0], [2.0, 2.0]])).tolist() == [3.0, 2.0]


def test_returns_do_not_depend_on_empty_slots() -> None:
    plan = configure("leader_follower").task.environment.baselines["steer"]
    one, padded = (episodes(env, Planner(plan), Streams([0]), 200)["return"].mean() for env in (ALL, SLOTS))
    assert abs(one / padded - 1) < 0.2  # other worlds; a mean over slots would be half of it
