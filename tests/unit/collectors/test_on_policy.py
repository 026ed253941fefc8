"""Whole episodes: what is seen, chosen and earned belongs together, and nothing is left for the next batch."""

from dataclasses import fields

import pytest
import torch

from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.collectors.on_policy import OnPolicyCollector, RolloutConfig
from uavlab.core.errors import DivergedError
from uavlab.core.rng import Streams
from uavlab.core.types import MapObs, tree_map
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.ops.action_sampling import sample_in_turn
from uavlab.runtime.runtime import Runtime

RT = Runtime()


def at_random(obs: MapObs, noise: torch.Tensor) -> torch.Tensor:
    return sample_in_turn(torch.zeros(obs.legal.shape), obs.legal, obs.target_cell, noise)


def source(seeds=(0, 3), env=TINY_MISSION, policy=at_random) -> OnPolicyCollector:
    return OnPolicyCollector(env, policy, RolloutConfig(worlds=4), Streams(seeds), RT)


def test_a_batch_can_be_flown_again() -> None:
    """Follow one world by hand from the same streams."""
    batch, env, rng = source().next(), TINY_MISSION, Streams((0, 3))
    state = env.initial(rng.uniform("start", 4, env.initial_noise).flatten(0, 1))
    for step in range(env.spec.horizon):
        obs = env.observe(state)
        assert torch.equal(batch.data.obs.maps[:, step].flatten(0, 1), obs.maps)
        action = batch.data.action[:, step].flatten(0, 1)
        after = env.transition(state, action, rng.uniform("step", 4, env.step_noise).flatten(0, 1))
        assert torch.equal(batch.data.reward[:, step].flatten(0, 1), env.reward(state, action, after))
        assert torch.equal(batch.data.terminated[:, step].flatten(0, 1), env.terminated(after))
        state = after
    assert torch.equal(batch.data.obs.maps[:, -1].flatten(0, 1), env.observe(state).maps)
    assert batch.data.terminated[:, -1].all()
    assert batch.data.live.all()
    assert not batch.data.terminated[:, :-1].any()


def test_chosen_moves_are_legal_and_never_the_same_place() -> None:
    data = source().next().data
    legal = data.obs.legal.gather(-1, data.action[..., None])
    assert legal.all()
    took = data.obs.target_cell.gather(-1, data.action[..., None])[..., 0].sort(-1).values
    assert (took[..., 1:] != took[..., :-1]).all()


def test_the_step_that_is_timed_takes_first_legal_moves() -> None:
    env, rng = TINY_MISSION, Streams((0, 3))
    state = env.initial(rng.uniform("start", 4, env.initial_noise).flatten(0, 1))
    noise = rng.uniform("step", 4, env.step_noise).flatten(0, 1)
    first = torch.tensor([[legal.index(True) for legal in world] for world in env.observe(state).legal.tolist()])
    after = env.transition(state, first, noise)
    _, obs, reward, _ = source().world_step()()
    assert torch.equal(obs.maps, env.observe(after).maps)
    assert torch.equal(reward, env.reward(state, first, after))


def test_the_step_that_is_timed_does_nothing_where_actions_are_continuous() -> None:
    env = LeaderFollower()
    state = env.initial(Streams((0, 3)).uniform("start", 4, env.spec.initial_noise).flatten(0, 1))
    after, *_ = source(env=env).world_step()()
    assert torch.equal(after.heading, state.heading)
    assert not after.action.any()


def test_runs_draw_from_their_own_streams() -> None:
    together, alone = source((0, 3)).next(), source((3,)).next()
    assert torch.equal(together.data.action[1:], alone.data.action)
    assert not torch.equal(together.data.action[:1], alone.data.action)


class Counts:
    """A policy whose memory counts steps, and chooses the move with this number among legal ones."""

    def initial(self, runs: int, worlds: int) -> torch.Tensor:
        return torch.zeros(runs, worlds, TINY_MISSION.uavs, 1)

    def __call__(self, obs: MapObs, noise: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen.append(memory)
        return at_random(obs, noise), memory + 1

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []


def test_a_memory_begins_with_each_episode() -> None:
    policy = Counts()
    one = source(policy=policy)
    for _ in range(2):
        policy.seen.clear()
        one.next()
        assert [int(memory.max()) for memory in policy.seen] == list(range(TINY_MISSION.spec.horizon + 1))


def test_nothing_is_kept_but_a_count() -> None:
    one = source()
    one.next()
    one.after_cycle()
    other = source()
    other.load_state_dict(one.state_dict())
    assert other.steps == one.steps == TINY_MISSION.spec.horizon
    other.rng.load_state_dict(one.rng.state_dict())
    assert torch.equal(one.next().data.reward, other.next().data.reward)
    assert one.segments([]) == one.rows() == one.tensors_to_check() == {}


def given(env: object) -> dict[str, object]:
    return {field.name: getattr(env, field.name) for field in fields(env)}


class Early(type(TINY_MISSION)):
    """A mission whose odd UAVs are done after two steps."""

    def terminated(self, state):
        done = super().terminated(state).clone()
        done[:, 1::2] |= (state.step >= 2)[:, None]
        return done


def test_what_is_done_after_an_end_is_dead() -> None:
    data = source(env=Early(**given(TINY_MISSION))).next().data
    assert data.live[:, :2].all()
    assert data.live[..., 0::2].all()
    assert not data.live[:, 2:, :, 1::2].any()


class Cut(type(TINY_MISSION)):
    """A mission that is truncated after two steps."""

    def truncated(self, state):
        return state.step >= 2


def test_what_comes_after_a_truncation_is_dead() -> None:
    one = OnPolicyCollector(Cut(**given(TINY_MISSION)), at_random, RolloutConfig(4), Streams((0,)), RT, tally=True)
    data = one.next().data
    assert data.live[:, :2].all()
    assert not data.live[:, 2:].any()
    figures = one.figures()
    assert figures["episode/flight_time"].tolist() == [2.0]
    assert figures["episode/timeout"].tolist() == [1.0]


def test_numbers_that_are_not_finite_are_refused() -> None:
    class Broken(type(TINY_MISSION)):
        def observe(self, state):
            obs = super().observe(state)
            return tree_map(lambda leaf: leaf / 0 - leaf / 0 if leaf.is_floating_point() else leaf, obs)

    env = Broken(**given(TINY_MISSION))
    with pytest.raises(DivergedError, match="obs"):
        source(env=env).next()
