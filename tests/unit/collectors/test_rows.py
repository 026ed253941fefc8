"""A blank row has the form of those that are stored, and memory is that which replay allocates."""

import torch

from tests.support.plain_collector import collector
from uavlab.collectors.off_policy import ReplayConfig, blank_row, replay_bytes
from uavlab.core.rng import Streams
from uavlab.core.types import LiveTransition, Transition, leaves
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.runtime.runtime import Runtime

ENV = LeaderFollower()


def still(obs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    return obs.new_zeros(*obs.shape[:-1], 2)


def test_bytes_are_those_allocated() -> None:
    config = ReplayConfig(worlds=4, capacity=400)
    allocated = collector(ENV, still, config, Streams((3, 8)), Runtime()).ring.words.nbytes
    assert replay_bytes(ENV, config, runs=2) == allocated
    # Per row: float32 obs 14, action 4, reward 2, next_obs 14; terminated and truncated, a word of 8 bytes each.
    assert allocated == 2 * 400 * (34 * 4 + 2 * 8)


def test_a_blank_row_is_like_a_stored_one() -> None:
    for env in (ENV, LeaderFollower(followers=2, present=(0, 2))):
        noise = torch.rand(3, env.spec.initial_noise)
        worlds = start_worlds(env, noise, env.spec.deaths)
        agents = env.spec.agents
        _, row = advance(env, worlds, torch.zeros(3, agents, 2), torch.zeros(3, 0), make_pool(env, noise[None], worlds))
        blank = blank_row(env, worlds)
        assert type(blank) is (LiveTransition if env.spec.deaths else Transition)
        forms = [[(name, leaf.shape, leaf.dtype) for name, leaf in leaves(each)] for each in (blank, row)]
        assert forms[0] == forms[1]
