"""The observation as a graph, and moves of ended worlds; its numbers are compared in ``test_env.py``."""

import torch

from tests.unit.envs.target_assignment.test_env import LEVELS, noise_of
from uavlab.envs.target_assignment.env import with_one


def test_what_the_team_observes_is_a_graph() -> None:
    env = LEVELS["padded"]
    state = env.initial(noise_of(env, 20, seed=4))
    alive, visible = env.spec.entities.masks(env.observe(state).features[:, 0])
    assert torch.equal(alive, state.legal.any((2, 3)))
    assert torch.equal(visible, state.demand.sum(-1) > 0)
    assert 0 < alive.sum() < alive.numel()


def test_an_ended_world_has_one_move() -> None:
    legal = torch.tensor([[False, True, False], [False, False, False]])
    assert with_one(legal).tolist() == [[False, True, False], [True, False, False]]
