"""The ring against a plain Python list, every row knowing its own name."""

import random
from collections import deque

import pytest
import torch
from torch import Tensor

from uavlab.core.types import Transition, leaves
from uavlab.replay import ring as module
from uavlab.replay.ring import Ring, add, allocate, draw, row_bytes

RUNS, A, FEATURES, D = 2, 2, 3, 1


def rows(names: Tensor) -> Transition:
    """Make rows (R N) whose leaves all spell the row's name; names are whole numbers below 2^24."""

    def spell(*shape: int, offset: float) -> Tensor:
        return (names.float() + offset).view(*names.shape, *[1] * len(shape)).expand(*names.shape, *shape).clone()

    return Transition(
        obs=spell(A, FEATURES, offset=0.0),
        action=spell(A, D, offset=0.25),
        reward=spell(A, offset=0.5),
        next_obs=spell(A, FEATURES, offset=0.75),
        terminated=(names % 2 == 0)[..., None].expand(*names.shape, A).clone(),
        truncated=names % 3 == 0,
        stage=names.clone(),
    )


def named(count: int, start: int = 0) -> Tensor:
    """Name W rows of each run: run r calls its rows 100 000 r + start, ..."""
    return torch.arange(start, start + count) + 100_000 * torch.arange(RUNS)[:, None]


def check(got: Transition, names: Tensor) -> None:
    """Compare every leaf with what rows of these names must hold."""
    for (leaf, a), (_, b) in zip(leaves(got), leaves(rows(names)), strict=True):
        assert torch.equal(a, b), leaf


def contents(ring: Ring) -> list[int]:
    """List the names in run 0's slots, after checking that every leaf and run agrees."""
    size = int(ring.size)
    stored = Transition(**{k: v[:, :size] for k, v in vars(ring.rows).items()})
    check(stored, stored.stage)
    assert torch.equal(stored.stage[1], stored.stage[0] + 100_000)
    return stored.stage[0].tolist()


def test_wraps_around_exactly() -> None:
    ring = allocate(rows(named(1)), 5)
    add(ring, rows(named(3)))
    assert (contents(ring), int(ring.cursor), int(ring.size)) == ([0, 1, 2], 3, 3)
    add(ring, rows(named(3, start=3)))
    assert (contents(ring), int(ring.cursor), int(ring.size)) == ([5, 1, 2, 3, 4], 1, 5)


def test_exact_multiple_returns_to_slot_zero() -> None:
    ring = allocate(rows(named(1)), 4)
    for start in (0, 2, 4, 6):
        add(ring, rows(named(2, start)))
    assert (contents(ring), int(ring.cursor), int(ring.size)) == ([4, 5, 6, 7], 0, 4)


@pytest.mark.parametrize("count", [5, 7, 10, 13])
def test_of_more_rows_than_fit_the_last_stay(count: int) -> None:
    ring = allocate(rows(named(1)), 5)
    add(ring, rows(named(2)))
    add(ring, rows(named(count, start=2)))
    last = count + 2  # rows 0 ... last - 1 were added; row n lies in slot n mod 5
    assert sorted(contents(ring)) == list(range(last - 5, last))
    assert [n % 5 for n in contents(ring)] == [0, 1, 2, 3, 4]
    assert int(ring.cursor) == last % 5


def test_one_slot() -> None:
    ring = allocate(rows(named(1)), 1)
    for start in range(3):
        add(ring, rows(named(1, start)))
        assert (contents(ring), int(ring.cursor), int(ring.size)) == ([start], 0, 1)
    add(ring, rows(named(4, 10)))
    assert contents(ring) == [13]


def test_draws_follow_the_noise_modulo_the_size() -> None:
    ring = allocate(rows(named(1)), 8)
    add(ring, rows(named(3)))
    noise = torch.tensor([[0, 4, 8], [2**62 - 1, 2, 1]])  # 2^62 = 1 (mod 3), so 2^62 - 1 = 0
    got, index = draw(ring, noise)
    assert index.tolist() == [[0, 1, 2], [0, 2, 1]]
    check(got, index + 100_000 * torch.arange(RUNS)[:, None])


def test_an_empty_ring_yields_slot_zero() -> None:
    _, index = draw(allocate(rows(named(1)), 4), torch.full((RUNS, 3), 7))
    assert index.unique().tolist() == [0]


def test_draws_are_copies() -> None:
    ring = allocate(rows(named(1)), 2)
    add(ring, rows(named(2)))
    got, _ = draw(ring, torch.zeros(RUNS, 1, dtype=torch.int64))
    add(ring, rows(named(2, start=50)))
    check(got, named(1))


def test_row_bytes_by_hand() -> None:
    # float32: obs 6, action 2, reward 2, next_obs 6 = 16 x 4 bytes; terminated 2 + truncated 1; stage 8.
    assert row_bytes(rows(named(1))) == 16 * 4 + 3 + 8


def random_operations(seed: int, operations: int) -> None:
    """Play adds and draws of all sizes on a ring and on a deque, and compare.

    Raises:
        AssertionError: They disagree.
    """
    dice = random.Random(seed)
    capacity = dice.choice((1, 2, 3, 7, 16))
    ring, oracle, slots, total = allocate(rows(named(1)), capacity), deque[int](maxlen=capacity), {}, 0
    for _ in range(operations):
        if dice.random() < 0.6 or not oracle:
            count = dice.choice((1, 2, 3, capacity, capacity + 1, 2 * capacity))
            module.add(ring, rows(named(count, total)))
            for name in range(total, total + count):
                oracle.append(name)
                slots[name % capacity] = name
            total += count
            assert sorted(contents(ring)) == list(oracle)
            assert [slots[s] for s in range(len(oracle))] == contents(ring)
        else:
            noise = torch.tensor([[dice.randrange(2**62) for _ in range(4)] for _ in range(RUNS)])
            got, index = module.draw(ring, noise)
            expected = torch.tensor([[slots[n % len(oracle)] + 100_000 * r for n in row] for r, row in
                                     enumerate(noise.tolist())])  # fmt: skip
            check(got, expected)
            assert index.max() < len(oracle)


@pytest.mark.parametrize("seed", range(8))
def test_random_operations_equal_a_plain_list(seed: int) -> None:
    random_operations(seed, 400)


def write_forward(ring: Ring, new: Transition) -> None:
    """Write rows one by one without dropping the ones that do not fit: right, but with the first rows kept."""
    count, capacity = new.reward.shape[1], ring.capacity
    slot = (ring.cursor + torch.arange(count)).remainder(capacity)
    for (_, stored), (_, leaf) in zip(leaves(ring.rows), leaves(new), strict=True):
        stored.index_copy_(1, slot[:capacity], leaf[:, :capacity])
    ring.cursor.add_(count).remainder_(capacity)
    ring.size.add_(count).clamp_(max=capacity)


def write_without_wrap(ring: Ring, new: Transition) -> None:
    """Move the cursor one too far when the end is met exactly."""
    add(ring, new)
    ring.cursor.add_(ring.cursor == 0)
    ring.cursor.remainder_(ring.capacity)


@pytest.mark.parametrize("mutant", [write_forward, write_without_wrap])
def test_random_operations_catch_mutants(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "add", mutant)

    def games() -> None:
        for seed in range(8):
            random_operations(seed, 400)

    with pytest.raises((AssertionError, RuntimeError)):
        games()
