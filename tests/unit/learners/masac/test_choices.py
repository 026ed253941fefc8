"""Teams that choose moves: every loss against sums written out, masks, and all forms against each other."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.update_rungs import KINDS, Side, all_numbers, check_rungs_agree, difference, toggled
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import ChoiceObs, EnvSpec, Group, Scale, Transition, team_spec
from uavlab.envs.pursuit import Pursuit
from uavlab.learners import masac
from uavlab.learners.masac.loop import MASACLoop
from uavlab.learners.masac.masac import (
    MASAC,
    MASACConfig,
    UpdateNoise,
    move_chances,
    moves_of_others,
    target_entropy,
)
from uavlab.learners.masac.masac import one_hot as hot
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles
from uavlab.testing import check_learner

ROWS, E, AGENTS = 6, 4, 3
SPEC = EnvSpec(AGENTS, 2, 1, 9, 1.0, 0, 0, groups=(0, 1, 0), choices=E)
CONFIG = MASACConfig(hidden=5, gamma=0.8, alpha=0.7, reward_scale=1.5)
UNEVEN = team_spec(Group("a", 2, obs=2, choices=4), Group("b", 1, obs=2, choices=2), horizon=9, initial_noise=0)
SMALL = Pursuit(pursuers=2, evaders=1, side=4, obstacles=2, horizon=7)


class Slow:
    """The losses of one run written out, row by row and move by move; ``fault`` names a mistake."""

    def __init__(self, learner: MASAC, fault: str = "") -> None:
        self.fault, self.networks = fault, learner.networks
        self.nets = learner.actor_net, learner.critic_net
        self.actor, self.critic = learner.actor.parameter, learner.critic.parameter.unflatten(1, (2, -1))
        self.target = learner.target.unflatten(1, (2, -1))
        self.alpha = learner.temperature.parameter.detach().exp()[:, 0]

    def chances(self, obs: ChoiceObs, n: int, i: int) -> list[Tensor]:
        out = self.nets[0](self.actor[self.networks[i]][None], obs.features[0, n, i][None, None])[0, 0]
        legal = [bool(obs.legal[0, n, i, e]) or self.fault == "no mask" for e in range(E)]
        weights = [out[e].exp() if legal[e] else torch.zeros_like(out[e]) for e in range(E)]
        return [weight / sum(weights) for weight in weights]

    def sample(self, obs: ChoiceObs, n: int, noise: Tensor) -> list[int]:
        moves = []
        for i in range(AGENTS):
            chances, below, move = self.chances(obs, n, i), 0.0, 0
            for e in range(E):
                if below <= noise[0, n, i] < below + chances[e].item():
                    move = e
                below += chances[e].item()
            moves.append(move)
        return moves

    def values(self, critic: Tensor, obs: ChoiceObs, n: int, i: int, moves: list[int]) -> list[Tensor]:
        """Return the values of both critics for each own move."""
        inputs = [float(x) for x in obs.features[0, n].flatten()]
        for j, move in enumerate(moves):
            seen = j != i or self.fault == "own move seen"
            inputs += [float(seen and e == move) for e in range(E)]
        x = torch.tensor(inputs, dtype=torch.float64)[None, None]
        return [self.nets[1](critic[i, k][None], x)[0, 0] for k in range(2)]

    def soft(self, critic: Tensor, obs: ChoiceObs, n: int, i: int, moves: list[int]) -> tuple[Tensor, Tensor]:
        """Return the expected smaller value and the entropy."""
        chances, (first, second) = self.chances(obs, n, i), self.values(critic, obs, n, i, moves)
        entropy = -sum(chance * chance.log() for chance in chances if chance > 0)
        if self.fault == "own move sampled":
            return torch.minimum(first[moves[i]], second[moves[i]]), entropy
        if self.fault == "minimum of expectations":
            means = [sum(chance * q for chance, q in zip(chances, each, strict=True)) for each in (first, second)]
            return torch.minimum(*means), entropy
        least = [torch.minimum(a, b) for a, b in zip(first, second, strict=True)]
        return sum(chance * q for chance, q in zip(chances, least, strict=True)), entropy

    def targets(self, data: Transition, noise: Tensor) -> Tensor:
        y = torch.zeros(1, AGENTS, ROWS, dtype=torch.float64)
        for n in range(ROWS):
            moves = self.sample(data.next_obs, n, noise)
            for i in range(AGENTS):
                q, entropy = self.soft(self.target, data.next_obs, n, i, moves)
                goes_on = not data.terminated[0, n, i] or self.fault == "bootstraps through ends"
                temperature = 0 if self.fault == "no entropy" else self.alpha[self.networks[i]]
                y[0, i, n] = CONFIG.reward_scale * data.reward[0, n, i]
                y[0, i, n] += goes_on * CONFIG.gamma * (q + temperature * entropy).detach()
        return y

    def critic_loss(self, data: Transition, target: Tensor, weight: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for n in range(ROWS):
            moves = [int(move) for move in data.action[0, n]]
            for i in range(AGENTS):
                for q in self.values(self.critic, data.obs, n, i, moves):
                    taken = q.mean() if self.fault == "all moves taken" else q[moves[i]]
                    total = total + weight[0, n] * (taken - target[0, i, n]).square() / ROWS
        return total

    def actor_loss(self, data: Transition, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and the mean entropy of each agent."""
        total, entropies = torch.zeros((), dtype=torch.float64), torch.zeros(AGENTS, dtype=torch.float64)
        for n in range(ROWS):
            moves = self.sample(data.obs, n, noise)
            for i in range(AGENTS):
                q, entropy = self.soft(self.critic, data.obs, n, i, moves)
                temperature = 0 if self.fault == "no entropy" else self.alpha[self.networks[i]]
                total = total - (temperature * entropy + q) / ROWS
                entropies[i] += entropy.detach() / ROWS
        return total, entropies


def tiny(seed: int = 0, config: MASACConfig = CONFIG) -> tuple[MASAC, Streams]:
    """Return a learner whose parameters are large enough to matter."""
    rng = Streams([seed], dtype=torch.float64)
    ones = torch.ones(1, AGENTS, SPEC.obs, dtype=torch.float64)
    learner = MASAC(config, SPEC, Scale(center=0 * ones, spread=ones), rng, Runtime())
    with torch.no_grad():
        for name, table in (("a", learner.actor.parameter), ("q", learner.critic.parameter), ("t", learner.target)):
            table.add_(rng.normal(name, *table.shape)[0])
        learner.temperature.parameter.add_(rng.normal("alpha", 2, 1)[0])
    return learner, rng


def observe(rng: Streams, name: str) -> ChoiceObs:
    """Return random observations with masks, of which the first agent's leaves one move."""
    legal = rng.uniform(f"{name}.legal", ROWS, AGENTS, E) < 0.5
    legal[..., 1] |= ~legal.any(-1)
    legal[:, 0, 0] = torch.tensor([False, False, False, True])
    return ChoiceObs(features=rng.normal(name, ROWS, AGENTS, SPEC.obs), legal=legal)


def rows(rng: Streams) -> Transition:
    obs = observe(rng, "obs")
    move = (obs.legal * (0.1 + rng.uniform("move", ROWS, AGENTS, E))).argmax(-1)
    ended = rng.uniform("ended", ROWS, AGENTS) < 0.4
    reward = rng.normal("reward", ROWS, AGENTS)
    return Transition(obs, move, reward, observe(rng, "next_obs"), ended, torch.zeros(1, ROWS, dtype=torch.bool))


def errors(fault: str = "") -> dict[str, float]:
    """Return the distance of each loss, and of its gradient, from the slow twin's with a fault."""
    learner, rng = tiny()
    slow, data, noise = Slow(learner, fault), rows(rng), learner.update_noise(rng, ROWS)
    actor, critic, log_alpha = (step.parameter for step in (learner.actor, learner.critic, learner.temperature))
    y = learner.targets(actor.detach(), learner.target, log_alpha.detach(), data, noise.next_action)
    weight = rng.uniform("weight", ROWS)
    q_loss, _ = learner.critic_loss(critic, data, y, weight)
    pi_loss, metrics = learner.actor_loss(actor, critic, log_alpha.detach(), data, noise.action)
    slow_pi, entropies = slow.actor_loss(data, noise.action)
    pairs = {
        "targets": (y, slow.targets(data, noise.next_action)),
        "critic": (q_loss, slow.critic_loss(data, y, weight)),
        "actor": (pi_loss, slow_pi),
        "entropy": (-metrics["log_prob"][0], entropies),
    }
    apart = {name: (one - other).detach().abs().max().item() for name, (one, other) in pairs.items()}
    for name, theta in (("critic", critic), ("actor", actor)):
        mine, other = (torch.autograd.grad(loss, theta)[0] for loss in pairs[name])
        apart[f"{name} gradient"] = (mine - other).abs().max().item()
    return apart


def test_losses_and_gradients_are_the_sums_written_out() -> None:
    apart = errors()
    assert max(apart.values()) < 1e-9, apart


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("no mask", ("targets", "actor", "entropy", "actor gradient")),
        ("own move seen", ("targets", "critic", "actor", "critic gradient", "actor gradient")),
        ("own move sampled", ("targets", "actor", "actor gradient")),
        ("minimum of expectations", ("targets", "actor", "actor gradient")),
        ("bootstraps through ends", ("targets",)),
        ("no entropy", ("targets", "actor", "actor gradient")),
        ("all moves taken", ("critic", "critic gradient")),
    ],
)
def test_each_mistake_is_caught(fault: str, seen: tuple[str, ...]) -> None:
    apart = errors(fault)
    assert {name for name, error in apart.items() if error > 1e-4} == set(seen), apart


def test_temperatures_move_by_the_exact_entropy() -> None:
    """Log alpha (H - target): its slope is H - target, summed over the agents of a network."""
    learner, _ = tiny(config=replace(CONFIG, target_entropy=0.5))
    entropy = torch.tensor([[0.9, 0.2, 0.7]], dtype=torch.float64)
    loss, _ = learner.temperature_loss(learner.temperature.parameter, 0.5 - entropy)
    (slope,) = torch.autograd.grad(loss, learner.temperature.parameter)
    assert slope[:, 0].tolist() == pytest.approx([0.4 + 0.2, -0.3])  # agents 0 and 2 share a network


def test_a_forbidden_move_has_no_chance_and_no_gradient() -> None:
    legal = torch.tensor([[True, False, True, False], [False, False, False, True], [True, True, True, True]])
    numbers = torch.tensor([[0.3, 9.0, -0.2, 1.0], [5.0, 4.0, 3.0, -9.0], [0.1, 0.2, 0.3, 0.4]])
    for size in (1.0, 1e4):
        logits = (size * numbers).requires_grad_()
        chance, log_chance = move_chances(logits, legal)
        assert (chance[~legal] == 0).all()
        assert (log_chance[~legal] == 0).all()
        torch.testing.assert_close(chance.sum(-1), torch.ones(3))
        (slope,) = torch.autograd.grad((chance * (log_chance + logits.detach())).sum(), logits)
        assert slope.isfinite().all()
        assert (slope[~legal] == 0).all()
        assert (slope[1] == 0).all()  # no choice
        assert bool((slope[2] != 0).any()) is (size == 1)  # a choice, unless it is certain


def test_a_logarithm_without_a_mask_is_caught() -> None:
    legal = torch.tensor([True, False])
    logits = torch.zeros(2, requires_grad=True)
    log_chance = logits.masked_fill(~legal, -torch.inf).log_softmax(-1)
    (slope,) = torch.autograd.grad((log_chance.exp() * log_chance).sum(), logits)
    assert slope.isnan().any()


def test_moves_of_others_by_hand() -> None:
    moves = hot(torch.tensor([[[1, 0]]]), 2, torch.float64)  # of one run and one row: moves 1 and 0 of two agents
    assert moves.tolist() == [[[[0, 1], [1, 0]]]]
    assert moves_of_others(moves).tolist() == [[[[0, 0, 1, 0]], [[0, 1, 0, 0]]]]


@pytest.mark.parametrize(
    ("spec", "given", "expected"),
    [
        (SPEC, None, math.log(4) / 4),
        (replace(SPEC, choices=0, action=2), None, -2.0),
        (replace(SPEC, choices=0, action=3), None, -3.0),
        (SPEC, 0.25, 0.25),
        (replace(SPEC, choices=0, action=2), 0.0, 0.0),
        (UNEVEN, None, (math.log(4) / 4, math.log(4) / 4, math.log(2) / 4)),
        (UNEVEN, 0.25, 0.25),
    ],
)
def test_the_entropy_that_is_aimed_at(spec: EnvSpec, given: float | None, expected: float | tuple) -> None:
    assert target_entropy(MASACConfig(target_entropy=given), spec) == pytest.approx(expected)


FORMS = pytest.mark.parametrize(
    ("updates", "share", "seeds", "weighted"), [(12, False, (0,), False), (12, True, (3, 5), True)]
)


@FORMS
def test_every_form_equals_batched(updates: int, share: bool, seeds: tuple[int, ...], weighted: bool) -> None:
    check_rungs_agree(3, updates, share, seeds, weighted, env=SMALL)


def test_every_form_equals_batched_with_critics_of_one_agent() -> None:
    check_rungs_agree(3, 5, True, (3, 5), True, env=SMALL, critic="own")


def sees_others(critic: str) -> bool:
    """Return whether values of agent 0 depend on what others observe and do."""
    learner, rng = tiny(config=replace(CONFIG, critic=critic))
    data, others = rows(rng), torch.arange(AGENTS) > 0
    features = data.obs.features + others[:, None]
    action = torch.where(others, data.action.roll(1, 2), data.action)
    changed = replace(data, obs=replace(data.obs, features=features), action=action)
    one, other = (learner.data_values(learner.critic.parameter, each) for each in (data, changed))
    assert (one[:, 1:] != other[:, 1:]).all()
    return not torch.equal(one[:, 0], other[:, 0])


@pytest.mark.parametrize("critic", ["central", "own"])
def test_critics_observe_the_team_or_one_agent(critic: str) -> None:
    assert sees_others(critic) is (critic == "central")


def side_of(kinds: Any = KINDS, **given: Any) -> Side:
    return Side(kinds, 3, True, (3, 5), env=SMALL, **given)


def test_a_form_that_sees_its_own_move_is_caught() -> None:
    class Seeing(MASACLoop):
        def _policy_values(self, pair: Any, obs: Tensor, agent: int, actions: Any) -> tuple[Tensor, Tensor]:
            own = super()._policy_values(pair, obs, agent, actions)
            return super()._policy_values(pair, obs, -1, actions)[0], own[1]

    side = side_of({"merged": KINDS["merged"], "broken": toggled(Seeing, update="merged", acting="batched")})
    results = side.train(3)
    assert difference(*(all_numbers(side.learners[name], results[name]) for name in ("broken", "merged"))) > 1e-6


@pytest.mark.parametrize("toggle", [{"micro_batches": 3}, {"recompute": "on"}, {"adam": "foreach"}])
def test_the_seams_act_on_every_form(toggle: dict[str, Any]) -> None:
    plain, other = side_of(), side_of(toggles=Toggles(**toggle))
    first, second = plain.train(3), other.train(3)
    for name in KINDS:
        pair = ((each.learners[name], result[name]) for each, result in ((other, second), (plain, first)))
        assert difference(*(all_numbers(*each) for each in pair)) <= 1e-9, name


@pytest.mark.parametrize("name", ["loop", "vmap", "batched"])
@pytest.mark.parametrize("share", [False, True])
def test_acting_agent_by_agent_equals_acting_at_once_by_legal_moves(name: str, share: bool) -> None:
    kinds = {acting: toggled(masac.FORMS[name], update=name, acting=acting) for acting in ("loop", "batched")}
    side = Side(kinds, 3, share, (3, 5), env=SMALL)
    side.train(2)
    obs, rng, spec = side.source.observations(), side.rng, SMALL.spec
    for drawn in (None, *(rng.uniform("act", 8, spec.agents) for _ in range(5))):
        alone, at_once = (learner.policy(spec)(obs, drawn) for learner in side.learners.values())
        learner = side.learners["loop"]
        assert torch.equal(alone, at_once)
        assert torch.equal(alone, MASAC.load_policy(learner.config, spec, spec, learner.parameters())(obs, drawn))
        assert obs.legal.gather(-1, alone[..., None]).all()


@pytest.mark.parametrize("name", KINDS)
def test_state_round_trip_continues_bit_for_bit(name: str) -> None:
    side, other = (side_of({name: KINDS[name]}) for _ in range(2))
    side.train(2)
    learner, fresh = (each.learners[name] for each in (side, other))
    fresh.load_state_dict({k: v.clone() for k, v in learner.state_dict().items()})
    batch, noise = side.next()
    for each in (learner, fresh):
        each.update(batch, noise)
    assert all(torch.equal(value, fresh.state_dict()[key]) for key, value in learner.state_dict().items())


def test_noise_of_moves_is_uniform() -> None:
    learner, rng = tiny()
    noise = learner.update_noise(rng, 500)
    assert isinstance(noise, UpdateNoise)
    for each in (noise.next_action, noise.action):
        assert each.shape == (1, 500, AGENTS)
        assert 0 <= each.min() < 0.01 < 0.99 < each.max() < 1


def test_a_team_with_other_moves_is_refused() -> None:
    learner, _ = tiny()
    with pytest.raises(ConfigError, match="2 observations, 5 moves"):
        learner.policy(replace(SPEC, choices=5))


def test_it_keeps_the_contract() -> None:
    assert check_learner("masac", SMALL, {"hidden": 16, "update": "batched"}).tensors > 0
