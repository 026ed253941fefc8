"""Stores: what choice by chance and choice by priority do with noise, weights and errors."""

import pytest
import torch

from tests.support.named_rows import RUNS, check, draw, named, rows
from uavlab.core.errors import ConfigError
from uavlab.core.types import Update
from uavlab.ops import sum_tree
from uavlab.replay.buffer import Store, Uniform
from uavlab.replay.prioritized import ByPriority, PriorityConfig

CAPACITY = 7
NOISE = torch.tensor([[0, 8, 15, 2**61], [3, 4, 5, 6]])


def filled(store: Store, count: int = 5) -> Store:
    store.add(rows(named(count)))
    return store


def by_priority(by: str = "max") -> ByPriority:
    return ByPriority(rows(named(1)), CAPACITY, PriorityConfig(priority_alpha=1.0), by)  # type: ignore[arg-type]


def test_uniform_choice_is_the_rings_own_draw() -> None:
    store = filled(Uniform(rows(named(1)), CAPACITY))
    index, weight = store.choose(NOISE)
    assert index.tolist() == [[0, 3, 0, 2**61 % 5], [3, 4, 0, 1]]
    assert weight is None
    expected, slots = draw(store.ring, NOISE)
    assert torch.equal(slots, index)
    assert torch.equal(store.take(index).obs, expected.obs)
    check(store.take(index), index + 100_000 * torch.arange(RUNS)[:, None])
    assert store.state_dict() == {}


def test_an_empty_store_gives_slot_0() -> None:
    assert Uniform(rows(named(1)), CAPACITY).choose(NOISE)[0].eq(0).all()


@pytest.mark.parametrize(("by", "priority"), [("mean", [[2.0, 0.5], [4.0, 1.0]]), ("max", [[3.0, 1.0], [4.0, 1.5]])])
def test_errors_become_priorities_of_the_rows_they_belong_to(by: str, priority: list[list[float]]) -> None:
    store = filled(by_priority(by))
    error = torch.tensor([[[1.0, -3.0], [0.0, 1.0]], [[-4.0, 4.0], [0.5, 1.5]]])
    store.feedback(torch.tensor([[4, 0], [1, 2]]), Update({}, td_error=error))
    mass = sum_tree.masses(store.tree)[:, :5] / sum_tree.UNIT
    expected = torch.ones(2, 5)
    expected[0, [4, 0]], expected[1, [1, 2]] = torch.tensor(priority)
    assert torch.equal(mass, expected)


def test_weights_undo_what_priorities_do_to_the_mean() -> None:
    store = filled(by_priority())
    store.feedback(torch.tensor([[0], [0]]), Update({}, td_error=torch.full((2, 1, 2), 16.0)))
    index, weight = store.choose(torch.arange(40).expand(2, 40) * 2**55)
    assert weight.amax() == 1
    assert torch.allclose(weight[index == 0], torch.tensor(16**-0.4))  # the correction begins at 0.4
    assert (index == 0).sum(1).tolist() == [32, 32]  # 16 of 20 parts of the mass


def test_a_learner_that_tells_no_errors_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^priorities: the learner returned no td_error; .* priorities=off"):
        filled(by_priority()).feedback(NOISE, Update({}))
    filled(Uniform(rows(named(1)), CAPACITY)).feedback(NOISE, Update({}))


def test_a_store_that_forgets_draws_as_a_new_one() -> None:
    store = filled(by_priority())
    store.feedback(torch.tensor([[0], [0]]), Update({}, td_error=torch.full((2, 1, 2), 16.0)))
    store.forget()
    assert torch.equal(sum_tree.masses(store.tree), sum_tree.masses(by_priority().tree))
