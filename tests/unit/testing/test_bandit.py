"""The task of one step: rewards on paper, and the contract of an environment."""

from dataclasses import replace

import pytest
import torch

from uavlab.core.types import EnvSpec, MapObs
from uavlab.testing import check_env
from uavlab.testing.learner import Bandit, Turn


@pytest.mark.parametrize("env", [Bandit(), Bandit("vectors"), Bandit("maps")], ids=lambda env: env.moves)
def test_it_is_an_environment_of_one_step(env: Bandit) -> None:
    report = check_env(env, worlds=3, steps=4)
    assert (report.started, report.terminated, report.truncated) == (45, 36, 0)  # 3 rollouts of 3 worlds, 4 steps each
    assert report.effect[0] == 0.0  # observations are constant
    assert report.effect[1] > 0.0


class Teamless(Bandit):
    """Moves without maps of the team."""

    @property
    def spec(self) -> EnvSpec:
        return replace(super().spec, team=0)

    def observe(self, state: Turn) -> MapObs:
        obs = super().observe(state)
        return replace(obs, team=None)


def test_observations_that_are_not_there_have_no_size() -> None:
    assert check_env(Teamless("maps"), worlds=3, steps=4).observations == (1.0, 1.0, 1.0)


def test_rewards_fall_with_the_distance_to_the_best_action() -> None:
    env = Bandit()
    state = env.initial(torch.zeros(2, 1))
    action = torch.tensor([[[0.5], [-1.0]], [[1.0], [9.0]]])  # 9 acts as 1 does
    assert env.reward(state, action, state).tolist() == [[0.0, -15.0], [-5.0, -5.0]]


@pytest.mark.parametrize("moves", ["vectors", "maps"])
def test_one_move_is_the_best(moves: str) -> None:
    env = Bandit(moves)
    state = env.initial(torch.zeros(2, 1))
    assert env.reward(state, torch.tensor([[2, 0], [3, 1]]), state).tolist() == [[0.0, -10.0], [-10.0, -10.0]]
    assert env.observe(state).legal.all()


def test_no_agent_closes_a_move_of_another_one() -> None:
    env = Bandit("maps")
    cells = env.observe(env.initial(torch.zeros(2, 1))).target_cell[0]
    assert len(cells.unique()) == cells.numel()
