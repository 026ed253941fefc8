"""All rungs of the ladder against each other, from equal noise in float64."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.update_rungs import KINDS, Kind, Side, all_numbers, check_rungs_agree, difference, toggled
from uavlab.core.types import Batch
from uavlab.learners.masac import loop
from uavlab.learners.masac.loop import MASACLoop, sum_separately, sum_together
from uavlab.runtime.toggles import Toggles


@pytest.mark.parametrize(
    ("agents", "updates", "share", "seeds", "weighted"),
    [
        (1, 20, False, (0,), False),
        (2, 20, False, (0,), True),
        (8, 5, False, (0,), False),
        (3, 20, True, (3, 5), True),
    ],
)
def test_every_rung_equals_batched(
    agents: int, updates: int, share: bool, seeds: tuple[int, ...], weighted: bool
) -> None:
    check_rungs_agree(agents, updates, share, seeds, weighted)


def test_every_rung_equals_batched_with_critics_of_one_agent() -> None:
    check_rungs_agree(3, 5, True, (3, 5), True, critic="own")


def test_every_rung_equals_batched_with_rates_that_change() -> None:
    check_rungs_agree(3, 5, True, (3, 5), True, lr_to=0.1, lr_updates=3)


@pytest.mark.parametrize("name", ["merged", "vmap", "batched"])
def test_rates_end_where_they_should_and_go_on_from_a_state(name: str) -> None:
    side, other = (Side({name: KINDS[name]}, 2, lr_to=0.0, lr_updates=2) for _ in range(2))
    learner, fresh = (each.learners[name] for each in (side, other))
    moved = []
    for _ in range(4):
        before = learner.parameters()
        side.train(1)
        moved.append(float((learner.parameters() - before).abs().max()))
    assert moved[0] > moved[1] > 0 == moved[2] == moved[3]
    fresh.load_state_dict({key: value.clone() for key, value in learner.state_dict().items()})
    fresh.update(*side.next())
    assert torch.equal(fresh.parameters(), learner.parameters())  # rates are still 0
    assert "updates" not in Side({name: KINDS[name]}, 2).learners[name].state_dict()


def test_critics_of_one_agent_take_its_own_numbers_alone() -> None:
    side = Side(KINDS, 3, critic="own")
    batch, noise = side.next()
    action = batch.data.action.clone()
    action[:, :, 1:] *= -1
    other = dataclasses.replace(batch, data=dataclasses.replace(batch.data, action=action))
    for name, learner in side.learners.items():
        before = {key: value.clone() for key, value in learner.state_dict().items()}
        updates = [learner.update(each, noise) for each in (batch, other) if learner.load_state_dict(before) is None]
        same = [torch.equal(a, b) for a, b in zip(*(update.metrics["q"][0] for update in updates), strict=True)]
        assert same == [True, False, False], name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_every_rung_equals_batched_on_a_gpu() -> None:
    side = Side(KINDS, 3, True, (3, 5), True, device="cuda")
    results = side.train(20)
    reference = all_numbers(side.learners["batched"], results["batched"])
    for name in KINDS:
        assert difference(all_numbers(side.learners[name], results[name]), reference) <= 1e-9, name


def apart_from_merged(kind: Kind, spoil: Callable[[Batch], Batch] = lambda batch: batch) -> float:
    """Return the difference of a broken kind from the right one after some updates."""
    side = Side({"merged": KINDS["merged"], "broken": kind}, 2)
    results = side.train(20, spoil)
    return difference(*(all_numbers(side.learners[name], results[name]) for name in ("broken", "merged")))


def test_a_critic_fed_its_neighbours_reward_is_caught() -> None:
    def spoil(batch: Batch) -> Batch:
        reward = batch.data.reward.clone()
        reward[..., 1] = reward[..., 0]
        return dataclasses.replace(batch, data=dataclasses.replace(batch.data, reward=reward))

    assert apart_from_merged(KINDS["merged"]) == 0
    assert apart_from_merged(KINDS["merged"], spoil) > 1e-6


def test_actions_kept_from_the_phase_before_are_caught() -> None:
    class Stale(MASACLoop):
        previous: list[Any] | None = None

        def _sample_actions(self, *given: Any) -> Iterator[Any]:
            drawn = self.previous
            with torch.enable_grad():
                self.previous = list(super()._sample_actions(*given)) if drawn is None else None
            return iter(drawn or self.previous or [])

    assert apart_from_merged(toggled(Stale, update="merged")) > 1e-6


def test_clipping_by_the_norm_of_all_agents_is_caught() -> None:
    class Coupled(MASACLoop):
        def critic_loss(self, critic: Any, *given: Any) -> Any:
            loss, metrics = super().critic_loss(critic, *given)
            slopes = torch.autograd.grad(loss, [tensor for pair in critic for tensor in pair], retain_graph=True)
            return loss * (self.config.clip / torch.nn.utils.get_total_norm(slopes)).clamp(max=1), metrics

    assert apart_from_merged(toggled(Coupled, update="merged")) > 1e-6


def test_actions_of_others_that_are_not_detached_are_caught() -> None:
    class Attached(Tensor):
        def detach(self) -> Tensor:
            return self

    class Blaming(MASACLoop):
        def _sample_actions(self, *given: Any) -> Iterator[Any]:
            for run, agent, drawn in super()._sample_actions(*given):
                yield run, agent, [(action.as_subclass(Attached), log_prob) for action, log_prob in drawn]

        def targets(self, *given: Any) -> Tensor:
            return super().targets(*given).as_subclass(Tensor)

        def actor_loss(self, *given: Any) -> Any:
            loss, metrics = super().actor_loss(*given)
            return loss.as_subclass(Tensor), {k: v.as_subclass(Tensor).detach() for k, v in metrics.items()}

    assert apart_from_merged(toggled(Blaming, update="merged")) > 1e-6


@pytest.mark.parametrize(
    ("rung", "evaluations", "passes"), [("loop", 2 * 3**2, 9), ("cached", 2 * 3, 9), ("merged", 2 * 3, 0)]
)
def test_what_each_rung_saves(monkeypatch: pytest.MonkeyPatch, rung: str, evaluations: int, passes: int) -> None:
    """Three agents: evaluations of actors, which have 2 x 2 outputs; backward passes within a backward pass."""
    side = Side({rung: KINDS[rung]}, 3)
    batch, noise = side.next()
    seen: list[int] = []
    inner: list[int] = []

    def evaluate(net: Any, x: Tensor, plain: Callable = loop.evaluate) -> Tensor:
        seen.append(net[5].numel())
        return plain(net, x)

    def grad(loss: Tensor, owned: Any, *slope: Tensor, plain: Callable = torch.autograd.grad) -> Any:
        inner.append(len(slope))
        return plain(loss, owned, *slope)

    monkeypatch.setattr(loop, "evaluate", evaluate)
    monkeypatch.setattr(torch.autograd, "grad", grad)
    side.learners[rung].update(batch, noise)
    assert seen.count(4) == evaluations
    assert seen.count(1) == 3 * 3 * 2  # two critics of three agents: targets, critic loss, actor loss
    assert sum(inner) == passes  # three owners of three kinds


def test_losses_apart_and_together_have_the_same_slopes() -> None:
    owners = [[torch.tensor([1.0, 2.0], requires_grad=True)], [torch.tensor(3.0, requires_grad=True)]]

    def slopes(total: Callable) -> list[Tensor]:
        losses = [owners[0][0].square().sum(), 5 * owners[1][0]]
        loss = total(losses, owners)
        assert loss.detach().item() == 20  # 1 + 4 + 15
        return list(torch.autograd.grad(2 * loss, [owners[0][0], owners[1][0]]))

    for total in (sum_separately, sum_together):
        first, second = slopes(total)
        assert first.tolist() == [4, 8]  # 2 x 2 x
        assert second.item() == 10


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("share", "seeds"), [(False, (0,)), (True, (3, 5))])
def test_state_round_trip_continues_bit_for_bit(name: str, share: bool, seeds: tuple[int, ...]) -> None:
    side = Side({name: KINDS[name]}, 3, share, seeds)
    side.train(2)
    learner = side.learners[name]
    saved = {k: v.clone() for k, v in learner.state_dict().items()}
    other = Side({name: KINDS[name]}, 3, share, tuple(seed + 9 for seed in seeds)).learners[name]
    other.load_state_dict(saved)
    for _ in range(2):
        batch, noise = side.next()
        for each in (learner, other):
            each.update(batch, noise)
    for key, value in learner.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key
    assert torch.equal(learner.parameters(), other.parameters())


@pytest.mark.parametrize("name", KINDS)
def test_one_optimizer_equals_many(name: str) -> None:
    states = []
    for optimizers in ("many", "one"):
        side = Side({name: KINDS[name]}, 3, True, toggles=Toggles(optimizers=optimizers))  # type: ignore[arg-type]
        side.train(3)
        states.append(side.learners[name].state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


@pytest.mark.parametrize("toggle", [{"micro_batches": 3}, {"recompute": "on"}, {"adam": "foreach"}])
def test_the_seams_act_on_every_rung(toggle: dict[str, Any]) -> None:
    plain, other = Side(KINDS, 3, True), Side(KINDS, 3, True, toggles=Toggles(**toggle))
    first, second = plain.train(3), other.train(3)
    for name in KINDS:
        mine, reference = (
            all_numbers(other.learners[name], second[name]),
            all_numbers(plain.learners[name], first[name]),
        )
        assert difference(mine, reference) <= 1e-9, name


def test_low_precision_is_the_same_on_every_rung() -> None:
    given = {"agents": 3, "weighted": True, "dtype": torch.float32, "alpha": 1.0, "reward_scale": 1.0}
    exact = Side(KINDS, **given)
    low = Side(KINDS, **given, toggles=Toggles(adam="fused", precision="bf16"))
    first, second = exact.train(1), low.train(1)
    for name in KINDS:
        td_error, reference = second[name].td_error, second["batched"].td_error
        assert td_error.dtype == torch.float32
        torch.testing.assert_close(td_error, reference, rtol=2e-2, atol=1e-2)
        norm, exact_norm = second[name].metrics["critic_norm"], first[name].metrics["critic_norm"]
        assert not torch.allclose(norm, exact_norm, rtol=1e-4)
        torch.testing.assert_close(norm, second["batched"].metrics["critic_norm"], rtol=1e-2, atol=0)
