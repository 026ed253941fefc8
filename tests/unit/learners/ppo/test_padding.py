"""Groups whose actions have different widths: updates written out for the own dimensions alone, and mistakes."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.uneven import NARROW, Uneven
from tests.unit.learners.ppo.test_algorithm import CONFIGS, SPEC, Slow, T, W, assert_equal, batch_of, scale, steps
from uavlab.core.protocols import initial_memory, step_policy
from uavlab.core.rng import Streams
from uavlab.core.types import Group, Scale, Steps, padded_actions
from uavlab.learners.ppo import ppo
from uavlab.learners.ppo.ppo import PPO, MAPPOConfig, evaluate_actions, sample_actions
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles

PARTS = Group("space", 1, obs=SPEC.obs, action=3), Group("plane", 2, obs=SPEC.obs, action=2)
UNEVEN, WIDTHS = replace(SPEC, action=3, parts=PARTS), (3, 2, 2)
PADDING = padded_actions(UNEVEN, torch.device("cpu"))
Patch = Callable[[pytest.MonkeyPatch], None]


class OwnDimensions(Slow):
    """The update of ``Slow`` with actors' outputs and actions that are cut to the own dimensions."""

    def log_prob_and_entropy(self, obs: Tensor, action: Tensor, i: int) -> tuple[Tensor, Tensor]:
        out = self.team.actor_net(self.actor[self.team.networks[i]][None], obs[None, None])[0, 0]
        mean, log_std, low = out[: WIDTHS[i]], out[3 : 3 + WIDTHS[i]], self.config.log_std_low
        middle, half = (low + self.config.log_std_high) / 2, (self.config.log_std_high - low) / 2
        normal = torch.distributions.Normal(
            3 * torch.tanh(mean / 3), (middle + half * torch.tanh((log_std - middle) / half)).exp()
        )
        own = action[: WIDTHS[i]]
        return (normal.log_prob(torch.atanh(own)) - torch.log(1 - own**2)).sum(), normal.entropy().sum()


def build(config: MAPPOConfig) -> tuple[PPO, Streams]:
    rng = Streams((0,), dtype=torch.float64)
    return PPO(config, UNEVEN, scale(), rng, Runtime(requested=Toggles(acting="batched"))), rng


def uneven_steps(rng: Streams, padding: float = 0.0) -> Steps:
    action = torch.tanh(rng.normal("action", T, W, 3, 3))
    return replace(steps(rng), action=action.masked_fill(PADDING, padding))


def check_updates(config: MAPPOConfig, padding: float = 0.0) -> PPO:
    """Check that two updates are those written out; return the learner."""
    learner, rng = build(config)
    slow = OwnDimensions(learner)
    for _ in range(2):
        data, noise = uneven_steps(rng, padding), learner.update_noise(rng, T * W)
        slow.update(data, noise)
        learner.update(batch_of(data), noise)
        assert_equal(learner, slow)
    return learner


@pytest.mark.parametrize("name", CONFIGS)
def test_two_updates_equal_those_of_the_own_dimensions(name: str) -> None:
    check_updates(CONFIGS[name])


def test_what_padded_actions_hold_does_not_matter() -> None:
    check_updates(CONFIGS["central"], 0.5)


def test_no_gradient_reaches_the_outputs_that_are_padding() -> None:
    learner, rng = build(CONFIGS["central"])
    before = [layer.detach().clone() for layer in learner.team.actor_net.unpack(learner.actor.parameter)]
    learner.update(batch_of(uneven_steps(rng)), learner.update_noise(rng, T * W))
    after = learner.team.actor_net.unpack(learner.actor.parameter.detach())
    for old, new in zip(before[4:], after[4:], strict=True):  # weights and biases of the last layer, (K ... 6)
        moved = (new - old).abs().flatten(1, -2).amax(1)
        assert (moved > 0).tolist() == [[True] * 6, [True, True, False, True, True, False]]


def unmasked(density: bool, entropy: bool) -> Patch:
    """Return a mistake: log densities, or entropies, of padded dimensions count."""

    def wrong(config: Any, out: Tensor, obs: Any, action: Tensor, padding: Any = None) -> tuple[Tensor, Tensor]:
        right, whole = (evaluate_actions(config, out, obs, action, each) for each in (padding, None))
        return whole[0] if density else right[0], whole[1] if entropy else right[1]

    return lambda patch: patch.setattr(ppo, "evaluate_actions", wrong)


@pytest.mark.parametrize("mistake", [unmasked(density=True, entropy=False), unmasked(density=False, entropy=True)])
def test_a_mistake_is_caught(mistake: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError, match=r"actor\.parameter"):
        check_updates(CONFIGS["central"])


def test_density_and_entropy_by_hand() -> None:
    """Means 0 and log standard deviations -1.25: actions of 0 have the density of a Gaussian at its mean."""
    config = CONFIGS["central"]
    out = torch.tensor([0.0, 0, 0, -1.25, -1.25, -1.25], dtype=torch.float64).expand(1, 1, 3, 6)
    action = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    log_prob, entropy = evaluate_actions(config, out, None, action, PADDING)
    one = 1.25 - 0.5 * math.log(2 * math.pi)
    assert log_prob[0, 0].tolist() == pytest.approx([3 * one, 2 * one, 2 * one])
    assert entropy[0, 0].tolist() == pytest.approx([3 * (0.5 - one), 2 * (0.5 - one), 2 * (0.5 - one)])
    assert evaluate_actions(config, out, None, action)[1][0, 0].tolist() == pytest.approx([3 * (0.5 - one)] * 3)


def policies(memory: int, acting: str) -> tuple[list[Any], Streams]:
    """Return the policy in training of ``uneven``, and the one that is loaded."""
    rng, spec = Streams((0,), dtype=torch.float64), Uneven.spec
    blank = torch.zeros(1, 3, 3, dtype=torch.float64)
    config = replace(CONFIGS["central"], memory=memory)
    learner = PPO(config, spec, Scale(blank, blank + 1), rng, Runtime(requested=Toggles(acting=acting)), 6)
    return [learner.policy(spec), PPO.load_policy(config, spec, spec, learner.parameters())], rng


def padded_numbers(memory: int, acting: str) -> Tensor:
    """Return the actions of ``uneven`` in dimensions that agents lack, after a check of all others."""
    each, rng = policies(memory, acting)
    obs, noise, beyond = rng.normal("obs", 6, 3, 3), rng.normal("noise", 6, 3, 3), []
    for drawn in (noise, None):
        actions = [step_policy(policy, obs, drawn, initial_memory(policy, 1, 6))[0] for policy in each]
        torch.testing.assert_close(*actions, rtol=1e-12, atol=1e-12)
        for action in actions:
            assert (action[:, :, :NARROW, :2] != 0).all()
            assert (action[:, :, NARROW:] != 0).all()
            beyond.append(action[:, :, :NARROW, 2])
    return torch.stack(beyond)


@pytest.mark.parametrize("way", ["loop", "batched"])
@pytest.mark.parametrize("memory", [0, 4])
def test_policies_act_in_the_own_dimensions_alone(memory: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (padded_numbers(memory, way) == 0).all()
    monkeypatch.setattr(ppo, "sample_actions", lambda *args: sample_actions(*args[:4]))  # the mutant
    assert (padded_numbers(memory, way) != 0).all()
