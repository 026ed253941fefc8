"""Random actions are those of the task: within their range, padding 0, moves legal."""

import torch

from uavlab.collectors.off_policy import random_actions
from uavlab.core.rng import Streams
from uavlab.core.types import ChoiceObs, Group, team_spec

RNG = Streams([0, 1])


def test_actions_fill_their_range_and_padding_is_zero() -> None:
    spec = team_spec(Group("wide", 1, obs=3, action=2), Group("narrow", 1, obs=3, action=1), horizon=5, initial_noise=1)
    action = random_actions(spec, RNG, "explore", torch.zeros(2000, 2, 3))
    assert action.shape == (2000, 2, 2)
    assert action[:, 1, 1].abs().max() == 0
    for own in (action[:, 0, 0], action[:, 0, 1], action[:, 1, 0]):
        assert -1 <= own.min() < -0.98 < 0.98 < own.max() < 1


def test_moves_are_legal_and_all_of_them_occur() -> None:
    spec = team_spec(Group("team", 2, obs=3, choices=4), horizon=5, initial_noise=1)
    legal = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 1]], dtype=torch.bool).expand(1000, 2, 4)
    move = random_actions(spec, RNG, "explore", ChoiceObs(torch.zeros(1000, 2, 3), legal))
    assert [move[:, agent].unique().tolist() for agent in (0, 1)] == [[0, 2, 3], [3]]
    counts = move[:, 0].bincount()[[0, 2, 3]]
    assert (counts - 1000 / 3).abs().max() < 5 * (1000 / 3) ** 0.5
