"""Assignment by hand, against its reference in plain Python, and what holds in every world."""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.support.python_assignment import World
from uavlab.core.types import leaves
from uavlab.envs.target_assignment.env import Assignment

EXACT = {"rtol": 1e-10, "atol": 1e-10}
LEVELS = {
    "simple": Assignment(uavs=(2, 4), targets=(2, 5), obstacles=(1, 3), variance=0.2, clustering=0.3),
    "medium": Assignment(uavs=(4, 7), targets=(5, 10), obstacles=(3, 6), variance=0.4, clustering=0.5, jitter=2),
    "complex": Assignment(uavs=(6, 10), targets=(8, 15), obstacles=(5, 10), variance=0.6, clustering=0.7),
    "padded": Assignment(uavs=(1, 3), targets=(1, 2), obstacles=(0, 4), slots=(5, 6, 7), sectors=3),
    "fixed": Assignment(uavs=(3, 9), targets=(2, 8), near=2, jitter=1, load=30.0, ideal_limit=1),
    "scarce": Assignment(uavs=(2, 5), targets=(2, 6), supply=(0.2, 1.0), reach=(0.2, 0.6)),
    "alone": Assignment(uavs=(1, 1), targets=(1, 1), obstacles=(0, 0), sectors=1),
}
EPISODES = 40  # of each level: 280 in all


def noise_of(env: Assignment, worlds: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(worlds, env.spec.initial_noise, generator=generator, dtype=torch.float64)


def legal_move(moves: list[bool], dice: random.Random) -> int:
    return dice.choice([number for number, legal in enumerate(moves) if legal] or [0])


@pytest.mark.parametrize("level", LEVELS)
def test_a_batch_equals_the_reference(level: str) -> None:
    env, dice = LEVELS[level], random.Random(1)
    noise = noise_of(env, EPISODES, seed=0)
    state, twins = env.initial(noise), [World(env, row) for row in noise.tolist()]
    steps = 0
    assert state.near.tolist() == [twin.near for twin in twins]
    while not all(twin.ended() for twin in twins):
        assert env.terminated(state)[:, 0].tolist() == [twin.ended() for twin in twins]
        moves = [twin.moves() for twin in twins]
        obs = env.observe(state)
        assert state.legal.flatten(1).tolist() == moves
        seen = torch.tensor([twin.observation() for twin in twins], dtype=torch.float64)
        torch.testing.assert_close(obs.features[:, 0], seen, **EXACT)
        action = torch.tensor([[legal_move(each, dice)] for each in moves])
        after = env.transition(state, action, noise[:, :0])
        reward = env.reward(state, action, after)
        figures = env.measure(state, action, after)
        before = [sum(twin.left) for twin in twins]
        expected = [twin.step(int(move)) for twin, move in zip(twins, action, strict=True)]
        torch.testing.assert_close(reward[:, 0], torch.tensor(expected, dtype=torch.float64), **EXACT)
        for name, value in twins[0].figures().items():
            each = torch.tensor([twin.figures()[name] for twin in twins], dtype=torch.float64)
            torch.testing.assert_close(figures[name], each, **EXACT)
            assert value == twins[0].figures()[name]
        per_uav = torch.tensor([each / twin.uavs for each, twin in zip(expected, twins, strict=True)])
        torch.testing.assert_close(figures["reward_per_uav"], per_uav.double(), rtol=1e-6, atol=1e-6)
        ways = [start - sum(twin.left) for start, twin in zip(before, twins, strict=True)]
        torch.testing.assert_close(figures["distance"], torch.tensor(ways, dtype=torch.float64), rtol=1e-9, atol=1e-9)
        state, steps = after, steps + 1
    assert 0 < steps <= env.spec.horizon
    assert env.terminated(state).all()


def test_efficiency_is_satisfied_targets_by_what_was_flown() -> None:
    """Two UAVs that flew 3 and 1 km have satisfied two of three targets; a team that has not flown has 0."""
    env = Assignment(uavs=(2, 2), targets=(3, 3))
    start = env.initial(noise_of(env, 1, seed=0))
    rest = start.demand.clone()
    rest[:, :2] = 0.0
    after = replace(start, rest=rest, speed=torch.tensor([[20.0, 10.0]]), time=torch.tensor([[150.0, 100.0]]))
    nothing = torch.zeros(1, 1, dtype=torch.int64)
    assert env.measure(start, nothing, after)["efficiency"].tolist() == [0.5]
    assert env.measure(start, nothing, start)["efficiency"].tolist() == [0.0]


def test_tensors_of_new_worlds_share_no_memory() -> None:
    """A CUDA graph writes each of them in place."""
    state = Assignment().initial(noise_of(Assignment(), 5, seed=0))
    parts = dict(leaves(state))
    assert len({leaf.untyped_storage().data_ptr() for leaf in parts.values()}) == len(parts)
    for leaf in parts.values():
        leaf.copy_(leaf.clone())  # refused where numbers share a place
