"""Names, groups and widths of agents, by hand."""

import pytest

import uavlab as ul
from tests.support.mortal import Mortal
from uavlab.interop.simulator import agent_groups, agent_names, named, own_widths

TAG = ul.team_spec(ul.Group("hunters", 3, obs=12, action=2), ul.Group("prey", 1, obs=10, action=3), horizon=25,
                   initial_noise=8)  # fmt: skip
MIXED = ul.EnvSpec(4, obs=5, action=2, horizon=9, dt=1.0, initial_noise=1, step_noise=0, groups=(7, 3, 7, 3))
MAPS = ul.EnvSpec(2, obs=3, action=1, choices=4, side=5, features=6, team=2, horizon=9, dt=1.0, initial_noise=1,
                  step_noise=0, groups=(0, 0))  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "names", "groups"),
    [
        (TAG, "hunters_0 hunters_1 hunters_2 prey_0", {"hunters": (0, 1, 2), "prey": (3,)}),
        (Mortal.spec, "short_0 long_0 long_1", {"short": (0,), "long": (1, 2)}),
        (MIXED, "agent_0 agent_1 agent_2 agent_3", {"group_0": (0, 2), "group_1": (1, 3)}),
        (MAPS, "agent_0 agent_1", {"agents": (0, 1)}),
    ],
)
def test_names_and_groups(spec: ul.EnvSpec, names: str, groups: dict[str, tuple[int, ...]]) -> None:
    assert " ".join(agent_names(spec)) == names
    assert agent_groups(spec) == groups


def test_agents_of_a_group_that_do_not_share_a_network_stay_in_it() -> None:
    spec = ul.team_spec(ul.Group("a", 2, obs=1, action=1, share=False), horizon=2, initial_noise=1)
    assert spec.groups == (0, 1)
    assert agent_groups(spec) == {"a": (0, 1)}


@pytest.mark.parametrize(
    ("spec", "agent", "widths"),
    [
        (TAG, 0, {"observation": 12}),
        (TAG, 3, {"observation": 10}),
        (Mortal.spec, 0, {"observation": 2, "action_mask": 2}),
        (Mortal.spec, 2, {"observation": 3, "action_mask": 3}),
        (MIXED, 1, {"observation": 5}),
        (MAPS, 1, {"action_mask": 4}),  # maps have no padding
    ],
)
def test_widths(spec: ul.EnvSpec, agent: int, widths: dict[str, int]) -> None:
    assert own_widths(spec, agent) == widths


def test_parts_of_observations_have_names_for_others() -> None:
    assert named(TAG, {"": 1}) == {"observation": 1}
    assert named(Mortal.spec, {"features": 1, "legal": 2}) == {"observation": 1, "action_mask": 2}
    parts = {"maps": 1, "team": 2, "place": 3, "legal": 4, "target_cell": 5, "features": 6}
    assert named(MAPS, parts) == {"observation": 1, "state": 2, "action_mask": 4, "features": 6}
