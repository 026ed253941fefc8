"""The ring against a plain Python list, with rows that contain their names."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.support.named_rows import RUNS, check, draw, named, names_of, rows
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import Transition, leaves, tree_map
from uavlab.replay import ring as module
from uavlab.replay.ring import Ring, add, allocate, allocate_words, row_bytes, take, view_fields


def contents(ring: Ring) -> list[int]:
    """List the names in run 0's slots, after checking that every leaf and run agrees."""
    size = int(ring.size)
    stored = tree_map(lambda leaf: leaf[:, :size], ring.rows)
    names = names_of(stored)
    check(stored, names)
    assert torch.equal(names[1], names[0] + 100_000)
    return names[0].tolist()


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


@pytest.mark.parametrize(
    "part", [(slice(None), slice(None)), (slice(None), slice(1, 4, 2)), (slice(1, 2), slice(2, 3))]
)
def test_fields_of_a_part_of_the_words_are_that_part(part: tuple[slice, slice]) -> None:
    ring = allocate(rows(named(1)), 5)
    add(ring, rows(named(5)))
    for (name, seen), (_, stored) in zip(
        leaves(view_fields(ring.words[part], ring.rows)), leaves(ring.rows), strict=True
    ):
        assert torch.equal(seen, stored[part]), name


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
    # float32: obs 6, action 2, reward 2, next_obs 6 = 16 x 4 bytes; terminated and truncated a word each.
    assert row_bytes(rows(named(1))) == 16 * 4 + 2 * 8


@pytest.mark.parametrize("agents", [1, 2, 3])
def test_fields_of_any_size_begin_at_whole_words_and_lie_apart(agents: int) -> None:
    example = rows(named(1))
    example = replace(
        example,
        reward=torch.ones(RUNS, 1, agents),
        terminated=torch.ones(RUNS, 1, agents, dtype=torch.bool),
        obs=torch.ones(RUNS, 1, agents, 3),
    )
    words, fields = allocate_words(example, 4)
    for number, (name, field) in enumerate(leaves(fields), 1):
        assert field.data_ptr() % 8 == 0, name
        assert field.untyped_storage().data_ptr() == words.data_ptr(), name
        field.fill_(number % 2 if field.dtype == torch.bool else number)
    for number, (name, field) in enumerate(leaves(fields), 1):
        assert bool((field == (number % 2 if field.dtype == torch.bool else number)).all()), name


def test_a_batch_is_one_copy_of_whole_rows() -> None:
    ring = allocate(rows(named(1)), 4)
    add(ring, rows(named(3)))
    got = take(ring, torch.tensor([[2, 0, 2], [1, 1, 0]]))
    check(got, torch.tensor([[2, 0, 2], [100_001, 100_001, 100_000]]))
    assert len({leaf.untyped_storage().data_ptr() for _, leaf in leaves(got)}) == 1


def random_operations(seed: int, operations: int) -> None:
    """Perform adds and draws of all sizes on a ring and on a deque, and compare.

    Raises:
        AssertionError: They differ.
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
            got, index = draw(ring, noise)
            expected = torch.tensor([[slots[n % len(oracle)] + 100_000 * r for n in row] for r, row in
                                     enumerate(noise.tolist())])  # fmt: skip
            check(got, expected)
            assert index.max() < len(oracle)


@pytest.mark.parametrize("seed", range(8))
def test_random_operations_equal_a_plain_list(seed: int) -> None:
    random_operations(seed, 400)


def write_forward(ring: Ring, new: Transition) -> None:
    """Write rows one by one without dropping the ones that do not fit: right, but the first rows stay."""
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


FITS = (
    "Add rows like those that it was allocated for; `uavlab check` finds an environment that violates its contract, "
    "`uavlab.check_learner` a learner."
)
NEW = rows(named(3))  # of 2 runs, 2 agents
MISFITS = [
    ({"reward": NEW.reward.double()}, "reward is float64 2x3x2 on cpu, expected float32 2x3x2 on cpu"),
    ({"truncated": NEW.truncated.int()}, "truncated is int32 2x3 on cpu, expected bool 2x3 on cpu"),
    ({"truncated": NEW.truncated.float()}, "truncated is float32 2x3 on cpu, expected bool 2x3 on cpu"),
    ({"obs": NEW.obs[:1]}, "obs is float32 1x3x2x3 on cpu, expected float32 2x3x2x3 on cpu"),
    ({"obs": NEW.obs[..., :2]}, "obs is float32 2x3x2x2 on cpu, expected float32 2x3x2x3 on cpu"),
    ({"action": NEW.action[:, :2]}, "action is float32 2x2x2x1 on cpu, expected float32 2x3x2x1 on cpu"),
    ({"terminated": NEW.terminated[..., 0]}, "terminated is bool 2x3 on cpu, expected bool 2x3x2 on cpu"),
    ({"truncated": NEW.truncated[..., None]}, "truncated is bool 2x3x1 on cpu, expected bool 2x3 on cpu"),
    ({"truncated": NEW.truncated[0, 0]}, "truncated is bool scalar on cpu, expected bool 2x3 on cpu"),
    ({"next_obs": NEW.next_obs.to("meta")}, "next_obs is float32 2x3x2x3 on meta, expected float32 2x3x2x3 on cpu"),
    ({"truncated": NEW.truncated.int(), "obs": NEW.obs.half()},
     "obs is float16 2x3x2x3 on cpu, expected float32 2x3x2x3 on cpu; "
     "truncated is int32 2x3 on cpu, expected bool 2x3 on cpu"),
]  # fmt: skip


def misfit(changed: dict[str, Tensor]) -> str:
    """Add rows that do not fit to a ring in use and return the outcome: the message if nothing was written."""
    ring = allocate(rows(named(1)), 5)
    add(ring, rows(named(7)))
    before = tree_map(Tensor.clone, ring)
    try:
        add(ring, replace(NEW, **changed))
    except (ConfigError, LookupError, RuntimeError) as error:
        untouched = all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(before), leaves(ring), strict=True))
        return str(error) if untouched else "half written"
    return "accepted"


@pytest.mark.parametrize(("changed", "wrong"), MISFITS)
def test_rows_that_do_not_fit_are_refused_and_the_ring_untouched(changed: dict[str, Tensor], wrong: str) -> None:
    assert misfit(changed) == f"Replay: rows do not fit the ring: {wrong}. {FITS}"


@pytest.mark.parametrize("rewards", [NEW.reward[0, :, 0], NEW.reward[0, 0, 0]])
def test_rewards_without_rows_are_refused(rewards: Tensor) -> None:
    message = f"Replay: rows do not fit the ring: .*reward is float32 {'3' if rewards.dim() else 'scalar'} on cpu"
    with pytest.raises(ConfigError, match=message):
        add(allocate(NEW, 5), replace(NEW, reward=rewards))


def test_a_ring_that_leaves_the_check_to_torch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "matches", lambda *_: True)
    assert "half written" in [misfit(changed) for changed, _ in MISFITS]


def test_nothing_is_read_from_the_device() -> None:
    """Meta tensors hold no values, so that any read of a value raises."""
    ring = allocate(tree_map(lambda leaf: leaf.to("meta"), NEW), 5)
    add(ring, tree_map(lambda leaf: leaf.to("meta"), NEW))
    got, _ = draw(ring, torch.zeros(RUNS, 4, dtype=torch.int64, device="meta"))
    assert got.obs.shape == (RUNS, 4, 2, 3)
    with pytest.raises(RuntimeError, match="meta"):
        int(ring.size)


BINS, ROWS, DRAWS = 20, 200, 1_000_000


LEAST, MOST = 5.41, 43.82  # 0.1 % and 99.9 % points of chi-square with 19 degrees of freedom


def chi_square(take: Callable[[Ring, Tensor], tuple[Transition, Tensor]], added: int) -> list[float]:
    """Draw a million rows for each run after ``added`` rows; compare how often each twentieth of them came."""
    ring = allocate(rows(named(1)), ROWS)
    add(ring, rows(named(added)))
    size = min(added, ROWS)
    got, _ = take(ring, Streams([3, 4]).integers("replay", DRAWS))
    age = added - 1 - (names_of(got) - named(1))
    counts = torch.stack([torch.bincount(run, minlength=size) for run in age]).view(RUNS, BINS, -1).sum(-1)
    return ((counts - DRAWS / BINS) ** 2 / (DRAWS / BINS)).sum(1).tolist()


@pytest.mark.parametrize("added", [100, 200, 1234])  # half full, full, wrapped
def test_draws_favour_no_row(added: int, proof: Callable[[str, str], None]) -> None:
    values = chi_square(draw, added)
    assert all(LEAST < value < MOST for value in values), values
    proof(f"a million draws from replay after {added} rows, in {BINS} bins",
          f"chi-square {', '.join(f'{value:.1f}' for value in values)} (19 degrees of freedom)")  # fmt: skip


def without_newest(ring: Ring, noise: Tensor) -> tuple[Transition, Tensor]:
    """Draw from all rows but the last slot's."""
    return draw(Ring(ring.words, ring.rows, ring.cursor, ring.size - 1), noise)


def from_little_noise(ring: Ring, noise: Tensor) -> tuple[Transition, Tensor]:
    """Reduce noise of 10 bits: the first 24 of 200 rows come a fifth more often."""
    return draw(ring, noise % 1024)


def in_turn(ring: Ring, noise: Tensor) -> tuple[Transition, Tensor]:
    """Draw too evenly for chance."""
    return draw(ring, torch.arange(noise.shape[1]).expand_as(noise))


@pytest.mark.parametrize("mutant", [without_newest, from_little_noise, in_turn])
def test_draws_that_favour_rows_are_caught(mutant: Callable) -> None:
    assert not all(LEAST < value < MOST for value in chi_square(mutant, 200))
