"""Groups whose actions have different widths: each form against losses of the own dimensions alone, and mistakes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from tests.support.uneven import NARROW, Uneven
from tests.support.update_rungs import KINDS, Side, all_numbers, difference, toggled
from uavlab.core.types import Transition
from uavlab.learners.masac import FORMS, masac
from uavlab.learners.masac.masac import MASAC, target_entropy
from uavlab.ops.action_sampling import squashed_gaussian

WIDTHS, ROWS = (2, 2, 3), 16
Losses = dict[str, Tensor]
Patch = Callable[[pytest.MonkeyPatch], None]


class Slow:
    """The losses of one run, agent by agent, whose actors and log densities are cut to the own dimensions."""

    def __init__(self, learner: MASAC) -> None:
        self.config, self.networks = learner.config, learner.networks
        self.actor_net, self.critic_net = learner.actor_net, learner.critic_net
        self.actor = learner.actor.parameter.detach().clone().requires_grad_()
        self.critic, self.target = learner.critic.parameter.detach(), learner.target
        self.log_alpha = learner.temperature.parameter.detach().clone().requires_grad_()

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the own actions of each agent, and their log densities."""
        actions, densities = [], []
        for i, width in enumerate(WIDTHS):
            out = self.actor_net(self.actor[self.networks[i]][None], obs[None, :, i])[0]
            mean, log_std = (
                out[:, :width],
                out[:, 3 : 3 + width].clamp(self.config.log_std_low, self.config.log_std_high),
            )
            normal, u = Normal(mean, log_std.exp()), mean + log_std.exp() * noise[:, i, :width]
            policy = TransformedDistribution(normal, [TanhTransform(cache_size=1)])
            action = policy.transforms[0](u)
            actions.append(action)
            densities.append(policy.log_prob(action).sum(-1))
        return actions, densities

    def value(self, critic: Tensor, obs: Tensor, actions: list[Tensor], i: int) -> Tensor:
        """Return the smaller value of agent i, which takes zeros for what an agent lacks."""
        padded = [torch.cat((action, action.new_zeros(len(action), 3 - action.shape[1])), 1) for action in actions]
        x = torch.cat((obs.flatten(1), *padded), 1)
        return self.critic_net(critic[i].view(2, -1), x.expand(2, -1, -1))[..., 0].amin(0)

    def losses(self, data: Transition, noise: Any) -> Losses:
        """Return targets, the losses of each actor and temperature, and their gradients."""
        alpha = self.log_alpha[list(self.networks), 0].exp()
        losses, targets = [], []
        ahead, behind = data.next_obs[0], data.obs[0]
        actions, densities = self.sample(ahead, noise.next_action[0])
        for i, density in enumerate(densities):
            soft = self.value(self.target, ahead, actions, i) - alpha[i] * density
            later = torch.where(data.terminated[0, :, i], 0.0, self.config.gamma * soft)
            targets.append(data.reward[0, :, i] + later)
        actions, densities = self.sample(behind, noise.action[0])
        for i, density in enumerate(densities):
            joint = [action if j == i else action.detach() for j, action in enumerate(actions)]
            losses.append((alpha[i].detach() * density - self.value(self.critic, behind, joint, i)).mean())
        goals = [density.detach().mean() - width for density, width in zip(densities, WIDTHS, strict=True)]
        temperatures = [-self.log_alpha[self.networks[i], 0] * goal for i, goal in enumerate(goals)]
        loss, heat = torch.stack(losses), torch.stack(temperatures).sum()
        return {
            "target": torch.stack(targets).detach(),
            "actor": loss.detach(),
            "actor slope": torch.autograd.grad(loss.sum(), self.actor)[0],
            "temperature": heat.detach(),
            "temperature slope": torch.autograd.grad(heat, self.log_alpha)[0],
        }


def fast_losses(learner: MASAC, data: Transition, noise: Any) -> Losses:
    """Return the same of the learner."""
    actor, critic = learner.actor.parameter, learner.critic.parameter.detach()
    heat = learner.temperature.parameter
    with torch.no_grad():
        target = learner.targets(actor, learner.target, heat, data, noise.next_action)[0]
    loss, metrics = learner.actor_loss(actor, critic, heat.detach(), data, noise.action)
    warmth, _ = learner.temperature_loss(heat, metrics["log_prob"] + learner.target_entropy)
    return {
        "target": target,
        "actor": metrics["actor_loss"][0],
        "actor slope": torch.autograd.grad(loss, actor)[0],
        "temperature": warmth.detach(),
        "temperature slope": torch.autograd.grad(warmth, heat)[0],
    }


def differing(side: Side) -> dict[str, float]:
    """Return the largest difference between a learner after some updates and the slow twin, by kind of number."""
    side.train(3)
    learner: Any = side.learners["batched"]
    batch, noise = side.next()
    fast, slow = fast_losses(learner, batch.data, noise), Slow(learner).losses(batch.data, noise)
    return {name: float((fast[name] - slow[name]).abs().max()) for name in slow}


def side_of(share: bool = True, **kinds: Any) -> Side:
    return Side(kinds or {"batched": KINDS["batched"]}, 3, share, env=Uneven(), reward_scale=1.0)


@pytest.mark.parametrize("share", [False, True])
def test_losses_and_gradients_are_those_of_the_own_dimensions(share: bool) -> None:
    assert max(differing(side_of(share)).values()) < 1e-9


def test_no_gradient_reaches_the_outputs_that_are_padding() -> None:
    side = side_of()
    learner: Any = side.learners["batched"]
    before = [layer.detach().clone() for layer in learner.actor_net.unpack(learner.actor.parameter)]
    side.train(5)
    after = learner.actor_net.unpack(learner.actor.parameter.detach())
    for old, new in zip(before[4:], after[4:], strict=True):  # weights and biases of the last layer, (K ... 6)
        moved = (new - old).abs().flatten(1, -2).amax(1)
        assert (moved > 0).tolist() == [[True, True, False, True, True, False], [True] * 6]


def unmasked(action: bool, density: bool) -> Patch:
    """Return a mistake: padded dimensions of actions, or their log densities, are left as they are."""

    def wrong(mean: Tensor, log_std: Tensor, noise: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        right, whole = squashed_gaussian(mean, log_std, noise, padding), squashed_gaussian(mean, log_std, noise)
        return whole[0] if action else right[0], whole[1] if density else right[1]

    return lambda patch: patch.setattr(masac, "squashed_gaussian", wrong)


def wide_target(patch: pytest.MonkeyPatch) -> None:
    """Aim at the entropy of the widest group for all."""
    patch.setattr(masac, "target_entropy", lambda config, spec: -float(spec.action))


@pytest.mark.parametrize(
    ("mistake", "seen"),
    [
        (unmasked(action=True, density=False), {"target", "actor", "actor slope"}),
        (unmasked(action=False, density=True), {"target", "actor", "actor slope", "temperature", "temperature slope"}),
        (wide_target, {"temperature", "temperature slope"}),
    ],
)
def test_a_mistake_is_caught(mistake: Patch, seen: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    assert {name for name, far in differing(side_of()).items() if far > 1e-4} == seen


def apart(**kinds: Any) -> float:
    """Return the largest difference of any form from ``batched`` after some updates."""
    side = side_of(batched=KINDS["batched"], **kinds)
    results = side.train(6)
    reference = all_numbers(side.learners["batched"], results["batched"])
    return max(difference(all_numbers(side.learners[name], results[name]), reference) for name in kinds)


def test_every_form_equals_batched() -> None:
    assert apart(**{name: kind for name, kind in KINDS.items() if name != "batched"}) <= 1e-9


@pytest.mark.parametrize("name", KINDS)
def test_a_form_without_padding_is_caught(name: str) -> None:
    class Whole(FORMS[name]):  # type: ignore[misc, name-defined]
        padding = property(lambda self: None, lambda self, value: None)

    assert apart(whole=toggled(Whole, update=name, acting="batched")) > 1e-4


@pytest.mark.parametrize("name", KINDS)
def test_policies_act_in_the_own_dimensions_alone(name: str) -> None:
    """At once, agent by agent, and loaded, with and without noise."""
    kinds = {acting: toggled(FORMS[name], update=name, acting=acting) for acting in ("loop", "batched")}
    side = side_of(**kinds)
    side.train(2)
    spec = Uneven.spec
    obs, noise = side.rng.normal("obs", 6, 3, 3), side.rng.normal("noise", 6, 3, 3)
    learner: MASAC = side.learners["loop"]
    loaded = MASAC.load_policy(learner.config, spec, spec, learner.parameters())
    for drawn in (noise, None):
        alone, at_once = (each.policy(spec)(obs, drawn) for each in side.learners.values())
        for action in (alone, at_once, loaded(obs, drawn)):
            assert (action[:, :, :NARROW, 2] == 0).all()
            assert (action[:, :, :NARROW, :2] != 0).all()
            assert (action[:, :, NARROW:] != 0).all()
            torch.testing.assert_close(action, alone, rtol=1e-12, atol=1e-12)


def test_rows_of_replay_hold_no_padding() -> None:
    """Neither at random nor by the policy."""
    side = side_of()
    batch, _ = side.next()
    assert (side.source.ring.rows.action[..., :NARROW, 2] == 0).all()
    assert (batch.data.action[..., :NARROW, :2] != 0).all()


def test_the_entropy_of_uniform_numbers_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean 0, log deviation 0 and noise 0: each own dimension has the density of N(0, 1) at 0, where tanh' is 1."""
    learner: Any = side_of().learners["batched"]
    with torch.no_grad():
        learner.actor.parameter.zero_()
    nothing = torch.zeros(1, ROWS, 3, 3, dtype=torch.float64)
    monkeypatch.setattr(masac.MASAC, "values", lambda self, theta, obs, action: obs.new_zeros(1, 3, 2, ROWS, 1))
    _, log_prob = learner.policy_values(learner.actor.parameter, learner.critic.parameter, nothing, nothing, own=True)
    one = -0.5 * math.log(2 * math.pi)
    assert log_prob[0, :, 0].tolist() == pytest.approx([2 * one, 2 * one, 3 * one])
    assert learner.target_entropy.tolist() == [-2, -2, -3]
    assert target_entropy(learner.config, Uneven.spec) == (-2.0, -2.0, -3.0)
