"""Which agent uses which network."""

import dataclasses

import pytest
import torch

from uavlab.core.errors import ConfigError
from uavlab.core.types import EnvSpec, Group, team_spec
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.nets.assignment import assign_networks
from uavlab.nets.mlp import by_network, members, of_agents, per_agent


def test_labels_of_groups_are_only_labels():
    spec = dataclasses.replace(LeaderFollower(followers=2).spec, groups=(7, 3, 3))
    assert assign_networks(spec, spec, share=True) == (1, 0, 0)  # rows in the order of the labels
    more = dataclasses.replace(spec, agents=4, groups=(7, 3, 3, 3))
    assert assign_networks(spec, more, share=True) == (1, 0, 0, 0)
    assert assign_networks(spec, spec, share=False) == (0, 1, 2)
    assert assign_networks(spec, more, share=False) == (0, 1, 1, 1)  # the first agent of each group lends its network


def test_agents_get_their_networks_rows() -> None:
    rows = torch.arange(12.0).view(6, 2)  # two runs of three networks
    assert per_agent(rows, 2, (2, 0, 0)).tolist() == [[[4, 5], [0, 1], [0, 1]], [[10, 11], [6, 7], [6, 7]]]
    assert per_agent(rows, 2, (1,)).tolist() == [[[2, 3]], [[8, 9]]]
    assert per_agent(rows.view(6, 2, 1), 2, (1, 2)).shape == (2, 2, 2, 1)


def test_neighbours_are_not_copied() -> None:
    rows = torch.arange(12.0).view(6, 2)
    for networks, copied in (((0, 1, 2), False), ((1,), False), ((1, 2), False), ((0, 0), True), ((2, 1, 0), True)):
        table = per_agent(rows, 2, networks)
        assert (table.untyped_storage().data_ptr() != rows.untyped_storage().data_ptr()) == copied
        assert torch.equal(table, rows.view(2, 3, 2)[:, list(networks)])


def test_groups_are_summed_averaged_and_expanded_by_hand() -> None:
    x, networks = torch.tensor([[[1.0, 2.0], [3.0, 5.0], [7.0, 1.0]]]), (1, 0, 1)
    assert by_network(torch.sum, x, networks).tolist() == [[[3, 5], [8, 3]]]
    assert by_network(torch.mean, x, networks).tolist() == [[[3, 5], [4, 1.5]]]
    assert of_agents(by_network(torch.sum, x, networks), networks).tolist() == [[[8, 3], [3, 5], [8, 3]]]
    assert members(networks, 1) == (0, 2)
    for own in (by_network(torch.sum, x, (0, 1, 2)), of_agents(x, (0, 1, 2))):
        assert own is x  # no operator where each agent has its own


def pair_spec(first: int, second: int) -> EnvSpec:
    """Return a team of two groups that see so many features."""
    groups = (Group("first", 2, obs=first, action=1), Group("second", 1, obs=second, action=2))
    return team_spec(*groups, horizon=5, initial_noise=1)


def test_a_narrow_group_that_sees_more_is_refused() -> None:
    trained = pair_spec(8, 12)
    assert assign_networks(trained, pair_spec(8, 12), share=True) == (0, 0, 1)
    with pytest.raises(ConfigError, match=r"group 0 \(8 observations, 1 actions\).*group 0 \(10 observations"):
        assign_networks(trained, pair_spec(10, 12), share=True)  # the widest group is the same
    with pytest.raises(ConfigError, match=r"padded to 12 and 2, to be used with .*, padded to 13 and 2"):
        assign_networks(trained, pair_spec(8, 13), share=True)
