"""PPO against the same update written out agent by agent, deaths and masks, runs together and apart, by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.collectors.fixed_length import FixedLengthCollector, FixedLengthConfig
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, EnvSpec, Scale, Steps, tree_map
from uavlab.learners.ppo.algorithm import (
    PPO,
    IPPOConfig,
    MAPPOConfig,
    evaluate_actions,
    load_policy,
)
from uavlab.learners.ppo.moments import Moments
from uavlab.runtime.grad_step import ADAM_EPS
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles

SPEC = EnvSpec(agents=3, obs=4, action=2, horizon=9, dt=1.0, initial_noise=1, step_noise=1, groups=(0, 1, 1))
CONFIG = MAPPOConfig(
    hidden=8, width=4, kernels=(3, 2), epochs=2, minibatches=2, lr=1e-2, critic_lr=1e-2, clip=0.5, target_kl=0.0,
    entropy=0.1, entropy_to=0.1,
)  # fmt: skip
RT = Runtime(requested=Toggles(acting="batched"))
T, W = 4, 3


def scale(runs: int = 1) -> Scale:
    ones = torch.ones(runs, SPEC.agents, SPEC.obs, dtype=torch.float64)
    return Scale(center=0.1 * ones, spread=ones)


def build(config: MAPPOConfig = CONFIG, seeds: tuple[int, ...] = (0,), rt: Runtime = RT) -> tuple[PPO, Streams]:
    rng = Streams(seeds, dtype=torch.float64)
    return PPO(config, SPEC, scale(len(seeds)), rng, rt), rng


def steps(rng: Streams) -> Steps:
    """Return random steps in which agents end alone, and worlds at the time limit."""
    shape = (T, W, SPEC.agents)
    terminated = rng.uniform("ends", *shape) < 0.2
    limit = rng.uniform("limits", T, W, 1) < 0.2
    live, alive = [], torch.ones(len(rng.seeds), W, SPEC.agents, dtype=torch.bool)
    for t in range(T):
        live.append(alive)
        done = limit[:, t] | terminated[:, t].all(-1, keepdim=True)
        alive = (alive & ~terminated[:, t]) | done
    return Steps(
        obs=rng.normal("obs", *shape, SPEC.obs),
        action=torch.tanh(rng.normal("action", *shape, SPEC.action)),
        reward=10 * rng.normal("reward", *shape),
        next_obs=rng.normal("next_obs", *shape, SPEC.obs),
        live=torch.stack(live, 1),
        terminated=terminated,
        ended=terminated | limit,
    )


def batch_of(data: Steps) -> Batch:
    return Batch(data, torch.arange(T * W).expand(len(data.reward), -1))


def evaluate(net: Any, row: Tensor, x: Tensor) -> Tensor:
    return net(row[None], x[None, None])[0, 0]


def slow_update(learner: PPO, data: Steps, noise: Tensor) -> dict[str, Tensor]:
    """Make one update of one run: agent after agent, row after row, a torch Adam for each kind of network."""
    config, team = learner.config, learner.team
    actor, critic = (part.parameter.detach().clone().requires_grad_() for part in (learner.actor, learner.critic))
    rows, agents = [(t, w) for t in range(T) for w in range(W)], range(SPEC.agents)

    def value(obs: Tensor, i: int) -> Tensor:
        seen = obs.flatten() if config.critic == "central" else obs[i]
        return evaluate(team.critic_net, critic[team.critics[i]], seen)[0]

    def log_prob_and_entropy(t: int, w: int, i: int) -> tuple[Tensor, Tensor]:
        out = evaluate(team.actor_net, actor[team.networks[i]], data.obs[0, t, w, i])
        mean, std = 3 * torch.tanh(out[:2] / 3), out[2:].clamp(config.log_std_low, config.log_std_high).exp()
        normal, action = torch.distributions.Normal(mean, std), data.action[0, t, w, i]
        density = normal.log_prob(torch.atanh(action)) - torch.log(1 - action**2)
        return density.sum(), normal.entropy().sum()

    # no returns are known before the first update, so values are outputs as they are
    advantage, returns, old = {}, {}, {}
    for i in agents:
        for w in range(W):
            later = 0.0
            for t in reversed(range(T)):
                ahead = 0.0 if data.terminated[0, t, w, i] else value(data.next_obs[0, t, w], i).item()
                delta = data.reward[0, t, w, i].item() + config.gamma * ahead - value(data.obs[0, t, w], i).item()
                later = delta + (0.0 if data.ended[0, t, w, i] else config.gamma * config.lam * later)
                advantage[t, w, i] = later
                returns[t, w, i] = later + value(data.obs[0, t, w], i).item()
                old[t, w, i] = log_prob_and_entropy(t, w, i)[0].item()
    alive = {(t, w, i): bool(data.live[0, t, w, i]) for t, w in rows for i in agents}
    target, gain = {}, {}
    for i in agents:
        lived = [returns[t, w, i] for t, w in rows if alive[t, w, i]]
        target[i] = (sum(lived) / len(lived), sum(x * x for x in lived) / len(lived))
    for i in agents:
        owners = [j for j in agents if team.critics[j] == team.critics[i]]
        mean, square = (sum(target[j][k] for j in owners) / len(owners) for k in (0, 1))
        spread = math.sqrt(square - mean**2)
        for t, w in rows:
            returns[t, w, i] = (returns[t, w, i] - mean) / spread
        peers = [j for j in agents if team.networks[j] == team.networks[i]]
        lived = [advantage[t, w, j] for t, w in rows for j in peers if alive[t, w, j]]
        center = sum(lived) / len(lived)
        spread = math.sqrt(sum((x - center) ** 2 for x in lived) / len(lived))
        gain |= {(t, w, i): (advantage[t, w, i] - center) / spread for t, w in rows}
    share = sum(alive.values()) / len(alive)
    optimizers = [
        torch.optim.Adam([parameter], lr, eps=ADAM_EPS)
        for parameter, lr in ((critic, config.critic_lr), (actor, config.lr))
    ]
    for order in noise[0]:
        for part in (order[: len(order) // 2], order[len(order) // 2 :]):
            critic_loss, actor_loss = 0.0, 0.0
            for t, w in (divmod(row, W) for row in part.tolist()):
                for i in agents:
                    if not alive[t, w, i]:
                        continue
                    critic_loss = critic_loss + (value(data.obs[0, t, w], i) - returns[t, w, i]) ** 2 / share
                    log_prob, entropy = log_prob_and_entropy(t, w, i)
                    ratio = (log_prob - old[t, w, i]).exp()
                    held = min(max(ratio.item(), 1 - config.clip_ratio), 1 + config.clip_ratio)
                    first, second = ratio * gain[t, w, i], held * gain[t, w, i]
                    best = first if first.item() <= second else torch.tensor(second)
                    actor_loss = actor_loss - (best + config.entropy * entropy) / share
            losses = (critic_loss, actor_loss)
            for optimizer, parameter, loss in zip(optimizers, (critic, actor), losses, strict=True):
                (parameter.grad,) = torch.autograd.grad(loss / (len(part) * SPEC.agents), parameter)
                norm = parameter.grad.norm(dim=1, keepdim=True)
                parameter.grad *= (config.clip / (norm + 1e-6)).clamp(max=1)
                optimizer.step()
    return {"actor": actor.detach(), "critic": critic.detach()}


@pytest.mark.parametrize(
    "config", [CONFIG, replace(CONFIG, share=False), IPPOConfig(**vars(CONFIG) | {"critic": "own"})]
)
def test_an_update_equals_the_one_written_out(config: MAPPOConfig) -> None:
    learner, rng = build(config)
    data, noise = steps(rng), learner.update_noise(rng, T * W)
    assert not data.live.all()
    assert data.terminated.any()
    assert (data.ended & ~data.terminated).any()
    before, expected = learner.actor.parameter.detach().clone(), slow_update(learner, data, noise)
    learner.update(batch_of(data), noise)
    for name, parameters in expected.items():
        torch.testing.assert_close(getattr(learner, name).parameter.detach(), parameters, rtol=1e-8, atol=1e-9)
    assert (learner.actor.parameter - before).abs().max() > 1e-3


@pytest.mark.parametrize("broken", [
    {"lam": 0.5}, {"gamma": 0.5}, {"clip_ratio": 0.01}, {"entropy": 0.5, "entropy_to": 0.5}, {"clip": 0.01},
])  # fmt: skip
def test_a_broken_variant_is_caught(broken: dict[str, float]) -> None:
    learner, rng = build()
    data, noise = steps(rng), learner.update_noise(rng, T * W)
    expected = slow_update(learner, data, noise)
    other, _ = build(replace(CONFIG, **broken))
    other.update(batch_of(data), noise)
    far = max((getattr(other, name).parameter - expected[name]).abs().max() for name in expected)
    assert far > 1e-5


def learned(learner: PPO, data: Steps, noise: Tensor) -> dict[str, Tensor]:
    learner.update(batch_of(data), noise)
    return {name: tensor.clone() for name, tensor in learner.state_dict().items()}


def test_rows_after_the_end_of_a_task_teach_nothing() -> None:
    learner, rng = build()
    data, noise = steps(rng), learner.update_noise(rng, T * W)
    dead = ~data.live
    poisoned = replace(
        data,
        reward=data.reward + 100.0 * dead,
        action=torch.where(dead[..., None], -data.action, data.action),
    )
    plain, other = learned(learner, data, noise), learned(build()[0], poisoned, noise)
    assert all(torch.equal(plain[name], other[name]) for name in plain)
    awake = replace(poisoned, live=torch.ones_like(dead))  # the mutant: they count as any other row
    assert not torch.equal(learned(build()[0], awake, noise)["actor.parameter"], plain["actor.parameter"])


def test_a_value_after_the_time_limit_counts_and_one_after_the_end_does_not() -> None:
    learner, rng = build()
    data, noise = steps(rng), learner.update_noise(rng, T * W)
    plain = learned(learner, data, noise)["critic.parameter"]
    limit = data.ended & ~data.terminated
    for mask, same in ((data.terminated.all(-1), True), (limit.any(-1) & ~data.terminated.all(-1), False)):
        next_obs = torch.where(mask[..., None, None], data.next_obs + 1.0, data.next_obs)
        other = learned(build()[0], replace(data, next_obs=next_obs), noise)["critic.parameter"]
        assert torch.equal(other, plain) is (same or not mask.any())


def test_runs_together_equal_runs_apart() -> None:
    together, rng = build(seeds=(5, 9))
    data, noise = steps(rng), together.update_noise(rng, T * W)
    both = learned(together, data, noise)
    for run, seed in enumerate((5, 9)):
        own = tree_map(lambda leaf, r=run: leaf[r : r + 1], data)
        alone = learned(build(seeds=(seed,))[0], own, noise[run : run + 1])
        for name in ("actor.parameter", "critic.parameter"):
            torch.testing.assert_close(both[name].unflatten(0, (2, -1))[run], alone[name], rtol=1e-9, atol=1e-12)


def test_the_actor_stops_far_from_the_old_policy_and_the_critic_goes_on() -> None:
    results = {}
    for limit in (0.0, 1e-9, 1e9):
        learner, rng = build(replace(CONFIG, target_kl=limit))
        data, noise = steps(rng), learner.update_noise(rng, T * W)
        results[limit] = learned(learner, data, noise)
    assert torch.equal(results[0.0]["actor.parameter"], results[1e9]["actor.parameter"])
    assert not torch.equal(results[0.0]["actor.parameter"], results[1e-9]["actor.parameter"])
    assert torch.equal(results[0.0]["critic.parameter"], results[1e-9]["critic.parameter"])
    first, rng = build(replace(CONFIG, target_kl=1e-9))  # one step, from a distance of 0, is always taken
    data = steps(rng)
    noise = first.update_noise(rng, T * W)
    start = first.actor.parameter.detach().clone()
    for part in list(first._minibatches(first.targets(*targets_of(first), data)[0], noise))[:1]:
        first._step(part, torch.tensor(0.1, dtype=torch.float64))
    assert torch.equal(first.actor.parameter.detach(), results[1e-9]["actor.parameter"])
    assert not torch.equal(first.actor.parameter.detach(), start)


def targets_of(learner: PPO) -> tuple[Tensor, Tensor, Moments]:
    moments = Moments(mean=learner.mean, square=learner.square, weight=learner.weight)
    return learner.actor.parameter.detach(), learner.critic.parameter.detach(), moments


def test_one_run_that_stops_leaves_the_other_alone() -> None:
    together, rng = build(replace(CONFIG, target_kl=0.02), seeds=(5, 9))
    data, noise = steps(rng), together.update_noise(rng, T * W)
    calm = replace(data, reward=data.reward * torch.tensor([1.0, 0.0]).view(2, 1, 1, 1))
    both = learned(together, calm, noise)
    for run, seed in enumerate((5, 9)):
        own = tree_map(lambda leaf, r=run: leaf[r : r + 1], calm)
        alone = learned(build(replace(CONFIG, target_kl=0.02), seeds=(seed,))[0], own, noise[run : run + 1])
        actor = both["actor.parameter"].unflatten(0, (2, -1))[run]
        torch.testing.assert_close(actor, alone["actor.parameter"], rtol=1e-9, atol=1e-12)


def test_the_weight_of_entropy_falls_to_its_end() -> None:
    learner, rng = build(replace(CONFIG, entropy=0.5, entropy_to=0.1, entropy_updates=4))
    weights = [
        learner.update(batch_of(steps(rng)), learner.update_noise(rng, T * W)).metrics["entropy_weight"].item()
        for _ in range(6)
    ]
    assert weights == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.1])


def mission(config: MAPPOConfig = CONFIG, seeds: tuple[int, ...] = (0,)) -> tuple[PPO, Batch, Streams]:
    rng = Streams(seeds)
    learner = PPO(config, TINY_MISSION.spec, None, rng, RT)
    policy = learner.policy(TINY_MISSION.spec, explore=True)
    source = FixedLengthCollector(TINY_MISSION, policy, FixedLengthConfig(3, 7, 2), rng, RT)
    return learner, source.next(), rng


def test_a_closed_move_has_no_chance_and_no_gradient() -> None:
    _, batch, _ = mission()
    obs, action = (tree_map(lambda leaf: leaf.flatten(1, 2), each) for each in (batch.data.obs, batch.data.action))
    logits = torch.zeros(*obs.legal.shape, requires_grad=True)
    log_prob, entropy = evaluate_actions(CONFIG, logits, obs, action)
    (log_prob.sum() + entropy.sum()).backward()
    assert not obs.legal.all()
    assert logits.grad[~obs.legal].abs().max() == 0
    assert log_prob.exp().min() >= 1 / TINY_MISSION.spec.choices - 1e-6
    open_ = obs.legal.sum(-1).double()
    assert (entropy.double() <= open_.log() + 1e-5).all()


def test_maps_are_learned_from_and_other_teams_are_refused() -> None:
    learner, batch, rng = mission()
    before = learner.actor.parameter.detach().clone()
    update = learner.update(batch, learner.update_noise(rng, batch.index.shape[1]))
    assert not torch.equal(before, learner.actor.parameter.detach())
    assert all(value.shape == (1,) for value in update.metrics.values())
    with pytest.raises(ConfigError, match="side 6"):
        load_policy(CONFIG, TINY_MISSION.spec, replace(TINY_MISSION, lattice=6).spec, learner.parameters())


@pytest.mark.parametrize("size", [3, 5])
def test_a_policy_flies_teams_of_any_size(size: int) -> None:
    learner, rng = build()
    spec = replace(SPEC, agents=size, groups=(0,) + (1,) * (size - 1))
    policy = load_policy(CONFIG, SPEC, spec, learner.parameters())
    obs, noise = rng.normal("obs", 6, size, SPEC.obs), rng.normal("act", 6, size, SPEC.action)
    assert policy(obs, noise).shape == (1, 6, size, 2)
    assert torch.equal(policy(obs, noise), learner.policy(spec, explore=True)(obs, noise))
    in_turn, _ = build(rt=Runtime())
    in_turn.load_state_dict(learner.state_dict())
    torch.testing.assert_close(in_turn.policy(spec)(obs, noise), policy(obs, noise), rtol=1e-12, atol=1e-12)
