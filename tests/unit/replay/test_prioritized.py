"""Prioritized replay against plain lists, by hand, run by run, and with unusable priorities."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.devices import DEVICES, capture
from tests.support.lockstep import ThreadRank, together
from tests.support.named_rows import RUNS, check, named, rows
from tests.support.plain_priorities import UNIT, digest, draw, random_operations, small
from tests.support.sync_debug import sync_debug
from uavlab.core.errors import ConfigError, FileError
from uavlab.core.rng import Streams
from uavlab.core.types import Transition, tree_map
from uavlab.ops import sum_tree
from uavlab.replay import prioritized as module
from uavlab.replay import ring as rings
from uavlab.replay.prioritized import ByPriority, PriorityConfig, joint_priority

PLAIN = PriorityConfig(priority_alpha=1.0)


def filled(count: int, capacity: int = 8, config: PriorityConfig = PLAIN) -> ByPriority:
    replay = small(capacity, config)
    if count:
        replay.add(rows(named(count)))
    return replay


def both(values: list[Any]) -> Tensor:
    """Repeat values for each run."""
    return torch.tensor([values] * RUNS)


class TestByHand:
    def test_new_rows_get_the_largest_priority_so_far(self) -> None:
        replay = filled(2)
        replay.set_priorities(torch.tensor([[0, 1], [0, 1]]), torch.tensor([[3.0, 0.5], [0.25, 0.5]]))
        replay.add(rows(named(1, 2)))
        assert sum_tree.masses(replay.tree)[:, :3].tolist() == [
            [3 * UNIT, UNIT // 2, 3 * UNIT],
            [UNIT // 4, UNIT // 2, UNIT],  # run 1 has seen nothing larger than 1
        ]

    def test_the_largest_priority_decays_with_each_batch(self) -> None:
        replay = filled(2)
        replay.set_priorities(both([0]), both([9.0]))
        replay.set_priorities(both([0]), both([0.25]))  # the row itself is not at 9 any more
        largest = 9 * UNIT
        for _ in range(700):
            replay.choose(both([0]))
            largest -= largest // 1024
        replay.add(rows(named(1, 2)))
        assert sum_tree.masses(replay.tree)[:, 2].tolist() == [largest] * RUNS
        assert largest / UNIT == pytest.approx(9 * math.exp(-700 / 1024), rel=1e-2)

    def test_what_is_left_out_lifts_no_maximum(self) -> None:
        replay = filled(2)
        replay.set_priorities(both([0]), both([9.0]))
        for _ in range(300):
            replay.choose(both([1]))
        before = replay.largest.clone()
        replay.set_priorities(both([0, 1]), both([1.0, 1.0]), both([True, False]))  # slot 0 still has priority 9
        assert torch.equal(replay.largest, before)

    def test_beta_follows_the_length_of_the_run(self) -> None:
        stores = {updates: ByPriority(rows(named(1)), 8, PriorityConfig(), updates=updates) for updates in (4, None)}
        assert {updates: int(replay.length) for updates, replay in stores.items()} == {4: 4, None: 100_000}
        fixed = ByPriority(rows(named(1)), 8, PriorityConfig(priority_draws=7), updates=4)
        assert int(fixed.length) == 7
        for replay in stores.values():
            replay.draws.fill_(2)
        assert float(stores[4].anneal(0.4, 1.0, torch.device("cpu"))) == pytest.approx(0.7)
        stores[4].add(rows(named(1)))
        resumed = ByPriority(rows(named(1)), 8, PriorityConfig(), updates=100)  # to a farther target
        resumed.load_state_dict(stores[4].state_dict())
        assert int(resumed.length) == 4

    def test_priorities_are_raised_to_alpha_once(self) -> None:
        replay = filled(2, config=PriorityConfig(priority_alpha=0.5))
        replay.set_priorities(both([0]), both([16.0]))
        replay.add(rows(named(1, 2)))
        assert sum_tree.masses(replay.tree)[0, :3].tolist() == [4 * UNIT, UNIT, 4 * UNIT]

    def test_weights(self) -> None:
        replay = filled(3, config=PriorityConfig(priority_alpha=1.0, priority_beta=0.5))
        replay.set_priorities(both([0, 1, 2]), both([4.0, 1.0, 16.0]))  # chances 4/21, 1/21, 16/21
        noise = both([0, 0, 0])  # from thirds of the mass: points 0, 7, 14
        batch = draw(replay, noise)
        assert batch.index.tolist() == [[0, 2, 2]] * RUNS
        # (3 x 4/21)^-1/2 and (3 x 16/21)^-1/2, over the larger: 1 and (4/16)^1/2
        assert batch.weight is not None
        assert batch.weight.tolist() == [[1.0, 0.5, 0.5]] * RUNS
        check(batch.data, batch.index + named(1))

    def test_beta_rises_to_1_on_a_straight_line(self) -> None:
        replay = filled(2, config=PriorityConfig(priority_alpha=1.0, priority_beta=0.5, priority_draws=2))
        replay.set_priorities(both([0, 1]), both([1.0, 3.0]))
        noise = both([0, 3 * UNIT])
        seen = [replay.choose(noise)[1][0, 1].item() for _ in range(4)]
        assert seen == pytest.approx([3**-0.5, 3**-0.75, 3**-1, 3**-1])
        assert int(replay.draws) == 4

    def test_alpha_moves_on_a_straight_line(self) -> None:
        replay = filled(1, config=PriorityConfig(priority_alpha=1.0, priority_alpha_end=0.0, priority_draws=2))
        seen = []
        for _ in range(4):
            replay.set_priorities(both([0]), both([4.0]))
            seen.append(int(sum_tree.masses(replay.tree)[0, 0]))
            replay.choose(both([0]))
        assert seen == [4 * UNIT, 2 * UNIT, UNIT, UNIT]

    def test_joint_priorities(self) -> None:
        error = torch.tensor([[[1.0, -3.0], [0.5, 0.25]]])
        assert joint_priority(error, "mean").tolist() == [[2.0, 0.375]]
        assert joint_priority(error, "max").tolist() == [[3.0, 0.5]]

    def test_of_several_priorities_for_one_row_the_last_stays(self) -> None:
        replay = filled(3)
        replay.set_priorities(both([1, 1, 2, 1]), both([9.0, 2.0, 3.0, 5.0]))
        assert sum_tree.masses(replay.tree)[0, :3].tolist() == [UNIT, 5 * UNIT, 3 * UNIT]
        replay.set_priorities(both([1, 1]), both([4.0, float("nan")]))  # the last one that can be used
        assert sum_tree.masses(replay.tree)[0, 1] == 4 * UNIT

    def test_an_empty_ring_yields_slot_zero(self) -> None:
        batch = draw(filled(0), both([0, 5, 2**62 - 1]))
        assert batch.index.tolist() == [[0, 0, 0]] * RUNS
        assert batch.weight is not None
        assert batch.weight.tolist() == [[1, 1, 1]] * RUNS

    def test_batches_are_copies(self) -> None:
        replay = filled(2, capacity=2)
        batch = draw(replay, both([0, 0]))
        replay.add(rows(named(2, 50)))
        check(batch.data, named(2))


@pytest.mark.parametrize("seed", range(10))
def test_random_operations_equal_plain_lists(seed: int) -> None:
    random_operations(seed, 200)


@pytest.mark.soak  # minutes
def test_random_operations_equal_plain_lists_at_length(proof: Callable[[str, str], None]) -> None:
    count = sum(random_operations(seed, 1000) for seed in range(100, 300))
    assert count == 200_000
    proof("random operations on prioritized replay and on plain lists", f"{count:,}, 0 differences")


def find_by_float32(tree: sum_tree.Tree, ends: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    mass = sum_tree.masses(tree)
    slot = torch.searchsorted(mass.float().cumsum(1), point.float(), right=True).clamp(max=tree.capacity - 1)
    return slot, mass.gather(1, slot)


def find_one_too_early(tree: sum_tree.Tree, ends: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    mass = sum_tree.masses(tree)
    slot = torch.searchsorted(mass.cumsum(1), point)  # takes the slot that ends where the point lies
    return slot, mass.gather(1, slot)


def update_first(tree: sum_tree.Tree, slot: Tensor, mass: Tensor, skip: Tensor | None = None) -> Tensor:
    return UPDATE(tree, slot.flip(1), mass.flip(1), None if skip is None else skip.flip(1)).flip(1)


def update_all(tree: sum_tree.Tree, slot: Tensor, mass: Tensor, skip: Tensor | None = None) -> Tensor:
    """Set unusable rows to the smallest mass instead of leaving them unchanged."""
    wild = torch.zeros_like(slot, dtype=torch.bool) if skip is None else skip
    outside = (slot < 0) | (slot >= tree.capacity)
    return UPDATE(tree, slot, mass.masked_fill(wild, 1), wild & outside)


def update_adding_every_change(tree: sum_tree.Tree, slot: Tensor, mass: Tensor, skip: Tensor | None = None) -> Tensor:
    """Add every one of several changes of a slot to the nodes above."""
    good = torch.ones_like(slot, dtype=torch.bool) if skip is None else ~skip
    slots, flat = tree.levels[-1].view(-1), sum_tree.offset_by_run(slot * good, tree.width)
    change = mass[good] - slots[flat[good]]
    slots[flat[good]] = mass[good]
    for level in reversed(tree.levels[:-1]):
        level.view(-1).index_add_(0, flat[good] // (slots.numel() // level.numel()), change)
    return slots[flat]


UPDATE, ADD, SET_PRIORITIES = sum_tree.update, ByPriority.add, ByPriority.set_priorities


def add_without_modulo(replay: ByPriority, new: Transition) -> None:
    count = new.reward.shape[1]
    slot = (replay.ring.cursor + torch.arange(count)).expand(RUNS, -1)
    rings.add(replay.ring, new)
    UPDATE(replay.tree, slot, replay.largest[:, None].expand(RUNS, count), slot >= replay.tree.width)


def add_with_alpha_again(replay: ByPriority, new: Transition) -> None:
    again = sum_tree.fixed_point((replay.largest / UNIT) ** replay.config.priority_alpha)
    before = replay.largest.clone()
    replay.largest.copy_(again)
    ADD(replay, new)
    replay.largest.copy_(before)


def set_with_alpha_again(replay: ByPriority, index: Tensor, priority: Tensor) -> None:
    SET_PRIORITIES(replay, index, priority**replay.config.priority_alpha)


def set_forgetting_the_largest(replay: ByPriority, index: Tensor, priority: Tensor) -> None:
    SET_PRIORITIES(replay, index, priority)
    replay.largest.fill_(UNIT)


def weigh_over_the_whole_ring(mass: Tensor, beta: Tensor | float, ranks: Any = None) -> Tensor:
    return (1 / mass).pow(beta)


MUTANTS = [
    (sum_tree, "find_slots", find_by_float32),
    (sum_tree, "find_slots", find_one_too_early),
    (sum_tree, "update", update_first),
    (sum_tree, "update", update_all),
    (sum_tree, "update", update_adding_every_change),
    (sum_tree, "offset_by_run", lambda slot, width: slot.clone()),
    (ByPriority, "add", add_without_modulo),
    (ByPriority, "add", add_with_alpha_again),
    (ByPriority, "set_priorities", set_with_alpha_again),
    (ByPriority, "set_priorities", set_forgetting_the_largest),
    (module, "importance_weights", weigh_over_the_whole_ring),
    (ByPriority, "anneal", lambda replay, first, last, device: first),
]


@pytest.mark.parametrize(("home", "name", "mutant"), MUTANTS)
def test_random_operations_catch_mutants(home: Any, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, name, mutant)

    def games() -> None:
        for seed in range(10):
            random_operations(seed, 200)

    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        games()


NAN, INF = float("nan"), float("inf")
UNUSABLE = [
    ([0, 1], [1.0, NAN]),
    ([0, 1], [INF, 1.0]),
    ([0, 1], [1.0, -INF]),
    ([0, 1], [-1.0, -2.0]),
    ([-1, 1], [1.0, 1.0]),
    ([0, 5], [1.0, 1.0]),  # the size
    ([0, 8], [1.0, 1.0]),  # the capacity
    ([0, 2**62], [1.0, 1.0]),
    ([-(2**63), 0], [1.0, NAN]),
]


@pytest.mark.parametrize(("index", "priority"), UNUSABLE)
def test_unusable_priorities_are_counted_and_the_others_used(index: list[int], priority: list[float]) -> None:
    replay, expected = filled(5), filled(5)
    usable = [p for i, p in zip(index, priority, strict=True) if 0 <= i < 5 and 0 <= p < INF]
    replay.set_priorities(torch.tensor([[2, 3], index]), torch.tensor([[7.0, 7.0], priority]))
    before = torch.tensor([[7.0, 7.0], [1.0, 1.0]])  # 1 is the priority of new rows
    expected.set_priorities(torch.tensor([[2, 3], [0, 0]]), before)
    expected.refused[1] = 2 - len(usable)
    assert digest(replay) == digest(expected)


def test_an_empty_replay_accepts_no_priority() -> None:
    replay = filled(0)
    before = digest(replay)
    replay.set_priorities(both([0]), both([9.0]))
    replay.refused.sub_(1)
    assert digest(replay) == before


SHAPELESS = [
    (both([0]), both([1.0, 2.0])),
    (torch.tensor([0]), torch.tensor([1.0])),
    (both([0])[:1], both([1.0])[:1]),
    (both([0])[:, :0], both([1.0])[:, :0]),
    (both([0])[..., None], both([1.0])[..., None]),
    (both([0]).int(), both([1.0])),
    (both([0.0]), both([1.0])),
    (both([0]), both([1])),
    (both([0]), both([1.0]).half()),
    (both([0]).to("meta"), both([1.0])),
]


@pytest.mark.parametrize(("index", "priority"), SHAPELESS)
def test_priorities_of_a_wrong_shape_or_type_are_refused(index: Tensor, priority: Tensor) -> None:
    replay = filled(5)
    before = digest(replay)
    message = (
        "Prioritized replay: index is .*; expected int64 and float32 or float64, both 2xN with N at least 1, slots on "
        "cpu"
    )
    with pytest.raises(ConfigError, match=message):
        replay.set_priorities(index, priority)
    assert digest(replay) == before


def test_rows_that_do_not_fit_are_refused_and_nothing_changes() -> None:
    replay = filled(5)
    before = digest(replay)
    with pytest.raises(ConfigError, match="Replay: rows do not fit the ring"):
        replay.add(replace(rows(named(1)), truncated=named(1)))
    assert digest(replay) == before


def test_runs_together_equal_runs_by_themselves() -> None:
    seeds, config = (3, 4, 9), PriorityConfig(priority_alpha=0.5, priority_draws=20)

    def part(tree: Any, run: int) -> Any:
        return tree_map(lambda leaf: leaf[run : run + 1], tree)

    example = tree_map(lambda leaf: torch.cat([leaf, leaf[:1]]), rows(named(1)))
    together, alone = ByPriority(example, 50, config), [ByPriority(part(example, 0), 50, config) for _ in seeds]
    together.tree = sum_tree.empty(3, 50, torch.device("cpu"), 4, 4)
    rng, own = Streams(seeds), [Streams([seed]) for seed in seeds]
    for step in range(60):
        new = tree_map(lambda leaf: torch.cat([leaf, leaf[:1] + leaf[1:]]), rows(named(3, 3 * step)))
        together.add(new)
        batch = draw(together, rng.integers("replay", 16))
        priority = 3 * rng.uniform("priority", 16)
        together.set_priorities(batch.index, priority)
        for run, replay in enumerate(alone):
            replay.add(part(new, run))
            single = draw(replay, own[run].integers("replay", 16))
            assert torch.equal(single.index, batch.index[run : run + 1])
            assert batch.weight is not None
            torch.testing.assert_close(single.weight, batch.weight[run : run + 1])  # the last bit of a power may differ
            assert torch.equal(single.data.obs, batch.data.obs[run : run + 1])
            replay.set_priorities(single.index, 3 * own[run].uniform("priority", 16))
    for run, replay in enumerate(alone):
        assert torch.equal(sum_tree.masses(replay.tree)[0], sum_tree.masses(together.tree)[run])


class TestSaved:
    def test_going_on_after_loading_equals_going_on(self) -> None:
        replay, fresh = filled(6, config=PriorityConfig(priority_draws=5)), small(8, PriorityConfig(priority_draws=5))
        rng = Streams([0, 1])
        for _ in range(3):
            replay.set_priorities(draw(replay, rng.integers("replay", 4)).index, rng.uniform("priority", 4))
        fresh.load_state_dict(replay.state_dict())
        fresh.ring = replay.ring
        assert digest(fresh) == digest(replay)
        noise = rng.integers("replay", 9)
        assert torch.equal(fresh.choose(noise)[1], replay.choose(noise)[1])

    def test_a_state_is_a_copy(self) -> None:
        replay = filled(5)
        saved = replay.state_dict()
        replay.set_priorities(both([0, 7]), both([9.0, 9.0]))
        draw(replay, both([0]))
        assert {name: value.tolist() for name, value in saved.items()} == {
            "mass": [[UNIT] * 5] * RUNS,
            "largest": [UNIT] * RUNS,
            "draws": 0,
            "length": 100_000,
            "refused": [0] * RUNS,
        }

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"mass": both([1] * 9)}, "mass is int64 2x9"),
            ({"mass": both([1])[:1]}, "mass is int64 1x1"),
            ({"mass": both([1.0])}, "mass is float32 2x1"),
            ({"mass": both([1, 0])}, "mass is int64 2x2"),
            ({"mass": both([2**36 + 1])}, "mass is int64 2x1"),
            ({"largest": torch.tensor([1])}, "largest is int64 1"),
            ({"draws": torch.tensor([1])}, "draws is int64 1"),
            (
                {"draws": torch.tensor(1.0), "largest": torch.tensor(1)},
                "largest is int64 scalar, draws is float32 scalar",
            ),
            ({"refused": None}, "no refused"),
        ],
    )
    def test_a_state_of_another_replay_is_refused(self, changed: dict[str, Any], message: str) -> None:
        replay = filled(5)
        before = digest(replay)
        saved = {name: value for name, value in {**filled(3).state_dict(), **changed}.items() if value is not None}
        with pytest.raises(FileError, match=f"Prioritized replay: the saved state does not fit: {message}. Expected"):
            replay.load_state_dict(saved)
        assert digest(replay) == before

    def test_replay_started_anew_forgets_the_priorities_of_its_rows(self) -> None:
        replay = filled(5)
        replay.set_priorities(both([3]), both([4.0]))
        replay.forget()
        assert sum_tree.masses(replay.tree).tolist() == [[1] + [0] * 7] * RUNS
        assert replay.largest.tolist() == [4 * UNIT] * RUNS


def test_nothing_is_read_from_the_device() -> None:
    """Meta tensors hold no values, so that any read of a value raises."""
    new = tree_map(lambda leaf: leaf.to("meta"), rows(named(3)))
    replay = ByPriority(new, 5, PriorityConfig(priority_alpha_end=0.5))
    replay.add(new)
    batch = draw(replay, torch.zeros(RUNS, 4, dtype=torch.int64, device="meta"))
    replay.set_priorities(batch.index, batch.index.float())
    assert batch.data.obs.shape == (RUNS, 4, 2, 3)
    with pytest.raises((RuntimeError, NotImplementedError)):
        replay.state_dict()  # reads the size


@pytest.mark.parametrize("device", DEVICES)
def test_a_captured_graph_gives_the_same_bits_without_a_host_sync(device: str) -> None:
    """On a CPU, which captures nothing, the cycle itself is called again."""
    generator, config = torch.Generator().manual_seed(0), PriorityConfig(0.5, priority_draws=10)
    given = [
        (
            rows(named(3, 3 * step)),
            torch.randint(2**62, (RUNS, 16), generator=generator),
            torch.randint(64, (RUNS, 16), generator=generator).square() / 64 - 1.0,  # some below 0
        )
        for step in range(30)
    ]
    new = tree_map(lambda leaf: leaf.to(device, copy=True), given[0][0])
    noise, priority = (tensor.to(device, copy=True) for tensor in given[0][1:])
    here, there = ByPriority(given[0][0], 40, config), ByPriority(new, 40, config)

    def cycle() -> None:
        there.add(new)
        there.set_priorities(draw(there, noise).index, priority)

    with sync_debug("error", device):
        replay = capture(cycle, device)
    for step, (r, n, p) in enumerate(given):
        here.add(r)
        here.set_priorities(draw(here, n).index, p)
        if step:
            tree_map(lambda static, value: static.copy_(value), new, r)
            noise.copy_(n)
            priority.copy_(p)
            replay()
    assert torch.equal(sum_tree.masses(here.tree), sum_tree.masses(there.tree).cpu())
    assert torch.equal(here.refused, there.refused.cpu())


def weights_of_two_ranks(deaf: frozenset[str] = frozenset()) -> list[list[float]]:
    """Return the weights of two draws by two ranks: masses 1 and 3 of two rows, and 2, 2, 2 and 6 of four."""

    def work(rank: ThreadRank) -> list[float]:
        replay = ByPriority(rows(named(1)), 8, PriorityConfig(priority_beta=1.0), ranks=rank)
        mass = torch.tensor([[1, 3] if rank.rank == 0 else [2, 2, 2, 6]] * RUNS) * UNIT
        replay.ring.size.fill_(mass.shape[1])
        sum_tree.fill(replay.tree, mass)
        _, weights = replay.choose(torch.zeros_like(mass))
        return sorted(set(weights.flatten().tolist()))

    return together(work, deaf=deaf)


def test_weights_are_relative_to_the_largest_of_all_ranks() -> None:
    # masses relative to the mean of their replay: 1/2 and 3/2 on rank 0, 2/3 and 2 on rank 1; beta is 1
    first, second = weights_of_two_ranks()
    assert first == pytest.approx([1 / 3, 1.0])
    assert second == pytest.approx([1 / 4, 3 / 4])
    assert max(weights_of_two_ranks(frozenset({"importance_weights"}))[1]) == pytest.approx(1.0)  # the mutant
