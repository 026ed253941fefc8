"""Spaces and arrays of small teams, by hand, and actions that are in no space."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import uavlab as ul
from tests.support.mortal import Mortal
from tests.support.uneven import Uneven
from tests.unit.interop.test_agents import MAPS
from uavlab.core.errors import ConfigError
from uavlab.interop.gymnasium import (
    LARGEST,
    agent_action_space,
    agent_arrays,
    agent_observation_space,
    arrays,
    bare,
    require_action,
    team_action_space,
    team_observation_space,
)


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-LARGEST, LARGEST, shape, np.float32)


def mask(*shape: int) -> spaces.Box:
    return spaces.Box(0, 1, shape, np.int8)


def test_spaces_of_agents_have_no_padding() -> None:
    assert [agent_observation_space(Uneven.spec, n) for n in range(3)] == [box(2), box(2), box(3)]
    assert [agent_action_space(Uneven.spec, n).shape for n in range(3)] == [(2,), (2,), (3,)]
    assert agent_observation_space(Mortal.spec, 0) == spaces.Dict({"observation": box(2), "action_mask": mask(2)})
    assert agent_observation_space(Mortal.spec, 1) == spaces.Dict({"observation": box(3), "action_mask": mask(3)})
    assert [agent_action_space(Mortal.spec, n) for n in range(3)] == [spaces.Discrete(n) for n in (2, 3, 3)]


def test_spaces_of_teams_are_as_wide_as_the_widest_group() -> None:
    assert team_observation_space(Uneven.spec) == box(3, 3)
    assert team_action_space(Uneven.spec) == spaces.Box(-1, 1, (3, 3), np.float32)
    assert team_observation_space(Mortal.spec) == spaces.Dict({"observation": box(3, 3), "action_mask": mask(3, 3)})
    assert team_action_space(Mortal.spec) == spaces.MultiDiscrete([2, 3, 3])


def test_spaces_of_maps() -> None:
    agent = {"observation": box(3, 5, 5), "features": box(6), "action_mask": mask(4)}
    assert agent_observation_space(MAPS, 1) == spaces.Dict(agent)
    team = {"observation": box(2, 3, 5, 5), "features": box(2, 6), "action_mask": mask(2, 4), "state": box(2, 5, 5)}
    assert team_observation_space(MAPS) == spaces.Dict(team)


def test_arrays_of_observations() -> None:
    obs = ul.ChoiceObs(torch.arange(9.0).view(1, 3, 3), torch.eye(3, dtype=torch.bool)[None])
    parts = arrays(Mortal.spec, obs)
    assert parts["observation"].tolist() == [[[0, 1, 2], [3, 4, 5], [6, 7, 8]]]
    assert parts["action_mask"].dtype == np.int8
    own = agent_arrays(Mortal.spec, parts, 0)
    assert (own["observation"].tolist(), own["action_mask"].tolist()) == ([0, 1], [1, 0])
    assert agent_arrays(Mortal.spec, parts, 2)["action_mask"].tolist() == [0, 0, 1]
    assert bare({"observation": 3}) == 3
    assert bare({"observation": 3, "state": 4}) == {"observation": 3, "state": 4}


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (spaces.Discrete(3), 2, 2),
        (spaces.Discrete(3), torch.tensor(1), 1),
        (spaces.Discrete(3), np.int32(0), 0),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [1, 2]),
        (spaces.Box(-1, 1, (2,), np.float32), [1, -1.0], [1, -1]),
        (spaces.Box(-1, 1, (2,), np.float32), np.array([0.5, 0.25]), [0.5, 0.25]),
    ],
)
def test_an_action_is_an_array_of_the_type_of_its_space(space: spaces.Space, action: Any, expected: Any) -> None:
    array = require_action("here", action, space)
    assert (array.dtype, array.tolist()) == (space.dtype, expected)


@pytest.mark.parametrize("action", [3, -1, 1.0, "x", None, [1], [[1], [1, 2]], torch.tensor(1.0, requires_grad=True)])
def test_a_move_that_is_none_is_refused(action: Any) -> None:
    with pytest.raises(ConfigError, match=r"here: got the action .*; expected one in Discrete\(3\)\."):
        require_action("here", action, spaces.Discrete(3))


@pytest.mark.parametrize("action", [[1.5, 0], [0], [[0, 0]], [float("nan"), 0], ["a", "b"], 0.5])
def test_a_continuous_action_that_is_none_is_refused(action: Any) -> None:
    with pytest.raises(ConfigError, match=r"here: got the action .*; expected one in Box\(-1\.0, 1\.0, \(2,\)"):
        require_action("here", action, spaces.Box(-1, 1, (2,), np.float32))
