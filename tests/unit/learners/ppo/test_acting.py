"""Distributions of actions by hand, and policies: teams of any size, agents in turn, memory world by world."""

import math
from dataclasses import replace

import pytest
import torch

from tests.support.fixtures_mapping import TINY_MISSION
from tests.unit.learners.ppo.test_algorithm import CONFIG, SPEC, build
from tests.unit.learners.ppo.test_recurrent import OWN, M
from tests.unit.learners.ppo.test_recurrent import build as with_memory
from uavlab.core.errors import ConfigError
from uavlab.core.protocols import forget, initial_memory, step_policy
from uavlab.learners.ppo.networks import MapTeam, RecurrentTeam, VectorTeam
from uavlab.learners.ppo.ppo import PPO, evaluate_actions, make_team, sample_actions, split_gaussian
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles


def test_means_and_deviations_are_bounded_smoothly() -> None:
    out = torch.tensor([0.0, 3.0, 1e6, -1.25, 1e6, -1e6], dtype=torch.float64)
    mean, log_std = split_gaussian(CONFIG, out)
    assert mean.tolist() == pytest.approx([0.0, 3 * math.tanh(1.0), 3.0])
    assert log_std.tolist() == pytest.approx([-1.25, 0.0, -2.5])  # the middle of the range, and its ends


def test_the_density_of_a_sampled_action() -> None:
    """At the mean of a Gaussian with log standard deviation -1.25, squashed at 0.5."""
    u = math.atanh(0.5)
    out = torch.tensor([3 * math.atanh(u / 3), -1.25], dtype=torch.float64).view(1, 1, 1, 2)
    assert sample_actions(CONFIG, out, torch.zeros(1), None).item() == pytest.approx(0.5)
    action = torch.full((1, 1, 1, 1), 0.5, dtype=torch.float64)
    log_prob, entropy = evaluate_actions(CONFIG, out, None, action)
    normal = -0.5 * math.log(2 * math.pi) + 1.25
    assert log_prob.item() == pytest.approx(normal - math.log(0.75))
    assert entropy.item() == pytest.approx(0.5 + 0.5 * math.log(2 * math.pi) - 1.25)
    noise = torch.full((1, 1, 1, 1), 2.0, dtype=torch.float64)
    moved = sample_actions(CONFIG, out, torch.zeros(1), noise)
    assert moved.item() == pytest.approx(math.tanh(u + 2 * math.exp(-1.25)))
    assert evaluate_actions(CONFIG, out, None, moved)[0].item() == pytest.approx(
        normal - 2 - math.log(1 - moved.item() ** 2)
    )


def test_the_kind_of_team() -> None:
    assert type(make_team(CONFIG, SPEC, SPEC)) is VectorTeam
    assert type(make_team(OWN, SPEC, SPEC)) is RecurrentTeam
    assert type(make_team(CONFIG, TINY_MISSION.spec, TINY_MISSION.spec)) is MapTeam


@pytest.mark.parametrize("size", [3, 5])
def test_a_policy_flies_teams_of_any_size(size: int) -> None:
    learner, rng = build()
    spec = replace(SPEC, agents=size, groups=(0,) + (1,) * (size - 1))
    policy = PPO.load_policy(CONFIG, SPEC, spec, learner.parameters())
    obs, noise = rng.normal("obs", 6, size, SPEC.obs), rng.normal("act", 6, size, SPEC.action)
    assert policy(obs, noise).shape == (1, 6, size, 2)
    assert torch.equal(policy(obs, noise), learner.policy(spec, explore=True)(obs, noise))
    in_turn, _ = build(rt=Runtime())
    in_turn.load_state_dict(learner.state_dict())
    torch.testing.assert_close(in_turn.policy(spec)(obs, noise), policy(obs, noise), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("acting", ["loop", "batched"])
@pytest.mark.parametrize("kind", ["training", "loaded"])
def test_a_policy_keeps_the_memory_of_each_world_apart(acting: str, kind: str) -> None:
    rt = Runtime(requested=Toggles(acting=acting))
    learner, rng = with_memory(replace(OWN, share=False), (0, 1), rt)
    loaded = PPO.load_policy(learner.config, SPEC, SPEC, learner.parameters())
    policy = learner.policy(SPEC) if kind == "training" else loaded
    seen = [rng.normal("obs", 6, SPEC.agents, SPEC.obs) for _ in range(4)]
    whole, part = initial_memory(policy, 2, 6), initial_memory(policy, 2, 1)
    assert whole.shape == (2, 6, SPEC.agents, M)
    for step, obs in enumerate(seen):
        if step == 2:  # one world ends
            before, whole = whole, forget(whole, (torch.arange(6) == 4).expand(2, -1))
            assert (whole[:, 4] == 0).all()
            assert torch.equal(whole[:, :4], before[:, :4])
            part = initial_memory(policy, 2, 1)
        action, whole = step_policy(policy, obs, None, whole)
        alone, part = step_policy(policy, obs[:, 4:5], None, part)
        torch.testing.assert_close(action[:, 4:5], alone, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(whole[:, 4:5], part, rtol=1e-9, atol=1e-12)
    fresh, _ = step_policy(policy, seen[-1], None, initial_memory(policy, 2, 6))
    assert (fresh - action).abs().max() > 1e-4


def test_a_policy_for_another_number_of_agents() -> None:
    learner, rng = with_memory()
    more = replace(SPEC, agents=4, groups=(0, 1, 1, 1))
    policy = learner.policy(more)
    obs = rng.normal("obs", 2, 4, SPEC.obs)
    action, memory = step_policy(policy, obs, None, initial_memory(policy, 1, 2))
    assert (action.shape, memory.shape) == ((1, 2, 4, 2), (1, 2, 4, M))


def test_critics_of_maps_are_not_shared() -> None:
    with pytest.raises(ConfigError, match=r"critic: got shared; .* expected critic=central or critic=own"):
        make_team(replace(CONFIG, critic="shared"), TINY_MISSION.spec, TINY_MISSION.spec)


def test_maps_have_no_memory() -> None:
    with pytest.raises(ConfigError, match="memory: got 5; a team that observes maps has no memory; set memory=0"):
        make_team(OWN, TINY_MISSION.spec, TINY_MISSION.spec)
