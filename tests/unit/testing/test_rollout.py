"""A checked rollout counts returns, and repeats another one from the same seed."""

import torch

from tests.unit.testing.test_environment import Counted, Toy
from uavlab.testing.environment import ACTIONS, CheckedRollout, is_frozen


def test_returns_of_episodes_that_ended() -> None:
    rollout = CheckedRollout(Counted(horizon=3), 2, "random", torch.float32)
    for _ in range(7):
        rollout.step()
    assert rollout.returns == [-3.0] * 4  # two worlds, two episodes each
    assert rollout.total.tolist() == [-1.0, -1.0]  # one step of the third


def test_a_seed_of_its_own_gives_the_noise_of_another_kind_of_actions() -> None:
    one, other = (CheckedRollout(Toy(), 2, "zero", torch.float32, seed=seed) for seed in (0, 1))
    random = CheckedRollout(Toy(), 2, "random", torch.float32)
    assert ACTIONS.index("random") == 0
    assert torch.equal(one.state.place, random.state.place)
    assert not torch.equal(other.state.place, random.state.place)


def test_only_frozen_dataclasses_are_frozen() -> None:
    assert is_frozen(Toy())
    assert not is_frozen(object())
