"""PPO of teams that choose moves on vectors: against the update written out, and masks."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.unit.learners.ppo.test_algorithm import CONFIG, RT, SPEC, Slow, T, W, assert_equal, batch_of, distance, steps
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import ChoiceObs, EnvSpec, Scale, Steps
from uavlab.learners.ppo.ppo import PPO, IPPOConfig, MAPPOConfig, evaluate_actions
from uavlab.ops.action_sampling import masked_policy

E = 4
MOVES = replace(SPEC, choices=E, obs=E + 2, action=1)
CONFIGS = {
    "central": CONFIG,
    "shared": replace(CONFIG, critic="shared"),
    "own": IPPOConfig(**vars(CONFIG) | {"critic": "own"}),
    "stops": replace(CONFIG, target_kl=0.004),
}


def build(config: MAPPOConfig = CONFIG, spec: EnvSpec = MOVES) -> tuple[PPO, Streams]:
    rng = Streams([0], dtype=torch.float64)
    ones = torch.ones(1, spec.agents, spec.obs, dtype=torch.float64)
    return PPO(config, spec, Scale(center=0.1 * ones, spread=ones), rng, RT), rng


def observe(rng: Streams, name: str) -> ChoiceObs:
    """Return observations whose first features are the mask, which has at least one legal move."""
    legal = rng.uniform(f"{name}.legal", T, W, MOVES.agents, E) < 0.6
    legal[..., 0] |= ~legal.any(-1)
    rest = rng.normal(name, T, W, MOVES.agents, 2)
    return ChoiceObs(features=torch.cat((legal.to(rest.dtype), rest), -1), legal=legal)


def moves(rng: Streams) -> Steps:
    """Return the random steps of a team that chooses legal moves."""
    obs = observe(rng, "obs")
    action = (obs.legal * (0.1 + rng.uniform("move", T, W, MOVES.agents, E))).argmax(-1)
    return replace(steps(rng), obs=obs, action=action, next_obs=observe(rng, "next_obs"))


class SlowMoves(Slow):
    """The learner written out, for moves; it reads the mask from the first features."""

    masked = True

    def log_prob_and_entropy(self, obs: Tensor, action: Tensor, i: int) -> tuple[Tensor, Tensor]:
        out = self.team.actor_net(self.actor[self.team.networks[i]][None], obs[None, None])[0, 0]
        return judge_move(out, [e for e in range(E) if obs[e] or not self.masked], int(action))


def judge_move(out: Tensor, legal: list[int], move: int) -> tuple[Tensor, Tensor]:
    """Return the log probability of a move among legal ones, and the entropy."""
    chance = out[legal].softmax(0)
    return chance[legal.index(move)].log(), -(chance * chance.log()).sum()


def plain(data: Steps) -> Steps:
    return replace(data, obs=data.obs.features, next_obs=data.next_obs.features)


def train(learner: PPO, slow: Slow, rng: Streams) -> None:
    for _ in range(2):
        data, noise = moves(rng), learner.update_noise(rng, T * W)
        assert not data.obs.legal.all()
        slow.update(plain(data), noise)
        learner.update(batch_of(data), noise)


@pytest.mark.parametrize("name", CONFIGS)
def test_two_updates_equal_those_written_out(name: str) -> None:
    learner, rng = build(CONFIGS[name])
    slow = SlowMoves(learner)
    before = learner.actor.parameter.detach().clone()
    train(learner, slow, rng)
    assert_equal(learner, slow)
    assert (learner.actor.parameter - before).abs().max() > 1e-3
    assert (slow.undone > 0) is (name == "stops")


def test_a_learner_without_masks_is_caught() -> None:
    learner, rng = build()
    slow = SlowMoves(learner)
    slow.masked = False
    train(learner, slow, rng)
    assert distance(learner, slow) > 1e-3


def test_a_forbidden_move_has_no_chance_and_no_gradient() -> None:
    _, rng = build()
    data = moves(rng)
    obs = ChoiceObs(features=data.obs.features.flatten(1, 2), legal=data.obs.legal.flatten(1, 2))
    logits = rng.normal("logits", T * W, MOVES.agents, E).requires_grad_()
    log_prob, entropy = evaluate_actions(CONFIG, logits, obs, data.action.flatten(1, 2))
    (slope,) = torch.autograd.grad(log_prob.sum() + entropy.sum(), logits)
    assert (slope[~obs.legal] == 0).all()
    assert (slope[obs.legal] != 0).any()
    chance = masked_policy(logits, obs.legal, 0.0)
    assert (chance[~obs.legal] == 0).all()
    assert (chance[obs.legal] > 0).all()


def test_policies_choose_legal_moves_alone() -> None:
    learner, rng = build()
    obs = moves(rng).obs
    flat = ChoiceObs(features=obs.features.flatten(1, 2), legal=obs.legal.flatten(1, 2))
    for policy in (learner.policy(MOVES), PPO.load_policy(CONFIG, MOVES, MOVES, learner.parameters())):
        for noise in (None, *(rng.uniform("act", T * W, MOVES.agents) for _ in range(20))):
            action = policy(flat, noise)
            assert action.dtype == torch.int64
            assert flat.legal.gather(-1, action[..., None]).all()


def test_other_moves_are_refused() -> None:
    learner, _ = build()
    with pytest.raises(ConfigError, match="6 observations, 5 moves"):
        PPO.load_policy(CONFIG, MOVES, replace(MOVES, choices=5), learner.parameters())
