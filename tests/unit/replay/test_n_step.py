"""Returns of several steps against loops over single rows, in rings that are full or not, with ends of every kind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.plain_collector import collector
from tests.support.update_rungs import KINDS, Side, check_rungs_agree
from uavlab.collectors.off_policy import OffPolicyCollector, ReplayConfig
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Transition, leaves
from uavlab.envs.pursuit import Pursuit
from uavlab.evaluation import random_policy
from uavlab.replay import ring
from uavlab.replay.buffer import Returns, take_returns
from uavlab.replay.ring import Ring
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles

ENV = Pursuit(pursuers=2, evaders=2, side=3, obstacles=0, horizon=7)
WORLDS, GAMMA = 3, 0.8


def filled(cycles: int, capacity: int, **toggles: Any) -> OffPolicyCollector:
    config = ReplayConfig(worlds=WORLDS, batch=64, capacity=capacity, learning_starts=12)
    rng, rt = Streams((3, 8), dtype=torch.float64), Runtime(requested=Toggles(**toggles))
    source = collector(ENV, random_policy, config, rng, rt, returns=Returns(3, GAMMA, WORLDS))
    for _ in range(cycles):
        source.next()
    return source


def by_hand(source: Ring, run: int, slot: int, steps: int) -> tuple[list[float], list[bool], int, int]:
    """Return sums of rewards, ends of agents, the slot of the last row, and the number of rows."""
    rows, agents, size = source.rows, range(ENV.spec.agents), int(source.size)
    newest = (int(source.cursor) - 1) % source.capacity
    order = [(newest - back) % source.capacity for back in range(size)][::-1]  # slots from the oldest row on
    place = order.index(slot)
    total, ended, taken = [0.0 for _ in agents], [False for _ in agents], []
    for k in range(steps):
        if place + k * WORLDS >= size:
            break
        slot = order[place + k * WORLDS]
        for i in agents:
            total[i] += 0.0 if ended[i] else GAMMA**k * float(rows.reward[run, slot, i])
            ended[i] = ended[i] or bool(rows.terminated[run, slot, i])
        taken.append(slot)
        if rows.truncated[run, slot] or rows.terminated[run, slot].all():
            break
    return total, ended, taken[-1], len(taken)


def faults(source: Ring, steps: int, find: Callable = take_returns) -> set[str]:
    """Return which parts of the returns of all rows differ from those by hand."""
    size = int(source.size)
    index = torch.arange(size).expand(2, -1)
    data, discount = find(Returns(steps, GAMMA, WORLDS), source, lambda slots: ring.take(source, slots), index)
    wrong = set()
    for run in range(2):
        for n in range(size):
            total, ended, last, taken = by_hand(source, run, n, steps)
            same = {
                "reward": torch.allclose(data.reward[run, n], torch.tensor(total, dtype=torch.float64), atol=1e-12),
                "terminated": data.terminated[run, n].tolist() == ended,
                "next_obs": torch.equal(data.next_obs.features[run, n], source.rows.next_obs.features[run, last]),
                "legal": torch.equal(data.next_obs.legal[run, n], source.rows.next_obs.legal[run, last]),
                "obs": torch.equal(data.obs.features[run, n], source.rows.obs.features[run, n]),
                "action": torch.equal(data.action[run, n], source.rows.action[run, n]),
                "live": torch.equal(data.live[run, n], source.rows.live[run, n]),
                "truncated": bool(data.truncated[run, n]) == bool(source.rows.truncated[run, last]),
                "discount": abs(float(discount[run, n]) - GAMMA**taken) < 1e-12,
            }
            wrong |= {name for name, equal in same.items() if not equal}
    return wrong


@pytest.mark.parametrize("steps", [1, 2, 3, 9])
@pytest.mark.parametrize(("cycles", "capacity"), [(5, 100), (40, 71), (20, 72)])  # partly filled, or written over
def test_returns_are_those_of_a_loop_over_rows(steps: int, cycles: int, capacity: int) -> None:
    source = filled(cycles, capacity).ring
    assert (int(source.size) == capacity) is (cycles > 5)
    assert faults(source, steps) == set()


def across_resets(returns: Returns, source: Ring, take: Callable, index: Tensor) -> Any:
    def endless(slots: Tensor) -> Transition:
        rows = take(slots)
        rows.truncated.zero_()
        return rows

    return take_returns(returns, source, endless, index)


def of_other_worlds(returns: Returns, *given: Any) -> Any:
    return take_returns(Returns(returns.steps, returns.gamma, WORLDS - 1), *given)


def past_the_newest(returns: Returns, source: Ring, take: Callable, index: Tensor) -> Any:
    whole = Ring(source.words, source.rows, source.cursor, torch.full_like(source.size, 10**6))
    return take_returns(returns, whole, take, index)


@pytest.mark.parametrize("mutant", [across_resets, of_other_worlds, past_the_newest])
def test_mistakes_are_caught(mutant: Callable) -> None:
    wrong = faults(filled(40, 71).ring, 3, mutant)
    assert {"reward", "next_obs", "discount"} & wrong


def test_one_agents_end_cuts_its_own_rewards_alone() -> None:
    source = filled(40, 71).ring
    source.rows.reward.add_(torch.where(source.rows.live, 0.0, 5.0))  # rewards after an end, which must not count
    assert faults(source, 3) == set()
    own = ring.take(source, all_slots(source))
    rows, _ = take_returns(Returns(3, GAMMA, WORLDS), source, lambda slots: ring.take(source, slots), all_slots(source))
    ends = own.live & own.terminated
    assert (ends & ~own.terminated.all(-1, keepdim=True)).any()
    assert torch.equal(rows.reward[ends], own.reward[ends])


def all_slots(source: Ring) -> Tensor:
    return torch.arange(int(source.size)).expand(2, -1)


def test_sums_by_hand() -> None:
    """One world with rewards 1, 2, 3, ...; the third of six rows ends its episode by the time limit."""
    one = torch.arange(1.0, 7).view(1, 6, 1)
    limit = torch.tensor([[False, False, True, False, False, False]])
    data = Transition(one[..., None], one[..., None], one, one[..., None] + 0.5, one < 0, limit)
    source = ring.allocate(data, 6)
    ring.add(source, data)
    index = torch.arange(6)[None]
    rows, discount = take_returns(Returns(3, 0.5, 1), source, lambda slots: ring.take(source, slots), index)
    assert rows.reward.flatten().tolist() == [1 + 1 + 0.75, 2 + 1.5, 3, 4 + 2.5 + 1.5, 5 + 3, 6]
    assert rows.next_obs.flatten().tolist() == [3.5, 3.5, 3.5, 6.5, 6.5, 6.5]
    assert discount.tolist() == [[0.125, 0.25, 0.5, 0.125, 0.25, 0.5]]


@pytest.mark.parametrize("prefetch", ["off", "on", "overlap"])
def test_batches_hold_returns_and_go_on_bit_for_bit(prefetch: str) -> None:
    first = filled(9, 71, prefetch=prefetch)
    state = {k: v.clone() for k, v in first.state_dict().items()}
    cuts, streams = first.segments(()), first.rng.state_dict()

    def numbers(batch: Batch) -> list[Tensor]:
        assert batch.discount is not None
        assert (batch.discount < GAMMA).any()
        return [batch.index, batch.discount, *(leaf.clone() for _, leaf in leaves(batch.data))]

    expected = [numbers(first.next()) for _ in range(12)]
    second = filled(0, 71, prefetch=prefetch)
    second.load_state_dict(state)
    second.load_segments({name: cut for name, cut in cuts.items() if cut is not None})
    second.rng.load_state_dict(streams)
    for numbers_of_one in expected:
        assert all(map(torch.equal, numbers(second.next()), numbers_of_one))


@pytest.mark.parametrize("kinds", [KINDS])
def test_every_form_learns_the_same_from_them(kinds: dict[str, Any]) -> None:
    check_rungs_agree(4, 5, True, (3, 5), True, env=ENV if kinds is KINDS else None, n_step=3)


@pytest.mark.parametrize("name", ["merged", "vmap", "batched"])
def test_a_target_takes_the_discount_of_its_row(name: str) -> None:
    """Twice the discount is twice the distance of a target from its rewards."""
    side = Side({name: KINDS[name]}, 2, n_step=2)
    learner, (batch, noise) = side.learners[name], side.next()
    parts = (learner.actor_theta, learner.target, learner.log_alpha, batch.data)
    with torch.no_grad():
        once, twice = (learner.targets(*parts, noise.next_action, scale * batch.discount) for scale in (1, 2))
    reward = learner.reward_factor * batch.data.reward.transpose(1, 2)
    torch.testing.assert_close(twice - reward, 2 * (once - reward))
    assert (once != reward).any()
