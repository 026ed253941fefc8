"""Teams whose agents end before the others: nothing is learned from rows after an agent's end."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.update_rungs import CHOICE_KINDS, Kind, Side, all_numbers, check_rungs_agree, difference, toggled
from uavlab.core.types import Batch, LiveTransition, Transition, Update, leaves, tree_map
from uavlab.envs.pursuit.env import Pursuit
from uavlab.learners.masac.base import UpdateNoise
from uavlab.learners.masac.choices import ChoiceMASAC, ChoiceMASACLoop
from uavlab.learners.masac.live import row_mean, weigh, weights
from uavlab.runtime.toggles import Toggles

ENV = Pursuit(pursuers=2, evaders=2, side=3, obstacles=0, horizon=9)


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


@pytest.mark.parametrize("name", CHOICE_KINDS)
def test_rows_after_an_end_change_no_bit(name: str) -> None:
    assert changed_by_poison(CHOICE_KINDS[name]) == set()


class Heedless(ChoiceMASAC):
    """The mutant: a learner that takes all rows alike."""

    def _update(self, batch: Batch, noise: UpdateNoise) -> Update:
        own = {name: getattr(batch.data, name) for name in Transition.__dataclass_fields__}
        return super()._update(replace(batch, data=Transition(**own)), noise)


class HeedlessCritic(ChoiceMASACLoop):
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
    side = Side({"batched": CHOICE_KINDS["batched"]}, 4, env=ENV)
    learner = side.learners["batched"]
    batch, noise = side.next()
    figures, _ = losses(learner, weigh(batch.data), noise)
    own = {name: getattr(batch.data, name) for name in Transition.__dataclass_fields__}
    compared = 0
    for agent in range(ENV.spec.agents):
        keep = batch.data.live[0, :, agent].nonzero()[:, 0]
        compared += len(keep) < batch.data.live.shape[1]
        few = tree_map(lambda leaf, keep=keep: leaf[:, keep], Transition(**own))
        alone, _ = losses(learner, few, UpdateNoise(noise.next_action[:, keep], noise.action[:, keep]))
        for name, table in figures.items():
            torch.testing.assert_close(table[:, agent], alone[name][:, agent], rtol=1e-12, atol=1e-12)
    assert compared > 0


def test_errors_after_an_end_are_0() -> None:
    side = side_of(CHOICE_KINDS)
    batch, noise = side.next()
    for name, learner in side.learners.items():
        error = learner.update(batch, noise).td_error
        assert (error[~batch.data.live] == 0).all(), name
        assert (error[batch.data.live] > 0).all(), name


@pytest.mark.parametrize("name", CHOICE_KINDS)
def test_an_agent_without_a_live_row_stays_as_it_is(name: str) -> None:
    side = Side({name: CHOICE_KINDS[name]}, 4, env=ENV)
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


def test_every_form_equals_batched() -> None:
    check_rungs_agree(4, 12, True, (3, 5), True, env=ENV)


def test_pieces_of_a_batch_add_up_to_it() -> None:
    plain, other = side_of(CHOICE_KINDS), side_of(CHOICE_KINDS, toggles=Toggles(micro_batches=3))
    first, second = plain.train(3), other.train(3)
    for name in CHOICE_KINDS:
        pair = ((each.learners[name], result[name]) for each, result in ((other, second), (plain, first)))
        assert difference(*(all_numbers(*each) for each in pair)) <= 1e-9, name


def test_weights_by_hand() -> None:
    """Of four rows, agent 0 is live in two, agent 1 in one, agent 2 in none."""
    live = torch.tensor([[[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]], dtype=torch.bool)
    zero = torch.zeros(1, 4, 3)
    data = LiveTransition(zero, zero, zero, zero, zero.bool(), zero[..., 0].bool(), live=live)
    weight = weights(weigh(data))
    assert weight is not None
    assert weight.tolist() == [[[2, 2, 0, 0], [0, 0, 4, 0], [0, 0, 0, 0]]]
    assert row_mean(torch.tensor([5.0, 7.0, -1e9, 1e9]), weight).tolist() == [[6, -1e9, 0]]
    plain = Transition(*(leaf for name, leaf in leaves(data) if name != "live"))
    assert weigh(plain) is plain
    assert weights(plain) is None
