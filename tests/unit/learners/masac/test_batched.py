"""Runs together against each alone, each loss on numbers made by hand, and networks stacked layer by layer."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.support.plain_collector import collector
from tests.support.update_rungs import KINDS, Side
from uavlab.collectors.off_policy import ReplayConfig
from uavlab.collectors.world_source import survey
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, EnvSpec, Scale, Transition
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.learners.masac.loop import evaluate
from uavlab.learners.masac.masac import MASAC, MASACConfig, UpdateNoise
from uavlab.nets.mlp import StackedMLP
from uavlab.runtime.runtime import Runtime
from uavlab.training import training

RT = Runtime()
SMALL = MASACConfig(hidden=16, share=False, reward_scale=1.0)


def build(kind, agents, seeds=(0,), config=SMALL):
    env = LeaderFollower(followers=agents - 1)
    rng = Streams(seeds, dtype=torch.float64)
    return env, kind(config, env.spec, survey(env, rng), rng, RT), rng


def source_for(env, learner, rng):
    return collector(
        env, learner.policy(env.spec), ReplayConfig(worlds=8, batch=16, capacity=512, learning_starts=64), rng, RT
    )


def train_runs(seeds, updates):
    """Train runs in this process; return the rows of their state."""
    env, learner, rng = build(MASAC, 2, seeds)
    source = source_for(env, learner, rng)
    for _ in training(source, learner, rng, RT, 0, updates):
        pass
    runs = len(seeds)
    state = {k: v.numpy() for k, v in learner.state_dict().items() if v.dim() == 2}
    return {k: v.reshape(runs, -1) for k, v in state.items()}


def test_three_runs_equal_each_alone():
    seeds = (3, 11, 5)
    together = train_runs(seeds, 20)
    for run, seed in enumerate(seeds):
        for name, rows in train_runs((seed,), 20).items():
            assert np.abs(together[name][run] - rows[0]).max() <= 1e-9 * np.abs(rows).max(), (seed, name)
    assert np.abs(together["actor.parameter"][0] - together["actor.parameter"][1]).max() > 1e-3


SPEC = EnvSpec(agents=2, obs=1, action=1, horizon=9, dt=1.0, initial_noise=0, step_noise=0, groups=(0, 1))


def tiny(**config) -> MASAC:
    """Two agents with one observation and one action each; all weights but the last biases are zero."""
    flat = torch.zeros(1, 2, 1, dtype=torch.float64)
    inputs = Scale(center=flat, spread=flat + 1)
    rng = Streams([0], dtype=torch.float64)
    learner = MASAC(MASACConfig(hidden=2, share=False, reward_scale=1.0, **config), SPEC, inputs, rng, RT)
    with torch.no_grad():
        for step in (learner.actor, learner.critic):
            step.parameter.zero_()
        learner.target.zero_()
    return learner


def row(reward, terminated) -> Transition:
    one = torch.zeros(1, 1, 2, 1, dtype=torch.float64)
    return Transition(
        obs=one,
        action=one,
        reward=torch.tensor([[reward]], dtype=torch.float64),
        next_obs=one,
        terminated=torch.tensor([[terminated]]),
        truncated=torch.zeros(1, 1, dtype=torch.bool),
    )


NO_NOISE = torch.zeros(1, 1, 2, 1, dtype=torch.float64)
LOG_PROB = -0.5 * math.log(2 * math.pi)  # mean 0, log std 0, noise 0: density of N(0, 1) at 0; tanh'(0) = 1


def test_targets_bootstrap_only_agents_whose_task_goes_on():
    """y = r + 0.5 (q' - alpha log pi): q' = min(3, 5) = 3, alpha = 2; the second agent's task ended, so y = r."""
    learner = tiny(gamma=0.5, alpha=2.0)
    with torch.no_grad():
        heads = learner.target.view(2, 2, -1)
        heads[:, 0, -1], heads[:, 1, -1] = 3.0, 5.0  # the last bias of each head is its value everywhere
    y = learner.targets(
        learner.actor.parameter, learner.target, learner.temperature.parameter, row([1.0, 7.0], [False, True]), NO_NOISE
    )
    assert y[0, :, 0].tolist() == pytest.approx([1 + 0.5 * (3 - 2 * LOG_PROB), 7.0])


def test_critic_loss_sums_agents_and_heads():
    """Both heads say 0, targets are 2 and 3: 2 x 4 + 2 x 9 = 26; a weight of 0.5 halves it."""
    learner, data = tiny(), row([0.0, 0.0], [False, False])
    target = torch.tensor([[[2.0], [3.0]]], dtype=torch.float64)
    assert learner.critic_loss(learner.critic.parameter, data, target, None)[0].item() == pytest.approx(26)
    half = torch.tensor([[0.5]], dtype=torch.float64)
    assert learner.critic_loss(learner.critic.parameter, data, target, half)[0].item() == pytest.approx(13)


def test_errors_of_rows_are_the_mean_size_over_heads():
    """Heads say 1 and -3; they miss 2 by 1 and 5, and -1 by 2 and 2: 3 and 2, however rows are weighted."""
    learner = tiny()
    with torch.no_grad():
        heads = learner.critic.parameter.view(2, 2, -1)
        heads[:, 0, -1], heads[:, 1, -1] = 1.0, -3.0
    target = torch.tensor([[[2.0], [-1.0]]], dtype=torch.float64)
    _, metrics = learner.critic_loss(learner.critic.parameter, row([0.0, 0.0], [False, False]), target, None)
    assert metrics["td_error"].axis == 1
    assert metrics["td_error"].value.tolist() == [[[3.0, 2.0]]]
    assert not metrics["td_error"].value.requires_grad
    half = torch.tensor([[0.5]], dtype=torch.float64)
    _, halved = learner.critic_loss(learner.critic.parameter, row([0.0, 0.0], [False, False]), target, half)
    assert torch.equal(halved["td_error"].value, metrics["td_error"].value)


def test_actor_loss_is_soft_value_lost():
    """alpha log pi - min(q) per agent: 2 log pi - 3, twice."""
    learner = tiny(alpha=2.0)
    with torch.no_grad():
        heads = learner.critic.parameter.view(2, 2, -1)
        heads[:, 0, -1], heads[:, 1, -1] = 3.0, 5.0
    data = row([0.0, 0.0], [False, False])
    loss, _ = learner.actor_loss(
        learner.actor.parameter, learner.critic.parameter.detach(), learner.temperature.parameter, data, NO_NOISE
    )
    assert loss.item() == pytest.approx(2 * (2 * LOG_PROB - 3))


def test_temperature_rises_when_entropy_is_below_its_target():
    """-log alpha (log pi + H): with log pi = 1 and H = -0.5 the slope is -0.5, so descent raises alpha."""
    learner = tiny(alpha=1.0, target_entropy=-0.5)
    before = learner.temperature.parameter.detach().clone()
    excess = torch.full((1, 2), 1 + learner.target_entropy, dtype=torch.float64)
    learner.temperature(learner.temperature_loss, learner.temperature.parameter, excess)
    assert (learner.temperature.parameter > before).all()


def test_an_actor_answers_for_its_own_action_alone():
    """Agent 0's critic prefers large actions of agent 1; that must not move agent 1's actor."""
    env, learner, rng = build(MASAC, 2)
    batch, noise = source_for(env, learner, rng).next(), learner.update_noise(rng, 16)
    critic = learner.critic.parameter.detach().clone()
    critic[1].zero_()  # agent 1's own critic is flat
    alpha = torch.full_like(learner.temperature.parameter, -30.0)  # and its entropy is worth nothing
    loss, _ = learner.actor_loss(learner.actor.parameter, critic, alpha, batch.data, noise.action)
    (slope,) = torch.autograd.grad(loss, learner.actor.parameter)
    assert slope[1].abs().max() < 1e-9
    assert slope[0].abs().max() > 1e-9


def test_each_row_is_clipped_by_its_own_norm():
    env, learner, rng = build(MASAC, 2)
    data = source_for(env, learner, rng).next()
    far = dataclasses.replace(data.data, reward=data.data.reward * torch.tensor([1e6, 1e-3], dtype=torch.float64))
    update = learner.update(dataclasses.replace(data, data=far), learner.update_noise(rng, 16))
    norm = update.metrics["critic_norm"][0]
    used = torch.linalg.vector_norm(learner.critic.parameter.grad, dim=1)
    assert norm[0] > SMALL.clip
    assert used[0].item() == pytest.approx(SMALL.clip, rel=1e-6)
    assert used[1].item() == pytest.approx(min(norm[1].item(), SMALL.clip), rel=1e-5)


def test_numbers_come_in_the_order_of_cause_with_what_their_rows_are():
    for agents, share, row in ((3, True, "R K"), (3, False, "R A"), (2, True, "R A")):
        env, learner, rng = build(MASAC, agents, (0, 4), dataclasses.replace(SMALL, share=share))
        update = learner.update(source_for(env, learner, rng).next(), learner.update_noise(rng, 16))
        returned = learner.tensors_to_check(update)
        assert list(returned) == [
            *("target", "q", "critic_loss", "critic_norm", "entropy", "actor_loss", "actor_norm", "alpha")
        ]
        state = learner.tensors_to_check()
        kinds, parts = ("actor", "critic", "temperature"), ("parameter", "exp_avg", "exp_avg_sq")
        assert set(state) == {f"{kind}.{part}" for kind in kinds for part in parts} | {"target.parameter"}
        networks = {"actor_norm", "alpha", *(name for name in state if name.startswith(("actor", "temperature")))}
        for name, (tensor, axes) in (returned | state).items():
            assert axes == (row if name in networks else "R A"), name
            assert tensor.shape[:2] == (2, 2 if axes == "R K" else agents), name


def test_the_mean_target_is_told():
    learner = tiny(gamma=0.5, alpha=2.0)
    data = row([3.0, 7.0], [True, True])  # nothing is bootstrapped, so y = r
    update = learner.update(Batch(data, torch.zeros(1, 1, dtype=torch.int64)), UpdateNoise(NO_NOISE, NO_NOISE))
    assert update.metrics["target"].tolist() == [[3.0, 7.0]]


def test_identity_task_is_learned():
    """One agent earns -(action - observation)^2: after some updates the mean action follows the observation."""
    spec = dataclasses.replace(SPEC, agents=1, groups=(0,))
    inputs = Scale(center=torch.zeros(1, 1, 1), spread=torch.full((1, 1, 1), 0.5))
    rng = Streams([0])
    config = MASACConfig(hidden=32, gamma=0.0, alpha=0.05, target_entropy=-3.0, alpha_lr=1e-2)
    learner = MASAC(config, spec, inputs, rng, RT)
    for _ in range(400):
        obs = 1.6 * rng.uniform("obs", 64, 1, 1) - 0.8
        action = 2 * rng.uniform("action", 64, 1, 1) - 1
        reward = -(action - obs).square()[..., 0]
        ended = torch.ones_like(reward, dtype=torch.bool)
        data = Transition(obs, action, reward, obs, ended, ~ended[..., 0])
        learner.update(Batch(data, torch.zeros(1, 64, dtype=torch.int64)), learner.update_noise(rng, 64))
    obs = torch.linspace(-0.7, 0.7, 15).view(1, 15, 1, 1)
    error = (learner.policy(spec)(obs, None) - obs).abs().mean().item()
    assert error < 0.12


def test_vmap_evaluates_each_network_on_its_own_rows() -> None:
    """A layer without a batching rule would warn of it, and warnings are errors here."""
    net, rng = StackedMLP(3, 4, 2), Streams([0], dtype=torch.float64)
    x = rng.normal("x", 5, 7, 3)[0]
    theta = net.initial_for(rng.uniform("net", 5, net.count)[0], torch.zeros_like(x[:, 0]), torch.ones_like(x[:, 0]))
    out = torch.func.vmap(evaluate)(net.unpack(theta), x)
    torch.testing.assert_close(out, net(theta, x))
    for g in range(5):
        torch.testing.assert_close(out[g], evaluate([piece[g] for piece in net.unpack(theta)], x[g]))


def test_parameters_are_stacked_layer_by_layer() -> None:
    side = Side({name: KINDS[name] for name in ("vmap", "batched")}, 3, True, (3, 5))
    vmap, batched = side.learners["vmap"], side.learners["batched"]
    shapes = [tuple(tensor.shape) for tensor in vmap.critic.parameters]
    assert shapes == [(6, 2, 27, 16), (6, 2, 1, 16), (6, 2, 16, 16), (6, 2, 1, 16), (6, 2, 16, 1), (6, 2, 1, 1)]
    assert [tensor.shape[0] for tensor in vmap.actor.parameters] == [4] * 6  # two runs of two groups
    mine, other = vmap.tensors_to_check(), batched.tensors_to_check()
    for name, (table, _) in mine.items():
        assert torch.equal(table, other[name][0]), name


def test_a_pair_of_critics_is_clipped_by_the_norm_of_all_its_layers() -> None:
    side = Side({name: KINDS[name] for name in ("vmap", "batched")}, 3)
    updates = side.train(1)
    vmap = side.learners["vmap"]
    norm = updates["vmap"].metrics["critic_norm"]
    torch.testing.assert_close(norm, updates["batched"].metrics["critic_norm"])
    assert (norm > vmap.config.clip).any()
    used = torch.stack([tensor.grad.flatten(1).norm(dim=1) for tensor in vmap.critic.parameters]).norm(dim=0)
    torch.testing.assert_close(used, norm[0].clamp(max=vmap.config.clip), rtol=1e-5, atol=0)
