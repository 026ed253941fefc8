"""Gymnasium's own check passes without a warning, and worlds equal the slow twin over the ends of episodes."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import FlattenObservation, RecordEpisodeStatistics

import uavlab as ul
from tests.support.mortal import Mortal
from tests.support.plain_worlds import NAMES, PlainWorlds, random_action, small
from tests.support.uneven import Uneven
from uavlab.core.errors import ConfigError
from uavlab.interop.gymnasium import TeamEnv, TeamVectorEnv, arrays, bare
from uavlab.interop.simulator import Simulator

ABSENT = ul.make("leader_follower", followers=3, present=(1, 2), horizon=6)


def face(env: Any, worlds: int = 3, kind: type[TeamVectorEnv] = TeamVectorEnv) -> TeamVectorEnv:
    return kind(Simulator(env, worlds, torch.device("cpu")))


def require_close(got: Any, expected: Any) -> None:
    """Compare observations of a team."""
    got, expected = ({"": each} if isinstance(each, np.ndarray) else each for each in (got, expected))
    assert set(got) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-4)


def of_world(obs: Any, world: int) -> Any:
    return {name: part[world] for name, part in obs.items()} if isinstance(obs, dict) else obs[world]


def seen(plain: PlainWorlds, world: int) -> Any:
    parts = arrays(plain.env.spec, plain.env.observe(plain.states[world]))
    return bare({name: part[0] for name, part in parts.items()})


def compare(env: Any, kind: type[TeamVectorEnv] = TeamVectorEnv, steps: int = 16) -> int:
    """Run worlds beside the slow twin; return how many of them ended."""
    envs, plain, generator = face(env, kind=kind), PlainWorlds(env, 3, 3), torch.Generator().manual_seed(1)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    obs, infos = envs.reset(seed=3)
    ended = 0
    for _ in range(steps):
        assert envs.observation_space.contains(obs)
        action = random_action(plain, generator)
        there = np.array([[*map(float, takes_part(plain, world))] for world in range(3)])
        rewards = np.array(plain.step(action))
        obs, reward, terminated, truncated, infos = envs.step(action.numpy())
        np.testing.assert_allclose(reward, (rewards * there).sum(1) / there.sum(1), rtol=1e-4, atol=1e-3)
        assert terminated.tolist() == [not any(live) for live in plain.live]
        assert truncated.tolist() == plain.late
        over = plain.over()
        if over:
            assert infos["_final_obs"].tolist() == [world in over for world in range(3)]
            assert [final is None for final in infos["final_obs"]] == [world not in over for world in range(3)]
            for world in over:
                require_close(infos["final_obs"][world], seen(plain, world))
            plain.begin(over)
        else:
            assert infos == {}
        for world in range(3):
            require_close(
                {n: p[world] for n, p in obs.items()} if isinstance(obs, dict) else obs[world], seen(plain, world)
            )
        ended += len(over)
    return ended


def takes_part(plain: PlainWorlds, world: int) -> list[bool]:
    if not hasattr(plain.env, "takes_part"):
        return [True] * plain.env.spec.agents
    return plain.env.takes_part(plain.states[world])[0].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_the_check_of_gymnasium_passes(name: str) -> None:
    check_env(ul.to_gymnasium(name, **small(name)), skip_render_check=True)  # there is nothing to render


@pytest.mark.parametrize("env", [Mortal(), Uneven()], ids=str)
def test_the_check_passes_where_groups_differ_and_agents_end(env: Any) -> None:
    check_env(TeamEnv(Simulator(env, 1, torch.device("cpu"))), skip_render_check=True)


@pytest.mark.parametrize("name", NAMES)
def test_each_registered_environment_equals_its_slow_twin(name: str) -> None:
    compare(ul.make(name, **small(name)))


@pytest.mark.parametrize("env", [Mortal(), Uneven(), ABSENT], ids=str)
def test_groups_deaths_and_absent_agents_equal_their_slow_twin(env: Any) -> None:
    assert compare(env) >= 6


def test_worlds_end_one_by_one() -> None:
    assert compare(ul.make("pursuit", pursuers=3, evaders=1, side=4, obstacles=0, horizon=30), steps=60) > 3


class Late(TeamVectorEnv):
    """Observations of worlds that ended are their last ones."""

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = super().step(actions)
        for world in np.flatnonzero(terminated | truncated):
            obs[world] = infos["final_obs"][world]
        return obs, reward, terminated, truncated, infos


class Successor(TeamVectorEnv):
    """Last observations are those of the new episode."""

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = super().step(actions)
        for world in np.flatnonzero(terminated | truncated):
            infos["final_obs"][world] = obs[world]
        return obs, reward, terminated, truncated, infos


class Summed(TeamVectorEnv):
    """The reward of a team is a sum."""

    def step(self, actions: Any) -> Any:
        obs, reward, *rest = super().step(actions)
        return obs, reward * self.simulator.spec.agents, *rest


@pytest.mark.parametrize("kind", [Late, Successor, Summed])
def test_each_broken_variant_is_caught(kind: type[TeamVectorEnv]) -> None:
    with pytest.raises(AssertionError):
        compare(Uneven(), kind)


@pytest.mark.parametrize("env", [Mortal(), Uneven()], ids=str)
def test_one_world_equals_a_vector_of_one(env: Any) -> None:
    one, envs = TeamEnv(Simulator(env, 1, torch.device("cpu"))), face(env, 1)
    envs.action_space.seed(0)
    for episode in range(3):
        obs, _ = one.reset(seed=None if episode else 9)
        if not episode:
            assert data_equivalence(obs, of_world(envs.reset(seed=9)[0], 0))
        ended = False
        while not ended:
            action = envs.action_space.sample()
            obs, reward, terminated, truncated, infos = one.step(action[0])
            _, rewards, *ends, more = envs.step(action)
            assert (reward, terminated, truncated, infos) == (rewards[0], ends[0][0], ends[1][0], {})
            ended = terminated or truncated
        assert data_equivalence(obs, more["final_obs"][0])


def collect(envs: VectorEnv, steps: int = 20) -> list[Any]:
    envs.action_space.seed(0)
    return [envs.reset(seed=9), *(envs.step(envs.action_space.sample()) for _ in range(steps))]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("env", [Mortal(), Uneven()], ids=str)
def test_both_modes_are_those_of_gymnasium(env: Any, mode: AutoresetMode) -> None:
    """Their own vector of one world gives the same, step by step, over the ends of episodes."""
    theirs = SyncVectorEnv([lambda: TeamEnv(Simulator(env, 1, torch.device("cpu")))], autoreset_mode=mode)
    for own, other in zip(
        collect(TeamVectorEnv(Simulator(env, 1, torch.device("cpu")), mode)), collect(theirs), strict=True
    ):
        *own, infos = own
        *other, more = other
        assert data_equivalence(tuple(own), tuple(other))
        assert infos.keys() == more.keys()
        if infos:
            assert data_equivalence(infos["final_obs"][0], more["final_obs"][0])
            assert infos["_final_obs"].tolist() == more["_final_obs"].tolist()


def test_the_next_step_starts_only_worlds_that_have_ended() -> None:
    env = ul.make("pursuit", pursuers=3, evaders=1, side=4, obstacles=0, horizon=9)
    envs, ended = ul.to_gymnasium(env, worlds=8, autoreset_mode="NextStep"), np.zeros(8, bool)
    envs.reset(seed=0)
    different = 0
    for _ in range(40):
        steps = envs.simulator.state.step.numpy()
        _, reward, terminated, truncated, infos = envs.step(envs.action_space.sample())
        assert (envs.simulator.state.step.numpy() == np.where(ended, 0, steps + 1)).all()
        assert not reward[ended].any()
        assert not (terminated | truncated)[ended].any()
        assert not infos
        ended = terminated | truncated
        different += ended.any() and not ended.all()
    assert different > 5
    wrapped = FlattenObservation(ul.to_gymnasium("pursuit", worlds=2, autoreset_mode="NextStep"))
    assert wrapped.reset(seed=0)[0].shape == (2, 6 * 18 + 6 * 5)


@pytest.mark.parametrize("mode", ["Disabled", "same_step", None])
def test_another_mode_is_refused(mode: Any) -> None:
    with pytest.raises(ConfigError, match=r"to_gymnasium: unknown autoreset_mode .*: SameStep, NextStep\."):
        ul.to_gymnasium("spread", worlds=2, autoreset_mode=mode)


def test_a_seed_repeats_episodes_and_their_successors() -> None:
    def steps(seed: int) -> list[Any]:
        envs = face(Mortal())
        return [envs.reset(seed=seed), *(envs.step(np.ones((3, 3), np.int64)) for _ in range(12))]

    assert data_equivalence(steps(4), steps(4))
    assert not data_equivalence(steps(4), steps(5))


def test_the_statistics_of_gymnasium_are_the_returns_of_evaluate() -> None:
    """A wrapper of theirs adds the rewards up; every episode of ``spread`` has 6 steps."""
    env = ul.make("spread", horizon=6)
    envs = RecordEpisodeStatistics(face(env, 200))
    envs.reset(seed=1)
    for _ in range(6):
        *_, infos = envs.step(np.zeros((200, 3, 2), np.float32))
    assert infos["episode"]["l"].tolist() == [6] * 200
    scores = ul.evaluate(env, policy=lambda obs: torch.zeros(len(obs), 3, 2), episodes=200)
    assert scores["return"]["low"] < infos["episode"]["r"].mean() < scores["return"]["high"]


@pytest.mark.parametrize(
    "actions", [np.zeros((2, 3, 2)), np.zeros((3, 3)), np.full((3, 3, 2), 1.5), np.full((3, 3, 2), np.nan), None, "x"]
)
def test_wrong_actions_are_refused_and_change_nothing(actions: Any) -> None:
    envs = TeamVectorEnv(Simulator(ul.make("spread"), 3, torch.device("cpu")))
    envs.reset(seed=0)
    before = envs.simulator.state
    with pytest.raises(ConfigError, match=r"step: got the action .*; expected one in Box\(-1\.0, 1\.0, \(3, 3, 2\)"):
        envs.step(actions)
    assert envs.simulator.state is before


def test_steps_without_a_start_or_after_the_end_are_refused() -> None:
    with pytest.raises(ConfigError, match="no world has started; call reset first"):
        face(Mortal()).step(np.ones((3, 3), np.int64))
    one = TeamEnv(Simulator(Mortal(), 1, torch.device("cpu")))
    with pytest.raises(ConfigError, match="the world has ended or not started; call reset first"):
        one.step([1, 1, 1])
    one.reset()
    ends = [one.step([1, 1, 1])[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    with pytest.raises(ConfigError, match="the world has ended"):
        one.step([1, 1, 1])
