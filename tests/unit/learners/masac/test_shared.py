"""Critics that a group shares: by hand, against sums written out agent by agent, in all forms, and runs apart."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.update_rungs import KINDS, Side, all_numbers, check_rungs_agree, difference
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, EnvSpec, LiveTransition, Scale, Transition, tree_map
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.envs.pursuit import Pursuit
from uavlab.learners.masac import FORMS
from uavlab.learners.masac.masac import (
    MASAC,
    MASACConfig,
    actions_of_groups,
    assign_critics,
    weigh,
    weights,
)
from uavlab.nets.mlp import StackedMLP
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles

ROWS, AGENTS = 5, 4
SPEC = EnvSpec(AGENTS, 2, 2, 9, 1.0, 0, 0, groups=(7, 3, 7, 7))  # agent 1 has the first pair, the others the second
PAIRS = (1, 0, 1, 1)
CONFIG = MASACConfig(critic="shared", hidden=5, gamma=0.8, alpha=0.7, reward_scale=1.5)


def build(share: bool = True, spec: EnvSpec = SPEC, config: MASACConfig = CONFIG) -> tuple[MASAC, Streams]:
    """Return a learner whose parameters are large enough to matter."""
    rng = Streams([0], dtype=torch.float64)
    ones = torch.ones(1, spec.agents, spec.obs, dtype=torch.float64)
    learner = MASAC(replace(config, share=share), spec, Scale(center=0 * ones, spread=ones), rng, Runtime())
    with torch.no_grad():
        for name, table in (("a", learner.actor.parameter), ("q", learner.critic.parameter), ("t", learner.target)):
            table.add_(0.5 * rng.normal(name, *table.shape)[0])
        learner.temperature.parameter.add_(rng.normal("alpha", *learner.temperature.parameter.shape)[0])
    return learner, rng


def rows(rng: Streams, deaths: bool) -> Transition:
    """Return random rows; with ``deaths`` some are after the end of an agent, or of a whole group."""
    ended = rng.uniform("ended", ROWS, AGENTS) < 0.3
    data = (
        *(rng.normal("obs", ROWS, AGENTS, SPEC.obs), torch.tanh(rng.normal("action", ROWS, AGENTS, SPEC.action))),
        *(rng.normal("reward", ROWS, AGENTS), rng.normal("next_obs", ROWS, AGENTS, SPEC.obs)),
        *(ended, torch.zeros(1, ROWS, dtype=torch.bool)),
    )
    if not deaths:
        return Transition(*data)
    live = rng.uniform("live", ROWS, AGENTS) < 0.6
    live[:, 0], live[:, 1] = True, torch.tensor([False, True, False, False])
    return LiveTransition(*data, live=live)


class Slow:
    """The losses of one run written out, agent by agent and critic by critic; ``fault`` names a mistake."""

    def __init__(self, learner: MASAC, fault: str = "") -> None:
        self.fault, self.networks = fault, learner.networks
        self.nets = learner.actor_net, learner.critic_net
        self.actor, self.critic = learner.actor.parameter, learner.critic.parameter.unflatten(1, (2, -1))
        self.target = learner.target.unflatten(1, (2, -1))
        self.alpha = learner.temperature.parameter.detach().exp()[:, 0]

    def draw(self, obs: Tensor, noise: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return action and log density of each agent in each row."""
        result = []
        for i in range(AGENTS):
            out = self.nets[0](self.actor[self.networks[i]][None], obs[0, :, i][None])[0]
            mean, std = out[:, :2], out[:, 2:].clamp(CONFIG.log_std_low, CONFIG.log_std_high).exp()
            inner = mean + std * noise[0, :, i]
            density = torch.distributions.Normal(mean, std).log_prob(inner) - 2 * (
                math.log(2) - inner - F.softplus(-2 * inner)
            )
            result.append((torch.tanh(inner), density.sum(1)))
        return result

    def values(self, critic: Tensor, obs: Tensor, i: int, actions: list[Tensor], idle: Tensor) -> Tensor:
        """Return the values of both critics of an agent's group; actions of idle agents are 0."""
        if self.fault != "idle agents act":
            actions = [torch.where(idle[:, j : j + 1], 0.0, action) for j, action in enumerate(actions)]
        pair = 1 - PAIRS[i] if self.fault == "another group" else PAIRS[i]
        x = torch.cat([obs[0].flatten(1), *actions], 1)
        return torch.stack([self.nets[1](critic[pair, k][None], x[None])[0, :, 0] for k in range(2)])

    def targets(self, data: Transition, noise: Tensor) -> Tensor:
        drawn, y, idle = self.draw(data.next_obs, noise), [], idle_agents(data) | data.terminated[0]
        if not isinstance(data, LiveTransition):
            idle = torch.zeros_like(idle)
        for i in range(AGENTS):
            q = self.values(self.target, data.next_obs, i, [action for action, _ in drawn], idle).amin(0)
            soft = q - self.alpha[self.networks[i]] * drawn[i][1]
            goes_on = (~data.terminated[0, :, i]).double()
            y.append(CONFIG.reward_scale * data.reward[0, :, i] + CONFIG.gamma * goes_on * soft)
        return torch.stack(y)[None].detach()

    def critic_loss(self, data: Transition, target: Tensor, weight: Tensor) -> Tensor:
        total, live = torch.zeros((), dtype=torch.float64), weights(weigh(data))
        for i in range(AGENTS):
            q = self.values(self.critic, data.obs, i, list(data.action[0].unbind(1)), idle_agents(data))
            square = weight[0] * (q - target[0, i]).square()
            share = 1 if self.fault == "sum over agents" else 1 / PAIRS.count(PAIRS[i])
            total = total + share * (square if live is None else square * live[0, i]).mean(1).sum()
        return total

    def actor_loss(self, data: Transition, noise: Tensor) -> Tensor:
        total, live = torch.zeros((), dtype=torch.float64), weights(weigh(data))
        drawn = self.draw(data.obs, noise)
        for i in range(AGENTS):
            also = {"other groups live": {1 - PAIRS[i]}, "whole group live": {PAIRS[i]}}.get(self.fault, ())
            actions = [a if j == i or PAIRS[j] in also else a.detach() for j, (a, _) in enumerate(drawn)]
            q = self.values(self.critic.detach(), data.obs, i, actions, idle_agents(data)).amin(0)
            loss = self.alpha[self.networks[i]] * drawn[i][1] - q
            total = total + (loss if live is None or self.fault == "all rows" else loss * live[0, i]).mean()
        return total


def idle_agents(data: Transition) -> Tensor:
    return ~data.live[0] if isinstance(data, LiveTransition) else torch.zeros(ROWS, AGENTS, dtype=torch.bool)


def errors(fault: str = "", share: bool = True, deaths: bool = False) -> dict[str, float]:
    """Return the distance of each loss, and of its gradient, from the slow twin's with a fault."""
    learner, rng = build(share)
    slow, raw, noise = Slow(learner, fault), rows(rng, deaths), learner.update_noise(rng, ROWS)
    data = weigh(raw)
    actor, critic, log_alpha = (step.parameter for step in (learner.actor, learner.critic, learner.temperature))
    y = learner.targets(actor.detach(), learner.target, log_alpha.detach(), data, noise.next_action)
    weight = rng.uniform("weight", ROWS)
    pairs = {
        "targets": (y, slow.targets(raw, noise.next_action)),
        "critic": (learner.critic_loss(critic, data, y, weight)[0], slow.critic_loss(raw, y, weight)),
        "actor": (
            learner.actor_loss(actor, critic.detach(), log_alpha.detach(), data, noise.action)[0],
            slow.actor_loss(raw, noise.action),
        ),
    }
    apart = {name: (one - other).detach().abs().max().item() for name, (one, other) in pairs.items()}
    for name, theta in (("critic", critic), ("actor", actor)):
        mine, other = (torch.autograd.grad(loss, theta)[0] for loss in pairs[name])
        assert (other.abs().amax(1) > 1e-4).all()  # every network learns
        apart[f"{name} gradient"] = (mine - other).abs().max().item()
    return apart


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("deaths", [False, True])
def test_losses_and_gradients_are_the_sums_written_out(share: bool, deaths: bool) -> None:
    """One evaluation gives each agent the gradient of its own value for its own action."""
    apart = errors(share=share, deaths=deaths)
    assert max(apart.values()) < 1e-9, apart


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("another group", ("targets", "critic", "actor", "critic gradient", "actor gradient")),
        ("sum over agents", ("critic", "critic gradient")),
        ("other groups live", ("actor gradient",)),
        ("whole group live", ("actor gradient",)),
    ],
)
def test_each_mistake_is_caught(fault: str, seen: tuple[str, ...]) -> None:
    apart = errors(fault)
    assert {name for name, error in apart.items() if error > 1e-4} == set(seen), apart


def test_an_actor_that_learns_from_rows_after_an_end_is_caught() -> None:
    apart = errors("all rows", share=False, deaths=True)
    assert {name for name, error in apart.items() if error > 1e-4} == {"actor", "actor gradient"}, apart


def test_actions_of_idle_agents_are_caught() -> None:
    apart = errors("idle agents act", deaths=True)
    assert min(apart.values()) > 1e-4, apart


def test_gradients_of_actions_by_hand() -> None:
    """Agents 0 and 2 share a pair: of four rows their weights are 1 to 3, 0 to 2, none, and equal."""
    action = torch.zeros(1, 4, 3, 1, dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[[1.0, 0.0, 0.0, 2.0], [9.0] * 4, [3.0, 2.0, 0.0, 2.0]]], dtype=torch.float64)
    for given, expected in (
        (None, [0.5, 0.5, 0.5, 0.5]),
        (weight, [0.25, 0.0, 0.0, 0.5]),
    ):
        live = actions_of_groups(action, (0, 1, 0), given)
        assert live.shape == (1, 2, 4, 3, 1)
        first, second = (torch.autograd.grad(live[:, c].sum(), action, retain_graph=True)[0] for c in range(2))
        assert first[0, :, 0, 0].tolist() == expected
        assert (first[0, :, 1] == 0).all()
        assert (second[0, :, 1] == 1).all()
        assert (second[0, :, ::2] == 0).all()


def tiny() -> tuple[MASAC, Transition]:
    """Three agents, the first two of a group, and critics whose values are their last biases, 0."""
    spec = EnvSpec(3, 1, 1, 9, 1.0, 0, 0, groups=(0, 0, 1))
    learner, _ = build(spec=spec, config=replace(CONFIG, reward_scale=1.0))
    with torch.no_grad():
        learner.critic.parameter.zero_()
        learner.target.zero_()
    one = torch.zeros(1, 1, 3, 1, dtype=torch.float64)
    no = torch.zeros(1, 1, 3, dtype=torch.bool)
    return learner, Transition(one, one, one[..., 0], one, no, no[..., 0])


def test_a_critic_is_regressed_to_the_mean_of_its_group() -> None:
    """Both heads say 0; targets 2 and 4 of one group, 1 of the other: 2 x (4 + 16) / 2 + 2 x 1 = 22."""
    learner, data = tiny()
    target = torch.tensor([[[2.0], [4.0], [1.0]]], dtype=torch.float64)
    loss, metrics = learner.critic_loss(learner.critic.parameter, data, target, None)
    assert loss.item() == 22
    assert metrics["critic_loss"].tolist() == [[20, 2]]
    assert metrics["q"].tolist() == [[0, 0]]
    assert metrics["td_error"].value.tolist() == [[[2, 4, 1]]]
    (slope,) = torch.autograd.grad(loss, learner.critic.parameter)
    assert slope.unflatten(1, (2, -1))[:, :, -1].tolist() == [[-6, -6], [-2, -2]]  # 2 (0 - 3): the mean target is 3


def test_targets_are_of_the_own_group() -> None:
    learner, data = tiny()
    with torch.no_grad():
        learner.target.view(2, 2, -1)[:, :, -1] = torch.tensor([[3.0, 5.0], [-2.0, 7.0]])
        learner.temperature.parameter.fill_(-100.0)  # entropies count nothing
    noise = torch.zeros(1, 1, 3, 1, dtype=torch.float64)
    y = learner.targets(learner.actor.parameter, learner.target, learner.temperature.parameter, data, noise)
    assert y[0, :, 0].tolist() == pytest.approx([0.8 * 3, 0.8 * 3, 0.8 * -2])


@pytest.mark.parametrize(("share", "seeds", "weighted"), [(True, (3, 5), True), (False, (0,), False)])
def test_every_form_equals_batched(share: bool, seeds: tuple[int, ...], weighted: bool) -> None:
    check_rungs_agree(3, 12, share, seeds, weighted, critic="shared")


def test_groups_of_one_agent_learn_as_with_central_critics() -> None:
    env = LeaderFollower(followers=1)
    pair = [Side(KINDS, 2, env=env, weighted=True, critic=critic) for critic in ("central", "shared")]
    results = [side.train(5) for side in pair]
    for name in KINDS:
        one, other = (all_numbers(s.learners[name], result[name]) for s, result in zip(pair, results, strict=True))
        assert difference(one, other) <= 1e-9, name


@pytest.mark.parametrize("name", ["vmap", "batched"])
@pytest.mark.parametrize(("critic", "pairs"), [("central", 3), ("shared", 2)])
def test_a_critic_is_evaluated_once_for_a_group(
    name: str, critic: str, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, seen = Side({name: KINDS[name]}, 3, critic=critic), []
    (learner,) = side.learners.values()
    plain = learner.critic_net
    learner.critic_net = lambda theta, x: seen.append(len(x)) or plain(theta, x)
    learner.update(*side.next())
    assert seen == [2 * pairs] * 3  # in targets, the critics' loss and the actors' loss


@pytest.mark.parametrize("toggle", [{"micro_batches": 3}, {"recompute": "on"}, {"optimizers": "many"}])
def test_the_seams_act_on_every_form(toggle: dict[str, Any]) -> None:
    one = {"toggles": Toggles(**{"optimizers": "one", "adam": "fused", **toggle}), "critic": "shared"}
    plain, other = Side(KINDS, 3, True, critic="shared"), Side(KINDS, 3, True, **one)
    first, second = plain.train(3), other.train(3)
    for name in KINDS:
        pair = ((each.learners[name], result[name]) for each, result in ((other, second), (plain, first)))
        assert difference(*(all_numbers(*each) for each in pair)) <= 1e-9, name


@pytest.mark.parametrize("name", KINDS)
def test_state_round_trip_continues_bit_for_bit(name: str) -> None:
    side, other = (Side({name: KINDS[name]}, 3, True, seeds, critic="shared") for seeds in ((3, 5), (4, 6)))
    side.train(2)
    learner, fresh = (each.learners[name] for each in (side, other))
    fresh.load_state_dict({k: v.clone() for k, v in learner.state_dict().items()})
    batch, noise = side.next()
    for each in (learner, fresh):
        each.update(batch, noise)
    assert all(torch.equal(value, fresh.state_dict()[key]) for key, value in learner.state_dict().items())


@pytest.mark.parametrize("name", KINDS)
def test_runs_together_equal_runs_apart(name: str) -> None:
    together = Side({name: KINDS[name]}, 3, True, (3, 5), critic="shared")
    batch, noise = together.next()
    both = together.learners[name]
    both.update(batch, noise)
    for run, seed in enumerate((3, 5)):
        alone = Side({name: KINDS[name]}, 3, True, (seed,), critic="shared").learners[name]
        own = [tree_of_run(each, run) for each in (batch.data, noise)]
        alone.update(Batch(own[0], batch.index[run : run + 1]), own[1])
        for key, (tensor, _) in alone.tensors_to_check().items():
            mine = both.tensors_to_check()[key][0][run : run + 1]
            torch.testing.assert_close(mine, tensor, rtol=1e-9, atol=1e-12, msg=lambda m, k=key: f"{k}: {m}")


def tree_of_run(tree: Any, run: int) -> Any:
    return tree_map(lambda leaf: leaf[run : run + 1], tree)


@pytest.mark.parametrize("name", KINDS)
def test_rows_of_tensors_are_those_of_pairs(name: str) -> None:
    side = Side({name: KINDS[name]}, 3, False, (0, 4), critic="shared")
    learner, update = side.learners[name], side.train(1)[name]
    tables = {**learner.tensors_to_check(), **learner.tensors_to_check(update)}
    of_pairs = {name for name, (_, axes) in tables.items() if axes == "R K"}
    moments = {f"critic.{part}" for part in ("parameter", "exp_avg", "exp_avg_sq")}
    assert of_pairs == {*moments, "target.parameter", "q", "critic_loss", "critic_norm"}
    for key, (tensor, axes) in tables.items():
        assert tensor.shape[:2] == (2, 2 if axes == "R K" else 3), key
    assert (tables["target"][1], update.td_error.shape) == ("R A", (2, 16, 3))


def test_each_pair_is_clipped_by_its_own_norm() -> None:
    side = Side({"batched": KINDS["batched"]}, 3, critic="shared", clip=1.0)
    batch, noise = side.next()
    reward = batch.data.reward * torch.tensor([1e6, 1e-3, 1e-3], dtype=torch.float64)
    (learner,) = side.learners.values()
    far = replace(batch, data=replace(batch.data, reward=reward))
    norm = learner.update(far, noise).metrics["critic_norm"][0]
    used = torch.linalg.vector_norm(learner.critic.parameter.grad, dim=1)
    assert norm[0] > 1
    assert used.tolist() == pytest.approx([min(each, 1) for each in norm.tolist()], rel=1e-5)


def test_groups_have_critics_in_the_order_of_their_labels() -> None:
    assert assign_critics(SPEC, "shared") == PAIRS
    assert assign_critics(SPEC, "central") == assign_critics(SPEC, "own") == (0, 1, 2, 3)


def test_parameters_are_those_of_one_pair_for_a_group() -> None:
    learner, _ = build(share=False)
    assert learner.critic.parameter.shape == (2, 2 * StackedMLP(AGENTS * 4, 5, 1).count)
    assert learner.actor.parameter.shape[0] == AGENTS


@pytest.mark.parametrize("form", FORMS.values())
def test_agents_that_choose_moves_share_no_critics(form: Any) -> None:
    spec = Pursuit(pursuers=2, evaders=1, side=4, obstacles=2, horizon=7).spec
    blank = torch.zeros(1, spec.agents, spec.obs)
    with pytest.raises(ConfigError, match=r"critic: got shared; .* expected critic=central or critic=own"):
        form(MASACConfig(critic="shared"), spec, Scale(center=blank, spread=blank + 1), Streams([0]), Runtime())
