"""Which agent has which network, in each form in which networks are held."""

import dataclasses

import torch

from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.learners.masac.networks import (
    assign_networks,
    by_network,
    list_tensors,
    map_tensors,
    members,
    of_agents,
    per_agent,
)


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


def test_every_form_is_walked() -> None:
    one, two, three = (torch.tensor(float(n)) for n in (1, 2, 3))
    for theta, count in ((one, 1), ([one, two], 2), ([[one, two], [three]], 3)):
        assert [tensor.item() for tensor in list_tensors(theta)] == [1.0, 2.0, 3.0][:count]
        doubled = map_tensors(lambda tensor: 2 * tensor, theta)
        assert [tensor.item() for tensor in list_tensors(doubled)] == [2.0, 4.0, 6.0][:count]
    assert [len(part) for part in map_tensors(torch.neg, [[one, two], [three]])] == [2, 1]


def test_groups_are_summed_averaged_and_expanded_by_hand() -> None:
    x, networks = torch.tensor([[[1.0, 2.0], [3.0, 5.0], [7.0, 1.0]]]), (1, 0, 1)
    assert by_network(torch.sum, x, networks).tolist() == [[[3, 5], [8, 3]]]
    assert by_network(torch.mean, x, networks).tolist() == [[[3, 5], [4, 1.5]]]
    assert of_agents(by_network(torch.sum, x, networks), networks).tolist() == [[[8, 3], [3, 5], [8, 3]]]
    assert members(networks, 1) == (0, 2)
    for own in (by_network(torch.sum, x, (0, 1, 2)), of_agents(x, (0, 1, 2))):
        assert own is x  # no operator where each agent has its own
