"""Teams of groups that differ: their description, padding, and what is refused."""

from dataclasses import replace

import pytest
import torch

from uavlab.core.errors import ConfigError
from uavlab.core.types import EnvSpec, Group, join_groups, own_actions, padded_actions, split_groups, team_spec

HUNTERS, PREY = Group("hunters", 2, obs=4, action=2), Group("prey", 1, obs=3, action=3)
TAG = team_spec(HUNTERS, PREY, horizon=9, dt=0.5, initial_noise=6, step_noise=1)


def test_the_widest_group_sets_the_widths() -> None:
    assert (
        EnvSpec(3, 4, 3, horizon=9, dt=0.5, initial_noise=6, step_noise=1, groups=(0, 0, 1), parts=(HUNTERS, PREY))
        == TAG
    )
    moves = team_spec(Group("a", 1, obs=2, choices=4), Group("b", 1, obs=5, choices=3), horizon=1, initial_noise=1)
    assert (moves.obs, moves.action, moves.choices, moves.groups) == (5, 1, 4, (0, 1))


def test_agents_that_share_nothing_have_labels_of_their_own() -> None:
    spec = team_spec(replace(HUNTERS, share=False), PREY, Group("c", 2, obs=1, action=1), horizon=1, initial_noise=1)
    assert spec.groups == (0, 1, 2, 3, 3)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ((), "expected at least one"),
        ((HUNTERS, HUNTERS), "each with a name of its own"),
        ((replace(HUNTERS, agents=0),), "agents and obs of at least 1"),
        ((replace(HUNTERS, choices=4),), "either action or choices"),
        ((replace(HUNTERS, action=0),), "either action or choices"),
        ((HUNTERS, Group("prey", 1, obs=3, choices=4)), "continuous actions and others choose moves"),
    ],
)
def test_what_is_no_team_is_refused(groups: tuple[Group, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        team_spec(*groups, horizon=9, initial_noise=6)


def test_values_are_joined_and_padded() -> None:
    rewards = join_groups(TAG, {"prey": torch.tensor([[3.0]]), "hunters": torch.tensor([[1.0, 2.0]])})
    assert rewards.tolist() == [[1, 2, 3]]  # in the order of the team
    obs = join_groups(TAG, {"hunters": torch.ones(5, 2, 4), "prey": torch.ones(5, 1, 3)})
    assert obs[0].tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]]
    legal = join_groups(TAG, {"hunters": torch.ones(1, 2, 1).bool(), "prey": torch.ones(1, 1, 2).bool()})
    assert legal.tolist() == [[[True, False], [True, False], [True, True]]]


@pytest.mark.parametrize(
    "values",
    [
        {"hunters": torch.ones(5, 2)},
        {"hunters": torch.ones(5, 2), "pray": torch.ones(5, 1)},
        {"hunters": torch.ones(5, 2), "prey": torch.ones(5, 2)},
        {"hunters": torch.ones(5, 2), "prey": torch.ones(5, 1), "birds": torch.ones(5, 1)},
    ],
)
def test_groups_that_do_not_fit_are_refused(values: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ConfigError, match=r"expected hunters \(B, 2, ...\), prey \(B, 1, ...\)"):
        join_groups(TAG, values)


def test_splitting_returns_views() -> None:
    action = torch.arange(6.0).view(1, 3, 2)
    parts = split_groups(TAG, action)
    assert (parts["hunters"].tolist(), parts["prey"].tolist()) == ([[[0, 1], [2, 3]]], [[[4, 5]]])
    assert parts["prey"].data_ptr() == action[:, 2:].data_ptr()


def test_what_each_agent_does() -> None:
    assert own_actions(TAG) == (2, 2, 3)
    moves = team_spec(Group("a", 2, obs=2, choices=4), Group("b", 1, obs=5, choices=3), horizon=1, initial_noise=1)
    assert own_actions(moves) == (4, 4, 3)
    assert own_actions(replace(TAG, parts=())) == (3, 3, 3)
    assert own_actions(replace(moves, parts=())) == (4, 4, 4)


def test_padding_of_actions() -> None:
    place = torch.device("cpu")
    padding = padded_actions(TAG, place)
    assert padding is not None
    assert padding.tolist() == [[False, False, True], [False, False, True], [False, False, False]]
    alone = padded_actions(replace(TAG, agents=1, groups=(0,), parts=(replace(HUNTERS, agents=1),)), place)
    assert alone is not None  # a team of one that is narrower than the team it was trained in
    assert alone.tolist() == [[False, False, True]]
    moves = team_spec(Group("a", 1, obs=2, choices=4), Group("b", 1, obs=5, choices=3), horizon=1, initial_noise=1)
    even = team_spec(HUNTERS, replace(PREY, action=2), horizon=9, initial_noise=6)
    assert [padded_actions(spec, place) for spec in (moves, even, replace(TAG, parts=()))] == [None] * 3
