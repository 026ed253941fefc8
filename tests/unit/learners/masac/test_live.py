"""Teams whose agents are absent or end before the others: nothing is learned from their rows and actions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.update_rungs import (
    KINDS,
    Kind,
    Side,
    all_numbers,
    check_rungs_agree,
    difference,
    toggled,
)
from uavlab.core.types import Batch, LiveTransition, Transition, Update, leaves, tree_map
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.envs.pursuit import Pursuit
from uavlab.learners.masac import loop, masac
from uavlab.learners.masac.loop import MASACLoop
from uavlab.learners.masac.masac import (
    MASAC,
    UpdateNoise,
    mask_actions,
    one_hot,
    row_mean,
    weigh,
    weights,
    weights_ahead,
)
from uavlab.runtime.toggles import Toggles

ENV = Pursuit(pursuers=2, evaders=2, side=3, obstacles=0, horizon=9)
FEWER = LeaderFollower(followers=3, present=(0, 3))  # with absent followers
Patch = Callable[[pytest.MonkeyPatch], None]


def side_of(kinds: dict[str, Kind], **given: Any) -> Side:
    return Side(kinds, 4, True, (3, 5), env=ENV, **given)


def poisoned(batch: Batch) -> Batch:
    """Return a batch in which the rows of agents after their end are wrong."""
    data, dead = batch.data, ~batch.data.live
    assert dead.any()
    assert data.live.any(-1).all()
    wrong = replace(data, reward=data.reward + 1e3 * dead, terminated=data.terminated ^ dead)
    return replace(batch, data=wrong)


def train(kind: Kind, spoil: Any) -> dict[str, Tensor]:
    """Return the state and the last update of a learner, of whose batches the rows are spoilt."""
    side = side_of({"one": kind}, weighted=True)
    result = side.train(3, spoil)["one"]
    learner, update = side.learners["one"], {**result.metrics, "td_error": result.td_error}
    return {**{name: tensor.clone() for name, tensor in learner.state_dict().items()}, **update}


def changed_by_poison(kind: Kind) -> set[str]:
    plain, other = train(kind, lambda batch: batch), train(kind, poisoned)
    return {name for name, tensor in plain.items() if not torch.equal(tensor, other[name])}


@pytest.mark.parametrize("name", KINDS)
def test_rows_after_an_end_change_no_bit(name: str) -> None:
    assert changed_by_poison(KINDS[name]) == set()


class Heedless(MASAC):
    """The mutant: a learner that takes all rows alike."""

    def _update(self, batch: Batch, noise: UpdateNoise) -> Update:
        own = {name: getattr(batch.data, name) for name in Transition.__dataclass_fields__}
        return super()._update(replace(batch, data=Transition(**own)), noise)


class HeedlessCritic(MASACLoop):
    """The mutant: critics that take all rows alike."""

    def critic_loss(self, critic: Any, data: Any, *given: Any) -> Any:
        return super().critic_loss(critic, replace(data, weight=torch.ones_like(data.weight)), *given)


@pytest.mark.parametrize("mutant", [toggled(Heedless, update="batched"), toggled(HeedlessCritic, update="merged")])
def test_a_learner_that_heeds_no_end_is_caught(mutant: Kind) -> None:
    assert {"critic_loss", "td_error"} <= changed_by_poison(mutant)


def losses(learner: Any, data: Transition, noise: UpdateNoise) -> tuple[dict[str, Tensor], Tensor]:
    """Return the figures of each agent, and the targets."""
    parts = (learner.actor.parameter, learner.target, learner.temperature.parameter)
    y = learner.targets(*parts, data, noise.next_action)
    _, critics = learner.critic_loss(learner.critic.parameter, data, y, None)
    _, actors = learner.actor_loss(parts[0], learner.critic.parameter, parts[2], data, noise.action)
    return {name: critics[name] for name in ("q", "critic_loss")} | actors, y


def test_figures_of_an_agent_are_those_of_its_live_rows_alone() -> None:
    side = Side({"batched": KINDS["batched"]}, 4, env=ENV)
    learner = side.learners["batched"]
    batch, noise = side.next()
    figures, _ = losses(learner, weigh(batch.data), noise)
    compared = 0
    for agent in range(ENV.spec.agents):
        keep = batch.data.live[0, :, agent].nonzero()[:, 0]
        compared += len(keep) < batch.data.live.shape[1]
        few = weigh(tree_map(lambda leaf, keep=keep: leaf[:, keep], batch.data))
        alone, _ = losses(learner, few, UpdateNoise(noise.next_action[:, keep], noise.action[:, keep]))
        for name, table in figures.items():
            torch.testing.assert_close(table[:, agent], alone[name][:, agent], rtol=1e-12, atol=1e-12)
    assert compared > 0


def test_errors_after_an_end_are_0() -> None:
    side = side_of(KINDS)
    batch, noise = side.next()
    for name, learner in side.learners.items():
        error = learner.update(batch, noise).td_error
        assert (error[~batch.data.live] == 0).all(), name
        assert (error[batch.data.live] > 0).all(), name


@pytest.mark.parametrize("name", KINDS)
def test_an_agent_without_a_live_row_stays_as_it_is(name: str) -> None:
    side = Side({name: KINDS[name]}, 4, env=ENV)
    learner = side.learners[name]
    before = {key: table.clone() for key, (table, _) in learner.tensors_to_check().items()}
    batch, noise = side.next()
    live = batch.data.live.clone()
    live[..., 3] = False
    update = learner.update(replace(batch, data=replace(batch.data, live=live)), noise)
    assert all(tensor.isfinite().all() for tensor in update.metrics.values())
    after = {key: table for key, (table, _) in learner.tensors_to_check().items()}
    for key in ("actor.parameter", "critic.parameter", "temperature.parameter", "target.parameter"):
        assert torch.equal(before[key][:, 3], after[key][:, 3]), key
        assert not torch.equal(before[key][:, 0], after[key][:, 0]), key


@pytest.mark.parametrize(
    "given",
    [{"env": ENV}, {"env": FEWER}, {"env": FEWER, "critic": "shared", "n_step": 3}],
)
def test_every_form_equals_batched(given: dict[str, Any]) -> None:
    check_rungs_agree(4, 12, True, (3, 5), True, **given)


def acts_otherwise(side: Side) -> tuple[tuple[Batch, UpdateNoise], tuple[Batch, UpdateNoise]]:
    """Return a batch with its noise, and the same where agents that are not live act in another way.

    In some rows one agent ends alone, and an ended agent may choose any move.
    """
    batch, noise = side.next()
    ends = side.rng.uniform("ends", *batch.data.reward.shape[1:]) < 0.3
    data = replace(batch.data, terminated=batch.data.terminated | ends)
    if moves := not data.action.is_floating_point():
        free = torch.ones_like(data.obs.legal)
        data = replace(data, obs=replace(data.obs, legal=free), next_obs=replace(data.next_obs, legal=free))
    now, ahead = ~data.live, ~data.live | data.terminated
    assert now.any()
    assert (ahead & ~now).any(-1).any()

    def change(where: Tensor, x: Tensor, other: Tensor) -> Tensor:
        return torch.where(where if moves else where[..., None], other, x)

    action = change(now, data.action, (data.action + 1) % 5 if moves else -data.action)
    others = UpdateNoise(
        next_action=change(ahead, noise.next_action, 1 - noise.next_action),
        action=change(now, noise.action, 1 - noise.action),
    )
    return (replace(batch, data=data), noise), (replace(batch, data=replace(data, action=action)), others)


def changed_by_actions(kind: Kind, updates: int = 1, **given: Any) -> set[str]:
    """Return what differs between two learners, one of which sees other actions of agents that are not live."""
    side = Side({"one": kind, "other": kind}, 4, True, (3, 5), True, **given)
    for _ in range(updates):
        pair = acts_otherwise(side)
        results = [learner.update(*own) for learner, own in zip(side.learners.values(), pair, strict=True)]
    one, other = (all_numbers(*each) for each in zip(side.learners.values(), results, strict=True))
    return {name for name, (tensor, _) in one.items() if not torch.equal(tensor, other[name][0])}


TEAMS = {
    "pursuit": (KINDS, {"env": ENV}),
    "central": (KINDS, {"env": FEWER}),
    "shared": (KINDS, {"env": FEWER, "critic": "shared", "n_step": 3, "reward_scale": None}),
}


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("name", KINDS)
def test_actions_of_agents_that_are_not_live_change_no_bit(team: str, name: str) -> None:
    kinds, given = TEAMS[team]
    assert changed_by_actions(kinds[name], 2, **given) == set()


def stored(patch: pytest.MonkeyPatch) -> None:
    """Keep the stored actions."""
    patch.setattr(masac, "weigh", lambda data, ranks: replace(weigh(data), action=data.action))


def absent_ahead(patch: pytest.MonkeyPatch) -> None:
    """Let agents that end in a row act after it."""
    for module in (masac, loop):
        patch.setattr(module, "weights_ahead", weights)


def drawn(patch: pytest.MonkeyPatch) -> None:
    """Let all agents act in the actor loss."""

    def wrong(action: Tensor, weight: Tensor | None) -> Tensor:
        return action if torch.is_grad_enabled() else mask_actions(action, weight)

    for module in (masac, loop):
        patch.setattr(module, "mask_actions", wrong)


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("name", ["loop", "batched"])
@pytest.mark.parametrize(
    ("fault", "seen"),
    [(stored, {"q", "actor_loss"}), (absent_ahead, {"target", "actor_loss"}), (drawn, {"actor_loss"})],
)
def test_a_critic_that_sees_actions_without_effect_is_caught(
    team: str, name: str, fault: Patch, seen: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds, given = TEAMS[team]
    fault(monkeypatch)
    assert changed_by_actions(kinds[name], **given) & {"q", "target", "actor_loss"} == seen


def test_moves_that_count_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """With critics that count the moves that they see, values are numbers of other agents that act."""
    side = Side({"batched": KINDS["batched"]}, 4, env=ENV, reward_scale=1.0)
    learner: Any = side.learners["batched"]
    (batch, noise), _ = acts_otherwise(side)
    monkeypatch.setattr(
        learner, "values", lambda theta, obs, action: action.sum(-1)[:, :, None, :, None].expand(-1, -1, 2, -1, 5)
    )
    data, without_entropy = batch.data, learner.temperature.parameter - 1000
    live, goes_on = data.live.double(), (data.live & ~data.terminated).double()
    q = learner.data_values(learner.critic.parameter, weigh(data))
    y = learner.targets(learner.actor.parameter, learner.target, without_entropy, weigh(data), noise.next_action)
    _, figures = learner.actor_loss(
        learner.actor.parameter, learner.critic.parameter, without_entropy, weigh(data), noise.action
    )
    for agent in range(4):
        others, own = live[0].sum(-1) - live[0, :, agent], live[0, :, agent]
        after = goes_on[0].sum(-1) - goes_on[0, :, agent]
        there = own > 0
        bootstrapped = learner.config.gamma * after * ~data.terminated[0, :, agent]
        assert q[0, agent].tolist() == [(others * own).tolist()] * 2
        torch.testing.assert_close(y[0, agent, there], (data.reward[0, :, agent] + bootstrapped)[there])
        assert figures["actor_loss"][0, agent].item() == pytest.approx(-others[there].mean().item())


def test_pieces_of_a_batch_add_up_to_it() -> None:
    plain, other = side_of(KINDS), side_of(KINDS, toggles=Toggles(micro_batches=3))
    first, second = plain.train(3), other.train(3)
    for name in KINDS:
        pair = ((each.learners[name], result[name]) for each, result in ((other, second), (plain, first)))
        assert difference(*(all_numbers(*each) for each in pair)) <= 1e-9, name


def test_weights_by_hand() -> None:
    """Of four rows, agent 0 is live in two, agent 1 in one, agent 2 in none."""
    live = torch.tensor([[[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]], dtype=torch.bool)
    zero = torch.zeros(1, 4, 3)
    ended = torch.tensor([[[0, 0, 1], [1, 0, 1], [0, 0, 0], [0, 1, 1]]], dtype=torch.bool)
    action = torch.arange(1.0, 13).view(1, 4, 3, 1)
    data = LiveTransition(zero, action, zero, zero, ended, zero[..., 0].bool(), live=live)
    weight = weights(weigh(data))
    assert weight is not None
    assert weight.tolist() == [[[2, 2, 0, 0], [0, 0, 4, 0], [0, 0, 0, 0]]]
    ahead = weights_ahead(weigh(data))
    assert ahead is not None
    assert ahead.tolist() == [[[2, 0, 0, 0], [0, 0, 4, 0], [0, 0, 0, 0]]]
    assert weigh(data).action.flatten().tolist() == [1, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0, 0]
    assert mask_actions(action.transpose(1, 2), ahead).flatten().tolist() == [1, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0]
    move = weigh(replace(data, action=action[..., 0].long())).action
    assert move.flatten().tolist() == [1, -1, -1, 4, -1, -1, -1, 8, -1, -1, -1, -1]
    assert one_hot(move, 9, torch.float32).sum((0, 1)).nonzero().tolist() == [[0, 1], [0, 4], [1, 8]]
    assert row_mean(torch.tensor([5.0, 7.0, -1e9, 1e9]), weight).tolist() == [[6, -1e9, 0]]
    plain = Transition(*(leaf for name, leaf in leaves(data) if name != "live"))
    assert weigh(plain) is plain
    assert weights(plain) is weights_ahead(plain) is None
    assert mask_actions(action, None) is action
