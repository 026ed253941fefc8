"""PettingZoo's own checks pass without a warning, and worlds equal the slow twin, agent by agent."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence
from pettingzoo.utils import parallel_to_aec

import uavlab as ul
from tests.support.mortal import Mortal
from tests.support.plain_worlds import NAMES, PlainWorlds, random_action, small
from tests.support.uneven import Uneven
from uavlab.core.errors import ConfigError
from uavlab.interop.pettingzoo import TeamParallelEnv
from uavlab.interop.simulator import Simulator, agent_names

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the games that its tests import
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test

ABSENT = ul.make("leader_follower", followers=3, present=(1, 2), horizon=6)


def face(env: Any) -> TeamParallelEnv:
    return TeamParallelEnv(Simulator(env, 1, torch.device("cpu")))


def compare(env: Any, kind: type[TeamParallelEnv] = TeamParallelEnv) -> None:
    """Run three episodes beside the slow twin; spaces hold what agents see and do."""
    world, plain = kind(Simulator(env, 1, torch.device("cpu"))), PlainWorlds(env, 1, 3)
    names, generator = agent_names(env.spec), torch.Generator().manual_seed(1)
    obs, infos = world.reset(seed=3)
    for _ in range(3):
        live = [name for name, own in zip(names, plain.live[0], strict=True) if own]
        assert list(obs) == list(infos) == live
        while live:
            assert world.agents == live
            team = random_action(plain, generator)
            actions = {name: team[0, names.index(name)].numpy() for name in live}
            if not env.spec.choices:
                actions = {name: own[: world.action_space(name).shape[0]] for name, own in actions.items()}
            rewards = plain.step(team)[0]
            obs, reward, terminated, truncated, infos = world.step(actions)
            assert list(obs) == list(reward) == list(terminated) == list(truncated) == list(infos) == live
            for name in live:
                number = names.index(name)
                assert reward[name] == pytest.approx(rewards[number], rel=1e-4, abs=1e-3)
                assert (terminated[name], truncated[name]) == (
                    not plain.live[0][number],
                    plain.live[0][number] and plain.late[0],
                )
                assert world.observation_space(name).contains(obs[name])
                seen = obs[name] if isinstance(obs[name], dict) else {"observation": obs[name]}
                expected = plain.seen(0, number)
                assert set(seen) == set(expected)
                for key, value in expected.items():
                    np.testing.assert_allclose(seen[key], value.numpy(), rtol=1e-4, atol=1e-4)
            live = [] if plain.late[0] else [name for name, own in zip(names, plain.live[0], strict=True) if own]
        assert world.agents == []
        assert world.step({}) == ({}, {}, {}, {}, {})
        obs, infos = world.reset()
        plain.begin([0])


@pytest.mark.parametrize("name", NAMES)
def test_the_checks_of_pettingzoo_pass(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    parallel_api_test(ul.to_pettingzoo(name, **small(name)), num_cycles=40)
    parallel_seed_test(lambda: ul.to_pettingzoo(name, **small(name)), num_cycles=40)
    assert "Passed" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["leader_follower", "spread"])  # it warns of masks, and of agents that differ
def test_the_check_of_agents_that_act_in_turn_passes(name: str) -> None:
    api_test(parallel_to_aec(ul.to_pettingzoo(name, **small(name))), num_cycles=40)


@pytest.mark.parametrize("env", [Mortal(), Uneven()], ids=str)
def test_the_checks_pass_where_groups_differ_and_agents_end(env: Any) -> None:
    parallel_api_test(face(env), num_cycles=40)
    parallel_seed_test(lambda: face(env), num_cycles=40)


@pytest.mark.parametrize("name", NAMES)
def test_each_registered_environment_equals_its_slow_twin(name: str) -> None:
    compare(ul.make(name, **small(name)))


@pytest.mark.parametrize("env", [Mortal(), Uneven(), ABSENT], ids=str)
def test_groups_deaths_and_absent_agents_equal_their_slow_twin(env: Any) -> None:
    compare(env)


class Stays(TeamParallelEnv):
    """Agents stay although their task has ended."""

    def step(self, actions: Any) -> Any:
        before, result = self.agents, super().step(actions)
        self.agents = before if self.agents else []
        return result


class Mixed(TeamParallelEnv):
    """Agents see what their neighbour sees."""

    def _observe(self, agents: list[str]) -> dict[str, Any]:
        seen = super()._observe(self.possible_agents)
        return {agent: seen[self.possible_agents[self.possible_agents.index(agent) - 1]] for agent in agents}


class Unmarked(TeamParallelEnv):
    """The time limit counts as an end of the task."""

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = super().step(actions)
        ended = {name: terminated[name] or truncated[name] for name in terminated}
        return obs, reward, ended, dict.fromkeys(truncated, False), infos


@pytest.mark.parametrize("kind", [Stays, Mixed, Unmarked])
def test_each_broken_variant_is_caught(kind: type[TeamParallelEnv]) -> None:
    with pytest.raises((AssertionError, ConfigError)):
        compare(Mortal(), kind)


def test_agents_leave_one_after_the_other() -> None:
    world = face(Mortal())
    world.reset(seed=0)
    left = []
    while world.agents:
        _, _, terminated, truncated, _ = world.step(dict.fromkeys(world.agents, 1))
        left.append(
            (list(world.agents), [a for a in terminated if terminated[a]], [a for a in truncated if truncated[a]])
        )
    assert left == [
        (["short_0", "long_0", "long_1"], [], []),
        (["long_0", "long_1"], ["short_0"], []),
        (["long_1"], ["long_0"], []),
        (["long_1"], [], []),
        ([], [], ["long_1"]),
    ]


def test_a_seed_repeats_episodes_and_their_successors() -> None:
    def episodes(seed: int) -> list[Any]:
        world, result = face(Mortal()), []
        for number in range(3):
            result.append(world.reset(seed=None if number else seed))
            while world.agents:
                result.append(world.step(dict.fromkeys(world.agents, 1)))
        return result

    assert data_equivalence(episodes(4), episodes(4))
    assert not data_equivalence(episodes(4), episodes(5))


def test_the_maps_of_a_team_are_its_state() -> None:
    world = ul.to_pettingzoo("mapping", measurements=4)
    world.reset(seed=0)
    assert world.state().shape == world.state_space.shape == (4, 11, 11)
    assert world.state_space.contains(world.state())
    np.testing.assert_array_equal(world.state(), world.simulator.obs.team[0].numpy())
    with pytest.raises(NotImplementedError):
        face(Mortal()).state()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({}, r"step: got actions of \[\]; expected one of each in agents, \['short_0', 'long_0', 'long_1'\]"),
        ({"short_0": 1, "long_0": 1}, r"got actions of \['short_0', 'long_0'\]; expected one of each"),
        ({"short_0": 1, "long_0": 1, "long_2": 1}, "expected one of each in agents"),
        ({"short_0": 2, "long_0": 1, "long_1": 1}, r"step: short_0: got the action 2; expected one in Discrete\(2\)"),
        ({"short_0": 1, "long_0": 1, "long_1": [1]}, r"step: long_1: got the action \[1\]; expected one in Discrete"),
    ],
)
def test_wrong_actions_are_refused_and_change_nothing(actions: dict[str, Any], message: str) -> None:
    world = face(Mortal())
    world.reset(seed=0)
    before = world.simulator.state
    with pytest.raises(ConfigError, match=message):
        world.step(actions)
    assert world.simulator.state is before


def test_an_action_after_the_end_or_of_nobody_is_refused() -> None:
    world = face(Mortal())
    with pytest.raises(ConfigError, match=r"expected one of each in agents, \[\]; after the end call reset"):
        world.step({"short_0": 1})
    with pytest.raises(ConfigError, match=r"observation_space: unknown agent 'shrot_0' \(did you mean 'short_0'\?\)"):
        world.observation_space("shrot_0")
    with pytest.raises(ConfigError, match="action_space: unknown agent 'x'"):
        world.action_space("x")
