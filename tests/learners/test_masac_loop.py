"""The batched learner against the plain loop, from equal noise in float64."""

import dataclasses

import pytest
import torch
from torch import Tensor

from tests.learners.test_masac import RT, UPDATES, build, source_for
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import Batch
from uavlab.envs.leader_follower import LeaderFollower
from uavlab.learners.masac import MASAC, MASACConfig, kept_policy
from uavlab.learners.masac_loop import MASACLoop
from uavlab.sources import survey


def rows_of_loop(loop: MASACLoop) -> dict[str, list[Tensor]]:
    """Bring the loop's parameters into the layout of the batched rows."""

    def flat(net):
        order = [p.T if p.dim() == 2 else p for p in net.parameters()]
        return torch.cat([p.reshape(-1) for p in order])

    return {
        "actor": [flat(net) for net in loop.actors],
        "critic": [torch.cat([flat(head) for head in pair]) for pair in loop.critics],
        "target": [torch.cat([flat(head) for head in pair]) for pair in loop.targets],
        "temperature": list(loop.log_alphas),
    }


def difference(batched: MASAC, loop: MASACLoop) -> float:
    """Largest relative difference of any agent's parameters, relative to the largest of them."""
    rows = rows_of_loop(loop)
    mine = {
        "actor": batched.actor.parameter,
        "critic": batched.critic.parameter,
        "target": batched.target,
        "temperature": batched.temperature.parameter,
    }
    worst = 0.0
    for name, table in mine.items():
        for agent, row in enumerate(rows[name]):
            worst = max(worst, ((table[agent] - row).abs().max() / row.abs().max()).item())
    return worst


def trained_side_by_side(agents: int, updates: int, spoil=lambda batch: batch) -> float:
    env, batched, rng = build(MASAC, agents)
    _, loop, _ = build(MASACLoop, agents)
    source = source_for(env, batched, rng)
    for _ in range(updates):
        batch, noise = source.next(), batched.update_noise(rng, 16)
        batched.update(spoil(batch), noise)
        loop.update(batch, noise)
    return difference(batched, loop)


@pytest.mark.parametrize("agents", [1, 2, 4, 8])
def test_batched_equals_loop(agents):
    assert trained_side_by_side(agents, UPDATES) <= 1e-9


def test_metrics_are_the_loops_too():
    env, batched, rng = build(MASAC, 3)
    _, loop, _ = build(MASACLoop, 3)
    source = source_for(env, batched, rng)
    for _ in range(5):
        batch, noise = source.next(), batched.update_noise(rng, 16)
        mine, other = batched.update(batch, noise).metrics, loop.update(batch, noise).metrics
        assert set(mine) - set(other) == {"q", "alpha"}
        for name, value in other.items():
            torch.testing.assert_close(mine[name], value, rtol=1e-9, atol=1e-12)


def test_the_loop_names_the_numbers_of_the_batched_rows():
    env, batched, rng = build(MASAC, 2)
    _, loop, _ = build(MASACLoop, 2)
    first, second = batched.numbers(), loop.numbers()
    assert set(first) == set(second) == {f"{kind}.parameter" for kind in ("actor", "critic", "target", "temperature")}
    batch, noise = source_for(env, batched, rng).next(), batched.update_noise(rng, 16)
    for learner in (batched, loop):
        learner.update(batch, noise)
    first, second = batched.numbers(), loop.numbers()
    assert set(first) == set(second)
    assert len(first) == 10
    for name, (table, axes) in first.items():
        assert axes == second[name][1] == "R A"
        torch.testing.assert_close(table.norm(dim=2), second[name][0].norm(dim=2), rtol=1e-9, atol=1e-12)


def test_a_critic_fed_its_neighbours_reward_is_caught():
    def spoil(batch: Batch) -> Batch:
        reward = batch.data.reward.clone()
        reward[..., 1] = reward[..., 0]
        return dataclasses.replace(batch, data=dataclasses.replace(batch.data, reward=reward))

    assert trained_side_by_side(2, 20, spoil) > 1e-6


def test_loop_refuses_what_it_cannot_hold():
    env = LeaderFollower(followers=3)
    rng = Streams([0])
    with pytest.raises(ConfigError, match="one run and one network per agent"):
        MASACLoop(MASACConfig(), env.spec, survey(env, rng), rng, RT)


@pytest.mark.parametrize("kind", [MASAC, MASACLoop])
def test_state_round_trip_continues_bit_for_bit(kind):
    env, learner, rng = build(kind, 2)
    source = source_for(env, learner, rng)
    batches = [(source.next(), learner.update_noise(rng, 16)) for _ in range(4)]
    for batch, noise in batches[:2]:
        learner.update(batch, noise)
    saved = {k: v.clone() for k, v in learner.state_dict().items()}
    _, other, _ = build(kind, 2, seeds=(9,))
    other.load_state_dict(saved)
    for each in (learner, other):
        for batch, noise in batches[2:]:
            each.update(batch, noise)
    for name, value in learner.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_the_loop_flies_like_its_rows():
    env, loop, rng = build(MASACLoop, 2)
    obs = rng.uniform("obs", 5, 2, 7)
    noise = rng.normal("noise", 5, 2, 2)
    kept = kept_policy(loop.config, env.spec, env.spec, loop.parameters())
    torch.testing.assert_close(loop.policy(env.spec)(obs, noise), kept(obs, noise), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loop.policy(env.spec)(obs, None), kept(obs, None), rtol=1e-12, atol=1e-12)
