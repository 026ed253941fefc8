"""PPO against the same update written out agent by agent, deaths and masks, runs together and apart, by hand."""

import math
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.collectors.fixed_length import FixedLengthCollector, FixedLengthConfig
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, EnvSpec, Scale, Steps, tree_map
from uavlab.envs.target_assignment.env import Assignment
from uavlab.learners.ppo import networks, ppo
from uavlab.learners.ppo.ppo import (
    MEMORY,
    PPO,
    IPPOConfig,
    MAPPOConfig,
    Moments,
    Samples,
    evaluate_actions,
    row_weights,
)
from uavlab.nets.attention import LARGE, StackedAttention
from uavlab.nets.mlp import of_agents
from uavlab.ops.schedules import minibatches
from uavlab.runtime.grad_step import ADAM_EPS, adam_factors
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles

SPEC = EnvSpec(agents=3, obs=4, action=2, horizon=9, dt=1.0, initial_noise=1, step_noise=1, groups=(0, 1, 1))
CONFIG = MAPPOConfig(
    hidden=8, width=4, kernels=(3, 2), epochs=2, minibatches=2, lr=1e-2, critic_lr=1e-2, clip=0.5, target_kl=0.0,
    entropy=0.1, entropy_to=0.1,
)  # fmt: skip
RT = Runtime(requested=Toggles(acting="batched"))
T, W = 4, 3
ROWS, AGENTS = [(t, w) for t in range(T) for w in range(W)], range(SPEC.agents)


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


class Slow:
    """A learner of one run as loops: agent after agent, row after row, a torch Adam for each network."""

    def __init__(self, learner: PPO) -> None:
        self.config, self.team = learner.config, learner.team
        parts = (learner.actor, learner.critic)
        self.actor, self.critic = ([row.clone().requires_grad_() for row in part.parameter.detach()] for part in parts)
        rates = ((self.actor, self.config.lr), (self.critic, self.config.critic_lr))
        self.adams = [[torch.optim.Adam([row], lr, eps=ADAM_EPS) for row in rows] for rows, lr in rates]
        self.counted: list[dict[str, float]] = []  # figures of each actor in each step that counts, in the last update
        self.sums = dict.fromkeys(AGENTS, (0.0, 0.0, 0.0))  # moving sums of returns, their squares, and weights
        self.undone = 0

    def value_at(self, data: Steps, t: int, w: int, i: int, after: bool = False) -> Tensor:
        return self.value((data.next_obs if after else data.obs)[0, t, w], i)

    def log_prob_and_entropy_at(self, data: Steps, t: int, w: int, i: int) -> tuple[Tensor, Tensor]:
        return self.log_prob_and_entropy(data.obs[0, t, w, i], data.action[0, t, w, i], i)

    def rows(self, order: Tensor) -> list[tuple[int, int]]:
        """Return the step and the world of each row."""
        return [divmod(row, W) for row in order.tolist()]

    def value(self, obs: Tensor, i: int) -> Tensor:
        seen = obs.flatten() if self.config.critic != "own" else obs[i]
        return evaluate(self.team.critic_net, self.critic[self.team.critics[i]], seen)[0]

    def log_prob_and_entropy(self, obs: Tensor, action: Tensor, i: int) -> tuple[Tensor, Tensor]:
        return self.gaussian(evaluate(self.team.actor_net, self.actor[self.team.networks[i]], obs), action)

    def gaussian(self, out: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.config.log_std_low, self.config.log_std_high
        middle, half = (low + high) / 2, (high - low) / 2
        normal = torch.distributions.Normal(
            3 * torch.tanh(out[:2] / 3), (middle + half * torch.tanh((out[2:] - middle) / half)).exp()
        )
        density = normal.log_prob(torch.atanh(action)) - torch.log(1 - action**2)
        return density.sum(), normal.entropy().sum()

    def scale(self, i: int) -> tuple[float, float]:
        mean, square, weight = self.sums[i]
        return (mean / weight, math.sqrt(square / weight - (mean / weight) ** 2)) if weight else (0.0, 1.0)

    def targets(self, data: Steps) -> dict[str, dict[tuple[int, int, int], Any]]:
        """Return advantages, returns and old log densities by step, world and agent."""
        config, alive = self.config, data.live[0]
        gain, returns, old = {}, {}, {}
        for i in AGENTS:
            center, spread = self.scale(i)
            for w in range(W):
                later = 0.0
                for t in reversed(range(T)):
                    value, ahead = (
                        center + spread * self.value_at(data, t, w, i, after).item() for after in (False, True)
                    )
                    ahead = 0.0 if data.terminated[0, t, w, i] else ahead
                    delta = data.reward[0, t, w, i].item() + config.gamma * ahead - value
                    later = delta + (0.0 if data.ended[0, t, w, i] else config.gamma * config.lam * later)
                    gain[t, w, i], returns[t, w, i] = later, later + value
                    old[t, w, i] = self.log_prob_and_entropy_at(data, t, w, i)[0].item()
        new = {}
        for i in AGENTS:
            lived = [
                returns[key] for key in returns if alive[key] and self.team.critics[key[2]] == self.team.critics[i]
            ]
            now = (sum(lived) / len(lived), sum(x * x for x in lived) / len(lived), 1.0)
            new[i] = tuple(MEMORY * b + (1 - MEMORY) * n for b, n in zip(self.sums[i], now, strict=True))
        self.sums, scaled = new, {}
        for i in AGENTS:
            center, spread = self.scale(i)
            peers = [gain[key] for key in gain if alive[key] and self.team.networks[key[2]] == self.team.networks[i]]
            mean = sum(peers) / len(peers)
            std = math.sqrt(sum((x - mean) ** 2 for x in peers) / len(peers))
            for t, w in ROWS:
                returns[t, w, i] = (returns[t, w, i] - center) / spread
                scaled[t, w, i] = (gain[t, w, i] - mean) / std
        return {"gain": scaled, "returns": returns, "old": old}

    def update(self, data: Steps, noise: Tensor) -> None:
        config, alive, known = self.config, data.live[0], self.targets(data)
        share = {
            name: [
                sum(alive[t, w, j].item() for t, w in ROWS for j in AGENTS if owner[j] == owner[i]) / len(ROWS)
                for i in AGENTS
            ]
            for name, owner in (("actor", self.team.networks), ("critic", self.team.critics))
        }
        stopped: set[int] = set()
        self.counted = []
        for order in noise[0]:
            for part in map(self.rows, (order[: len(order) // 2], order[len(order) // 2 :])):
                losses, far = [0.0, 0.0], dict.fromkeys(self.team.networks, 0.0)
                figures = {network: {"clipped": 0.0, "entropy": 0.0, "actor_loss": 0.0} for network in far}
                for t, w in part:
                    for i in AGENTS:
                        if not alive[t, w, i]:
                            continue
                        error = self.value_at(data, t, w, i) - known["returns"][t, w, i]
                        losses[1] = losses[1] + error**2 / share["critic"][i]
                        log_prob, entropy = self.log_prob_and_entropy_at(data, t, w, i)
                        change = log_prob - known["old"][t, w, i]
                        ratio, gain = change.exp(), known["gain"][t, w, i]
                        held = min(max(ratio.item(), 1 - config.clip_ratio), 1 + config.clip_ratio) * gain
                        best = ratio * gain if (ratio * gain).item() <= held else torch.tensor(held)
                        losses[0] = losses[0] - (best + config.entropy * entropy) / share["actor"][i]
                        figure, part_of = figures[self.team.networks[i]], share["actor"][i] * len(part)
                        figure["clipped"] += (abs(ratio.item() - 1) > config.clip_ratio) / part_of
                        figure["entropy"] += entropy.item() / part_of
                        figure["actor_loss"] -= (best + config.entropy * entropy).item() / part_of
                        away = (ratio - 1 - change).item() / share["actor"][i] / len(part)
                        far[self.team.networks[i]] += away
                if config.target_kl:
                    stopped |= {network for network, distance in far.items() if distance > config.target_kl}
                for which, rows, loss in zip((0, 1), (self.actor, self.critic), losses, strict=True):
                    for network, (row, grad) in enumerate(
                        zip(rows, torch.autograd.grad(loss / len(part), rows, retain_graph=True), strict=True)
                    ):
                        if which == 0 and network in stopped:
                            self.undone += 1
                            continue
                        row.grad = grad * (config.clip / (grad.norm() + 1e-6)).clamp(max=1)
                        self.adams[which][network].step()
                going = set(far) - stopped
                self.counted += [{**figures[network], "kl": far[network]} for network in going]

    def state(self, name: str) -> list[Tensor]:
        """Return the rows of networks: parameters and Adam's moments."""
        rows, adams = getattr(self, name), self.adams[name == "critic"]
        states = [adam.state.get(row, {}) for row, adam in zip(rows, adams, strict=True)]
        moments = (
            [state.get(key, torch.zeros_like(row)) for row, state in zip(rows, states, strict=True)]
            for key in ("exp_avg", "exp_avg_sq")
        )
        return [torch.stack(each).detach() for each in (rows, *moments)]


def assert_equal(learner: PPO, slow: Slow) -> None:
    for name in ("actor", "critic"):
        state = getattr(learner, name).state_dict()
        for key, expected in zip(("parameter", "exp_avg", "exp_avg_sq"), slow.state(name), strict=True):
            torch.testing.assert_close(
                state[key], expected, rtol=1e-8, atol=1e-9, msg=lambda m, n=name, k=key: f"{n}.{k}: {m}"
            )


def distance(learner: PPO, slow: Slow) -> float:
    pairs = [(getattr(learner, name).parameter.detach(), slow.state(name)[0]) for name in ("actor", "critic")]
    return max(float((one - other).abs().max()) for one, other in pairs)


CONFIGS = {
    "central": CONFIG,
    "not shared": replace(CONFIG, share=False),
    "shared critic": replace(CONFIG, share=False, critic="shared"),
    "own": IPPOConfig(**vars(CONFIG) | {"critic": "own"}),
    "stops": replace(CONFIG, share=False, target_kl=0.004),
}


def updates(rng: Streams, learner: PPO, count: int = 2) -> list[tuple[Steps, Tensor]]:
    return [(steps(rng), learner.update_noise(rng, T * W)) for _ in range(count)]


@pytest.mark.parametrize("name", CONFIGS)
def test_two_updates_equal_those_written_out(name: str) -> None:
    """The second one has values in units of the returns of the first."""
    learner, rng = build(CONFIGS[name])
    slow, before = Slow(learner), learner.actor.parameter.detach().clone()
    metrics = []
    for data, noise in updates(rng, learner):
        assert not data.live.all()
        assert data.terminated.any()
        assert (data.ended & ~data.terminated).any()
        slow.update(data, noise)
        metrics.append(learner.update(batch_of(data), noise).metrics)
        assert_equal(learner, slow)
        for figure in ("clipped", "entropy", "actor_loss", "kl"):
            expected = mean(row[figure] for row in slow.counted)
            assert metrics[-1][figure].item() == pytest.approx(expected, rel=1e-6, abs=1e-12), figure
    assert (learner.actor.parameter - before).abs().max() > 1e-3
    undone = sum((1 - m["step_share"]).sum().item() * 4 for m in metrics)  # of 2 passes with 2 minibatches each
    assert undone == pytest.approx(slow.undone)
    assert (0 < undone < 4 * 3 * 2 * 0.9) is (name == "stops")


@pytest.mark.parametrize("broken", [
    {"lam": 0.5}, {"gamma": 0.5}, {"clip_ratio": 0.01}, {"entropy": 0.5, "entropy_to": 0.5}, {"clip": 0.01},
    {"target_kl": 0.001}, {"log_std_high": 0.1},
])  # fmt: skip
def test_a_broken_variant_is_caught(broken: dict[str, float]) -> None:
    learner, rng = build()
    slow, (other, _) = Slow(learner), build(replace(CONFIG, **broken))
    for data, noise in updates(rng, learner):
        slow.update(data, noise)
        other.update(batch_of(data), noise)
    assert distance(other, slow) > 1e-5


def forget_values(learner: PPO) -> None:
    """Take the critics' outputs for values, as if there were no returns yet."""
    value = learner.targets

    def targets(actor: Tensor, critic: Tensor, moments: Moments, *steps: Any) -> Any:
        blank = torch.zeros_like(moments.mean)
        samples, *_ = value(actor, critic, Moments(mean=blank, square=blank, weight=blank), *steps)
        return samples, *value(actor, critic, moments, *steps)[1:]

    learner._targets = targets


def forget_moments(learner: PPO) -> None:
    """Undo parameters alone."""
    undo = learner.actor.undo

    def wrong(held: Tensor, before: dict[str, Tensor]) -> None:
        after = learner.actor.copy_state()
        undo(held, {**after, "parameter": before["parameter"]})

    learner.actor.undo = wrong  # type: ignore[method-assign]


def count_all_steps(learner: PPO) -> None:
    """Count the steps that were undone, too."""
    undo = learner.actor.undo

    def wrong(*args: Any) -> None:
        undo(*args)
        learner.actor.behind.zero_()  # type: ignore[union-attr]

    learner.actor.undo = wrong  # type: ignore[method-assign]


@pytest.mark.parametrize("mutant", [forget_values, forget_moments, count_all_steps])
def test_a_mutant_is_caught(mutant: Any) -> None:
    learner, rng = build(CONFIGS["stops"])
    slow = Slow(learner)
    mutant(learner)
    for data, noise in updates(rng, learner):
        slow.update(data, noise)
        learner.update(batch_of(data), noise)
    with pytest.raises(AssertionError):
        assert_equal(learner, slow)


def value_another_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(networks, "of_agents", lambda table, own: of_agents(table, tuple(1 - critic for critic in own)))


def forget_the_group(patch: pytest.MonkeyPatch) -> None:
    """Take the sum over the agents of a group of their means over rows for the mean of all rows of the group."""
    patch.setattr(ppo, "row_weights", lambda live, own, ranks: row_weights(live, tuple(AGENTS)))


@pytest.mark.parametrize("mutant", [value_another_group, forget_the_group])
def test_a_mutant_of_shared_critics_is_caught(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    learner, rng = build(CONFIGS["shared critic"])
    slow = Slow(learner)
    for data, noise in updates(rng, learner):
        slow.update(data, noise)
        learner.update(batch_of(data), noise)
    assert distance(learner, slow) > 1e-5


def test_a_shared_critic_is_regressed_to_the_mean_of_its_group() -> None:
    """Values are 0; returns 2 and 4 of one group, 1 of the other: (4 + 16) / 2 + 1 over two critics."""
    spec = replace(SPEC, groups=(1, 0, 1))
    learner = PPO(CONFIGS["shared critic"], spec, scale(), Streams([0], dtype=torch.float64), RT)
    with torch.no_grad():
        learner.critic.parameter.zero_()
    live = torch.ones(1, 1, 3, dtype=torch.float64)
    rows = Samples(
        obs=torch.zeros(1, 1, 3, SPEC.obs, dtype=torch.float64),
        target=torch.tensor([[[2.0, 1.0, 4.0]]], dtype=torch.float64),
        **dict.fromkeys(("action", "log_prob", "advantage", "weight"), live),
        critic_weight=row_weights(live, learner.team.critics),
    )
    loss, metrics = learner.critic_loss(learner.critic.parameter, rows)
    assert (loss.item(), metrics["critic_loss"].tolist()) == (11, [5.5])
    (slope,) = torch.autograd.grad(loss, learner.critic.parameter)
    assert slope[:, -1].tolist() == [-2, -6]  # rows in the order of labels; 2 (0 - 3), since the mean return is 3


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
    together, rng = build(seeds=(5, 8))
    data, noise = steps(rng), together.update_noise(rng, T * W)
    shares = data.live.double().mean((1, 2, 3))
    assert shares[0] != shares[1]
    both = learned(together, data, noise)
    for run, seed in enumerate((5, 8)):
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
    for part in list(minibatches(first.targets(*targets_of(first), data)[0], noise, 2))[:1]:
        first._step(part, torch.tensor(0.1, dtype=torch.float64))
    assert torch.equal(first.actor.parameter.detach(), results[1e-9]["actor.parameter"])
    assert not torch.equal(first.actor.parameter.detach(), start)


def targets_of(learner: PPO) -> tuple[Tensor, Tensor, Moments]:
    moments = Moments(mean=learner.mean, square=learner.square, weight=learner.weight)
    return learner.actor.parameter.detach(), learner.critic.parameter.detach(), moments


def test_one_run_that_stops_leaves_the_other_alone() -> None:
    together, rng = build(replace(CONFIG, target_kl=0.02), seeds=(5, 8))
    data, noise = steps(rng), together.update_noise(rng, T * W)
    calm = replace(data, reward=data.reward * torch.tensor([1.0, 0.0]).view(2, 1, 1, 1))
    both = learned(together, calm, noise)
    for run, seed in enumerate((5, 8)):
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


def test_moves_are_judged_in_turn_and_closed_ones_have_no_gradient() -> None:
    _, batch, rng = mission()
    obs, action = (tree_map(lambda leaf: leaf.flatten(1, 2), each) for each in (batch.data.obs, batch.data.action))
    logits = rng.normal("logits", *obs.legal.shape[1:]).requires_grad_()
    log_prob, entropy = evaluate_actions(CONFIG, logits, obs, action)
    (slope,) = torch.autograd.grad(log_prob.sum() + entropy.sum(), logits)
    assert not obs.legal.all()
    closed_by_others = 0
    for row in range(action.shape[1]):
        taken: list[int] = []
        for i in range(TINY_MISSION.uavs):
            cells, legal = obs.target_cell[0, row, i].tolist(), obs.legal[0, row, i].tolist()
            allowed = [e for e, ok in enumerate(legal) if ok]
            free = [e for e in allowed if cells[e] not in taken] or allowed
            closed_by_others += len(allowed) - len(free)
            chance = logits[0, row, i].detach()[free].softmax(0)
            move = int(action[0, row, i])
            assert log_prob[0, row, i].item() == pytest.approx(chance[free.index(move)].log().item(), abs=1e-5)
            assert entropy[0, row, i].item() == pytest.approx(-(chance * chance.log()).sum().item(), abs=1e-5)
            assert all(slope[0, row, i, e] == 0 for e in range(len(cells)) if e not in free)
            taken.append(cells[move])
    assert closed_by_others > 0


def test_rates_change_linearly_and_go_on_from_a_state() -> None:
    learner, rng = build(replace(CONFIG, lr_to=0.0, lr_updates=2, target_kl=0.0))
    moved = []
    for _ in range(4):
        before = [step.parameter.detach().clone() for step in (learner.actor, learner.critic)]
        learner.update(batch_of(steps(rng)), learner.update_noise(rng, T * W))
        now = (learner.actor.parameter, learner.critic.parameter)
        moved.append([(new - old).detach().abs().max().item() for new, old in zip(now, before, strict=True)])
    assert all(first > second > 0 for first, second in zip(*moved[:2], strict=True))
    assert moved[2:] == [[0, 0], [0, 0]]
    assert learner.state_dict().keys() == build()[0].state_dict().keys()  # the count of updates was there before


def test_a_batch_without_a_live_row_teaches_nothing_and_is_finite() -> None:
    learner, rng = build()
    data, noise = steps(rng), learner.update_noise(rng, T * W)
    before = learner.actor.parameter.detach().clone()
    update = learner.update(batch_of(replace(data, live=torch.zeros_like(data.live))), noise)
    assert all(value.isfinite().all() for value in update.metrics.values())
    assert torch.equal(before, learner.actor.parameter.detach())


def test_a_network_learns_alike_in_teams_of_any_size() -> None:
    """Agents with networks of their own and equal rows have the norms of one agent alone."""
    norms = []
    for agents in (1, 4):
        spec = replace(SPEC, agents=agents, groups=tuple(range(agents)))
        rng = Streams([0], dtype=torch.float64)
        ones = torch.ones(1, agents, SPEC.obs, dtype=torch.float64)
        learner = PPO(IPPOConfig(hidden=8, share=False), spec, Scale(center=0 * ones, spread=ones), rng, RT)
        for part in (learner.actor, learner.critic):
            part.parameter.data.copy_(part.parameter.data[:1].expand_as(part.parameter))
        one = {
            "obs": rng.normal("obs", T, W, 1, SPEC.obs).expand(-1, -1, -1, agents, -1),
            "action": torch.tanh(rng.normal("action", T, W, 1, SPEC.action)).expand(-1, -1, -1, agents, -1),
            "reward": rng.normal("reward", T, W, 1).expand(-1, -1, -1, agents),
            "next_obs": rng.normal("next_obs", T, W, 1, SPEC.obs).expand(-1, -1, -1, agents, -1),
        }
        never = torch.zeros(1, T, W, agents, dtype=torch.bool)
        update = learner.update(
            batch_of(Steps(**one, live=~never, terminated=never, ended=never)), learner.update_noise(rng, T * W)
        )
        norms.append([update.metrics[name].item() for name in ("actor_norm", "critic_norm", "critic_loss")])
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)


def test_maps_are_learned_from_and_other_teams_are_refused() -> None:
    learner, batch, rng = mission()
    before = learner.actor.parameter.detach().clone()
    update = learner.update(batch, learner.update_noise(rng, batch.index.shape[1]))
    assert not torch.equal(before, learner.actor.parameter.detach())
    assert all(value.shape[0] == 1 for value in update.metrics.values())
    with pytest.raises(ConfigError, match="side 6"):
        PPO.load_policy(CONFIG, TINY_MISSION.spec, replace(TINY_MISSION, lattice=6).spec, learner.parameters())


def assigned(recompute: str) -> dict[str, Tensor]:
    """Return the state after an update on the assignment task."""
    env, rng = Assignment(uavs=(3, 3), targets=(2, 2)), Streams([0, 1])
    rt = Runtime(requested=Toggles(acting="batched", recompute=recompute))
    inputs = Scale(center=torch.zeros(2, 1, env.spec.obs), spread=torch.ones(2, 1, env.spec.obs))
    learner = PPO(replace(CONFIG, heads=2), env.spec, inputs, rng, rt)
    source = FixedLengthCollector(env, learner.policy(env.spec, explore=True), FixedLengthConfig(3, 4, 2), rng, rt)
    batch = source.next()
    learner.update(batch, learner.update_noise(rng, 12))
    return {name: tensor.clone() for name, tensor in learner.state_dict().items()}


def test_large_layers_of_attention_are_computed_again_with_equal_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    layer = StackedAttention._layer
    monkeypatch.setattr(StackedAttention, "_layer", lambda net, *a: limits.append(net.recompute) or layer(net, *a))
    states, calls = {}, {}
    for recompute, large in (("off", LARGE), ("layers", LARGE), ("layers", 0)):
        monkeypatch.setattr(ppo, "LARGE", large)
        states[recompute, large] = assigned(recompute)
        calls[recompute, large], limits[:] = (len(limits), set(limits)), []
    (count, never), few, (more, always) = calls.values()
    assert never == {math.inf}
    assert few == (count, {math.inf, LARGE})  # policies act without gradients
    assert (more > count, always) == (True, {math.inf, 0})
    for state in states.values():
        for name, tensor in states["off", LARGE].items():
            assert torch.equal(state[name], tensor), name


def test_a_restored_state_corrects_its_next_compiled_step() -> None:
    """What a compiled step computes ahead follows the steps of the state, not those of a new learner."""
    rt = Runtime(requested=Toggles(acting="batched", update="batched", compile="default"))
    learner, rng = build(CONFIGS["stops"], rt=Runtime(requested=Toggles(acting="batched")))
    for data, noise in updates(rng, learner):
        learner.update(batch_of(data), noise)
    fresh, _ = build(CONFIGS["stops"], rt=rt)
    fresh.load_state_dict({name: tensor.clone() for name, tensor in learner.state_dict().items()})
    for name in ("actor", "critic"):
        part: Any = getattr(fresh, name)
        steps_so_far = part.state_dict()["step"] - part.state_dict().get("behind", torch.zeros(()))
        expected = adam_factors(part.lr, steps_so_far + 1)
        torch.testing.assert_close(part.factors.view_as(expected), expected)


def test_a_state_without_counts_of_its_own_is_read() -> None:
    """Checkpoints of earlier versions count the steps of all networks together."""
    learner, rng = build(CONFIGS["stops"])
    for data, noise in updates(rng, learner):
        learner.update(batch_of(data), noise)
    old = {name: tensor.clone() for name, tensor in learner.state_dict().items() if not name.endswith("behind")}
    fresh, _ = build(CONFIGS["stops"])
    fresh.load_state_dict(old)
    assert fresh.actor.state_dict()["behind"].tolist() == [0, 0, 0]
    assert torch.equal(fresh.actor.parameter, learner.actor.parameter)
