"""Environments of Gymnasium are parallel ones of one agent, or of several where their spaces are tuples."""

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.foreign import Spot, Tuples, acting_in, step_once
from uavlab.workers.spaces import Refusal
from uavlab.workers.team import Adapter, Team, make

HERE = "tests.support.foreign"


def test_tuples_of_one_length_are_a_team() -> None:
    env = make("factory", HERE, "Tuples", {})
    assert not env.single
    assert [(a.name, a.group, a.obs, a.choices) for a in Team(env).describe().agents] == [
        ("agent_0", "agent", 2, 3), ("agent_1", "agent", 2, 3)
    ]  # fmt: skip
    rows = step_once(env, moves=[0, 2])
    assert rows.obs[0].tolist() == [[np.float32(0.1)] * 2, [np.float32(0.2)] * 2]
    assert rows.reward[0].tolist() == [1, 3]  # moves count from 1
    assert rows.legal[0].tolist() == [[True, True, False], [False, False, True]]
    assert step_once(make("factory", HERE, "Tuples", {"shared": True}), moves=[0, 2]).reward[0].tolist() == [4, 4]
    with pytest.raises(Refusal, match="reward has 1 parts; expected 2: return one for each agent"):
        step_once(Adapter(Tuples(parts=1)))


def test_an_agent_of_a_tuple_that_has_ended_does_its_first_move() -> None:
    rows = step_once(Adapter(Tuples()), moves=[2, 2], steps=4)  # the first agent ends with the fourth step
    assert rows.end[0].tolist() == [1, 2]
    acts = Adapter(Tuples())
    acts.reset(seed=0)
    assert [*acts.step({"agent_1": 3})[1].values()] == [1, 3]


def test_other_tuples_are_one_agent() -> None:
    env = Adapter(Spot())
    assert (env.single, env.possible_agents) == (True, ("agent",))
    uneven = acting_in(spaces.Tuple((spaces.Discrete(2),) * 3))
    uneven.observation_space = spaces.Tuple((spaces.Discrete(2),) * 2)
    assert Adapter(uneven).single


def test_an_environment_is_closed() -> None:
    class Closed(Spot):
        count = 0

        def close(self) -> None:
            self.count += 1

    env = Closed()
    Adapter(env).close()
    assert env.count == 1


def test_masks_of_unlike_agents_and_uneven_infos() -> None:
    env = acting_in(spaces.Tuple((spaces.Discrete(3), spaces.Discrete(5))))
    env.observation_space = spaces.Tuple((spaces.Discrete(2),) * 2)
    info = {"action_mask": (np.ones(3, np.int8), np.ones(5, np.int8)), "near": [[1, 2], [3]]}
    env.reset = lambda seed=None, options=None: ((0, 0), info)
    team = Adapter(env)
    assert [mask["action_mask"].size for mask in team.reset(0)[1].values()] == [3, 5]
    assert [agent.choices for agent in Team(team).describe().agents] == [3, 5]
