"""COMA against the same update written out sample by sample, runs together and apart, and each figure by hand."""

from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.collectors.on_policy import OnPolicyCollector, RolloutConfig
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, MapObs, Rollout, tree_map
from uavlab.learners.coma import COMA, COMAConfig, critic_maps
from uavlab.runtime.grad_step import ADAM_EPS
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles

CONFIG = COMAConfig(width=4, kernels=(3, 2), hidden=8, passes=2, minibatches=2, target_every=1, lr=1e-2, clip=0.5)
RT = Runtime(requested=Toggles(acting="batched"))


def build(seeds=(0,), config=CONFIG, env=TINY_MISSION) -> tuple[COMA, Streams, Batch]:
    rng = Streams(seeds)
    learner = COMA(config, env.spec, rng, RT)
    batch = OnPolicyCollector(env, learner.policy(env.spec, explore=True), RolloutConfig(worlds=3), rng, RT).next()
    return learner, rng, batch


def build_double(config=CONFIG) -> tuple[COMA, Streams, Batch]:
    """Hold the same numbers with more digits, so that comparisons can be sharp."""
    learner, rng, batch = build(config=config)
    data = tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, batch.data)
    for part, lr in ((learner.actor, learner.config.lr), (learner.critic, learner.config.critic_lr)):
        name = "actor" if part is learner.actor else "critic"
        setattr(learner, name, RT.grad(part.parameter.detach().double(), lr, learner.config.clip))
    learner.target = learner.target.double()
    return learner, rng, Batch(data, batch.index)


def slow_critic_input(obs: MapObs, action: Tensor, r: int, t: int, w: int, agent: int) -> Tensor:
    side = obs.maps.shape[-1]
    others = torch.zeros(side, side, dtype=obs.maps.dtype)
    for other in range(action.shape[-1]):
        if other != agent:
            y, x = divmod(int(obs.place[r, t, w, other]), side)
            others[y, x] += (int(action[r, t, w, other]) + 1) / obs.legal.shape[-1]
    return torch.cat((obs.maps[r, t, w, agent], obs.team[r, t, w], others[None]))


def slow_open(obs: MapObs, action: Tensor, r: int, t: int, w: int, agent: int) -> list[int]:
    target_cell = obs.target_cell[r, t, w]
    occupied = [int(target_cell[j, action[r, t, w, j]]) for j in range(agent)]
    legal = [e for e in range(target_cell.shape[-1]) if obs.legal[r, t, w, agent, e]]
    return [e for e in legal if int(target_cell[agent, e]) not in occupied] or legal


def slow_update(learner: COMA, data: Rollout, noise: Tensor) -> dict[str, Tensor]:
    """Make one update of one run: a list of samples, one loss after the other, torch's Adam."""
    config, obs, action = learner.config, data.obs, data.action
    actor = learner.actor.parameter.detach().clone().requires_grad_()
    critic = learner.critic.parameter.detach().clone().requires_grad_()
    steps, worlds, agents = data.reward.shape[1:]
    values = {}
    for t in range(steps + 1):
        for w in range(worlds):
            for i in range(agents):
                seen = slow_critic_input(obs, action, 0, t, w, i)
                values[t, w, i] = learner.critic_net(learner.target, seen[None, None])[0, 0]
    target = {}
    for w in range(worlds):
        for i in range(agents):
            later = values[steps, w, i][action[0, steps, w, i]]
            for t in reversed(range(steps)):
                value = values[t + 1, w, i][action[0, t + 1, w, i]]
                ahead = 0.0 if data.terminated[0, t, w, i] else (1 - config.lam) * value + config.lam * later
                later = data.reward[0, t, w, i] + config.gamma * ahead
                target[t, w, i] = later.detach()
    explore = config.explore_from
    optimizers = [
        torch.optim.Adam([parameter], lr, eps=ADAM_EPS)
        for parameter, lr in ((critic, config.critic_lr), (actor, config.lr))
    ]
    for number, order in enumerate(noise[0]):
        learning = 2 if number >= config.passes - config.actor_passes else 1  # the critic, or both
        for part in (order[: len(order) // 2], order[len(order) // 2 :]):
            critic_loss, actor_loss = 0.0, 0.0
            for row in part.tolist():
                t, w = divmod(row, worlds)
                for i in range(agents):
                    move = int(action[0, t, w, i])
                    q = learner.critic_net(critic, slow_critic_input(obs, action, 0, t, w, i)[None, None])[0, 0]
                    critic_loss = critic_loss + (q[move] - target[t, w, i]) ** 2
                    free = slow_open(obs, action, 0, t, w, i)
                    logits = learner.actor_net(actor, obs.maps[0, t, w, i][None, None])[0, 0]
                    chance = (1 - explore) * logits[free].softmax(0) + explore / len(free)
                    advantage = q[move] - (chance * q[free]).sum()
                    entropy = -(chance * chance.log()).sum()
                    gained = advantage.detach() * chance[free.index(move)].log() + config.entropy * entropy
                    actor_loss = actor_loss - gained
            both = zip(optimizers, (critic, actor), (critic_loss, actor_loss), strict=True)
            for optimizer, parameter, loss in islice(both, learning):
                (parameter.grad,) = torch.autograd.grad(loss / (len(part) * agents), parameter)
                norm = parameter.grad.norm()
                parameter.grad *= min(1.0, config.clip / (float(norm) + 1e-6))
                optimizer.step()
    return {"actor": actor.detach(), "critic": critic.detach()}


@pytest.mark.parametrize("actor_passes", [1, 2])
def test_an_update_equals_the_one_written_out(actor_passes: int) -> None:
    learner, rng, batch = build_double(replace(CONFIG, actor_passes=actor_passes))
    before = learner.actor.parameter.detach().clone()
    noise = learner.update_noise(rng, batch.index.shape[1])
    expected = slow_update(learner, batch.data, noise)
    learner.update(batch, noise)
    torch.testing.assert_close(learner.critic.parameter.detach(), expected["critic"], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(learner.actor.parameter.detach(), expected["actor"], rtol=1e-8, atol=1e-9)
    assert (learner.actor.parameter - before).abs().max() > 1e-3
    assert torch.equal(learner.target, learner.critic.parameter)  # target_every=1


@pytest.mark.parametrize("broken", ["lam", "gamma", "explore_from", "entropy"])
def test_a_broken_variant_is_caught(broken: str) -> None:
    learner, rng, batch = build_double()
    noise = learner.update_noise(rng, batch.index.shape[1])
    expected = slow_update(learner, batch.data, noise)
    object.__setattr__(learner, "config", COMAConfig(**{**vars(CONFIG), broken: 0.9}))
    learner.update(batch, noise)
    far = max((getattr(learner, name).parameter - expected[name]).abs().max() for name in expected)
    assert far > 1e-5


def test_runs_together_equal_runs_apart() -> None:
    def learned(seeds: tuple[int, ...]) -> dict[str, Tensor]:
        learner, rng, batch = build(seeds)
        for _ in range(2):
            learner.update(batch, learner.update_noise(rng, batch.index.shape[1]))
        return learner.state_dict()

    together = learned((5, 9))
    for run, seed in enumerate((5, 9)):
        alone = learned((seed,))
        for name in ("actor.parameter", "critic.parameter", "target"):
            assert (together[name][run] - alone[name][0]).abs().max() < 1e-5
    assert (together["actor.parameter"][0] - together["actor.parameter"][1]).abs().max() > 1e-3


def test_dead_rows_teach_and_report_nothing() -> None:
    learner, rng, batch = build_double()
    noise = learner.update_noise(rng, batch.index.shape[1])
    live = batch.data.live.clone()
    live[:, 2:] = False

    def learned(poison: float) -> dict[str, Tensor]:
        other, _, _ = build_double()
        reward = batch.data.reward.clone()
        reward[:, 2:] += poison
        ends = batch.data.terminated.clone()
        ends[:, 1] = True
        maps = batch.data.obs.maps.clone()
        maps[:, 2:] += poison
        obs = replace(batch.data.obs, maps=maps)
        data = Rollout(obs=obs, action=batch.data.action, reward=reward, live=live, terminated=ends)
        metrics = other.update(Batch(data, batch.index), noise).metrics
        return {"critic": other.critic.parameter.detach(), "actor": other.actor.parameter.detach(), **metrics}

    clean, poisoned = learned(0.0), learned(100.0)
    assert {name for name, value in clean.items() if not torch.allclose(value, poisoned[name], atol=1e-12)} == set()


def test_agents_one_by_one_choose_what_they_choose_at_once() -> None:
    learner, rng, batch = build()
    loop = COMA(CONFIG, TINY_MISSION.spec, Streams([0]), Runtime())
    loop.load_state_dict(learner.state_dict())
    obs = tree_map(lambda leaf: leaf[:, 0], batch.data.obs)
    noise = rng.uniform("act", 3, TINY_MISSION.uavs)
    choices = [each.policy(TINY_MISSION.spec, explore=True)(obs, noise) for each in (learner, loop)]
    assert torch.equal(*choices)


def test_exploration_falls_to_its_end() -> None:
    learner, _, _ = build(config=COMAConfig(**{**vars(CONFIG), "explore_from": 0.5, "explore_updates": 4}))
    shares = []
    for _ in range(6):
        shares.append(learner.explore.item())
        learner.count.add_(1)
    assert shares == pytest.approx([0.5, 0.38, 0.26, 0.14, 0.02, 0.02])


def test_the_target_is_copied_when_it_is_due() -> None:
    learner, rng, batch = build(config=COMAConfig(**{**vars(CONFIG), "target_every": 2}))
    first = learner.target.clone()
    noise = learner.update_noise(rng, batch.index.shape[1])
    learner.update(batch, noise)
    assert torch.equal(learner.target, first)
    learner.update(batch, noise)
    assert torch.equal(learner.target, learner.critic.parameter)


def test_the_state_goes_on_bit_for_bit() -> None:
    learner, rng, batch = build()
    noise = [learner.update_noise(rng, batch.index.shape[1]) for _ in range(2)]
    learner.update(batch, noise[0])
    state = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    other, _, _ = build(seeds=(4,))
    other.load_state_dict(state)
    for each in (learner, other):
        each.update(batch, noise[1])
    for name, tensor in learner.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_what_others_choose_is_drawn_where_they_are() -> None:
    obs = MapObs(
        maps=torch.zeros(1, 2, 1, 3, 3),
        team=torch.full((1, 1, 3, 3), 7.0),
        place=torch.tensor([[0, 5]]),
        legal=torch.ones(1, 2, 6, dtype=torch.bool),
        target_cell=torch.zeros(1, 2, 6, dtype=torch.int64),
    )
    seen = critic_maps(obs, torch.tensor([[2, 5]]))
    assert seen.shape == (1, 2, 3, 3, 3)
    assert seen[0, 0, 2].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert seen[0, 1, 2].tolist() == [[0.5, 0, 0], [0, 0, 0], [0, 0, 0]]
    moved = critic_maps(obs, torch.tensor([[2, 5]]), centred_maps=True)
    assert moved[0, 1, 2].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0]]  # the other is two columns away: out of sight
    assert moved[0, 0, 1].tolist() == [[0, 0, 0], [0, 7, 7], [0, 7, 7]]


def test_a_load_policy_flies_teams_of_any_size_and_no_other_maps() -> None:
    learner, rng, _ = build()
    bigger = replace(TINY_MISSION, uavs=5)
    policy = COMA.load_policy(CONFIG, TINY_MISSION.spec, bigger.spec, learner.parameters())
    obs = bigger.observe(bigger.initial(rng.uniform("start", 2, bigger.initial_noise)[0]))
    action = policy(tree_map(lambda leaf: leaf[None], obs), None)
    assert action.shape == (1, 2, 5)
    smaller = replace(TINY_MISSION, lattice=6)
    with pytest.raises(ConfigError, match=r"7 channels of side 5, 0 features, 6 moves.*side 6"):
        COMA.load_policy(CONFIG, TINY_MISSION.spec, smaller.spec, learner.parameters())
