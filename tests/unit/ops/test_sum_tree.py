"""The tree against running sums in plain Python, by hand where numbers are small, and where float32 would fail."""

import itertools
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support.devices import DEVICES
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.ops.sum_tree import (
    MAX_CAPACITY,
    MAX_MASS,
    UNIT,
    Tree,
    empty,
    fill,
    find_slots,
    fixed_point,
    masses,
    sample,
    stratified_points,
    update,
)

CPU = torch.device("cpu")
BY_HAND = [3, 1, 4, 1, 5]
SHAPES = [(2, 2), (3, 4), (64, 64), (2, 1), (5, 100)]  # children of a node, nodes at the top at most


def make_tree(values: list[list[int]], fan: int, top: int) -> Tree:
    """Make a tree with these masses, a list for each run."""
    tree = empty(len(values), len(values[0]), CPU, fan, top)
    fill(tree, torch.tensor(values))
    return tree


def require_sums(tree: Tree) -> None:
    """Compare every node with the sum of its children."""
    for above, below in itertools.pairwise(tree.levels):
        assert torch.equal(above.flatten(), below.sum(1))


def find(tree: Tree, points: Tensor) -> tuple[Tensor, Tensor]:
    return find_slots(tree, tree.levels[0].cumsum(1), points)


def test_a_small_tree_by_hand() -> None:
    tree = make_tree([BY_HAND], fan=2, top=2)
    assert [level.tolist() for level in tree.levels] == [[[9, 5]], [[4, 5], [5, 0]], [[3, 1], [4, 1], [5, 0], [0, 0]]]
    assert (tree.width, masses(tree).tolist()) == (8, [BY_HAND])
    slot, mass = find(tree, torch.arange(14)[None])
    assert slot.tolist() == [[0, 0, 0, 1, 2, 2, 2, 2, 3, 4, 4, 4, 4, 4]]
    assert mass.tolist() == [[3, 3, 3, 1, 4, 4, 4, 4, 1, 5, 5, 5, 5, 5]]
    update(tree, torch.tensor([[2, 4]]), torch.tensor([[7, 2]]))
    assert [level.tolist() for level in tree.levels] == [[[12, 2]], [[4, 8], [2, 0]], [[3, 1], [7, 1], [2, 0], [0, 0]]]


def test_stratified_points_by_hand() -> None:
    total = torch.tensor([[10]])  # parts [0, 2.5), [2.5, 5), [5, 7.5), [7.5, 10)
    assert stratified_points(total, torch.zeros(1, 4, dtype=torch.int64)).tolist() == [[0, 2, 5, 7]]
    assert stratified_points(total, torch.full((1, 4), 19)).tolist() == [[2, 4, 7, 9]]


def test_stratified_points_are_uniform() -> None:
    for total, count in itertools.product(range(1, 26), (1, 2, 3, 7, 30)):
        noise = torch.arange(total)[:, None].expand(total, count)
        points = stratified_points(torch.full((total, 1), total), noise)  # one batch for each noise
        assert torch.bincount(points.flatten(), minlength=total).tolist() == [count] * total


@pytest.mark.parametrize("total", [1, 255, 2**31 + 1, 2**53 + 1, 2**62 - 1, 2**62])
def test_stratified_points_do_not_overflow(total: int) -> None:
    dice = random.Random(total)
    noise = [[dice.randrange(2**62) for _ in range(999)] + [0, 2**62 - 1]]
    expected = [(k * total + n % total) // 1001 for k, n in enumerate(noise[0])]
    assert stratified_points(torch.tensor([[total]]), torch.tensor(noise)).tolist() == [expected]


def slots_by_hand(values: list[int]) -> list[int]:
    return [slot for slot, mass in enumerate(values) for _ in range(mass)]


@pytest.mark.parametrize(("fan", "top"), SHAPES)
@pytest.mark.parametrize("capacity", [1, 2, 7, 64, 65, 200])
def test_every_point_leads_to_its_slot(capacity: int, fan: int, top: int) -> None:
    dice = random.Random(capacity)
    values = [[dice.choice((0, 1, 2, 9)) for _ in range(capacity)] for _ in range(3)]
    for row in values:
        row[dice.randrange(capacity)] = 4  # or a run may have no mass
    tree = make_tree(values, fan, top)
    require_sums(tree)
    for run, row in enumerate(values):
        expected = slots_by_hand(row)
        points = torch.zeros(3, len(expected), dtype=torch.int64)
        points[run] = torch.arange(len(expected))
        slot, mass = find(tree, points)
        assert slot[run].tolist() == expected
        assert mass[run].tolist() == [row[s] for s in expected]


def test_an_empty_tree_yields_slot_0() -> None:
    for fan, top in SHAPES:
        slot, mass = sample(empty(2, 9, CPU, fan, top), torch.tensor([[0, 5, 2**62 - 1]] * 2))
        assert (slot.unique().tolist(), mass.unique().tolist()) == ([0], [1])


def test_of_several_masses_for_one_slot_the_last_stays() -> None:
    for fan, top in SHAPES:
        tree = make_tree([[8] * 6, [9] * 6], fan, top)
        now = update(tree, torch.tensor([[1, 3, 1, 5, 1], [0, 0, 0, 0, 2]]), torch.tensor([[7, 5, 2, 4, 3]] * 2))
        assert now.tolist() == [[3, 5, 3, 4, 3], [4, 4, 4, 4, 3]]
        assert masses(tree).tolist() == [[8, 3, 8, 5, 8, 4], [4, 9, 3, 9, 9, 9]]
        require_sums(tree)


def test_skipped_rows_change_nothing() -> None:
    tree = make_tree([[8, 8, 8, 8]], 2, 2)
    slot, mass = torch.tensor([[1, 1, -5, 10**15, 2]]), torch.tensor([[3, 7, 2**62, -(2**63), 5]])
    skip = torch.tensor([[False, True, True, True, False]])
    assert update(tree, slot, mass, skip).tolist() == [[3, 8, 8, 8, 5]]
    assert masses(tree).tolist() == [[8, 3, 5, 8]]
    require_sums(tree)


@pytest.mark.parametrize(("fan", "top"), SHAPES)
def test_random_masses_equal_a_plain_list(fan: int, top: int) -> None:
    dice, runs, capacity = random.Random(fan), 2, 37
    tree, plain = empty(runs, capacity, CPU, fan, top), [[1] + [0] * (capacity - 1) for _ in range(runs)]
    for _ in range(200):
        count = dice.choice((1, 2, 50))
        slot = [[dice.randrange(capacity) for _ in range(count)] for _ in range(runs)]
        mass = [
            [dice.choice((1, UNIT, MAX_MASS, dice.randint(1, MAX_MASS))) for _ in range(count)] for _ in range(runs)
        ]
        update(tree, torch.tensor(slot), torch.tensor(mass))
        for run in range(runs):
            for s, m in zip(slot[run], mass[run], strict=True):
                plain[run][s] = m
        assert masses(tree).tolist() == plain
        require_sums(tree)


def test_fill_replaces_all_masses() -> None:
    tree = make_tree([[5, 6, 7, 8, 9]], 2, 2)
    fill(tree, torch.tensor([[4, 3]]))
    assert masses(tree).tolist() == [[4, 3, 0, 0, 0]]
    require_sums(tree)
    fill(tree, torch.zeros(1, 0, dtype=torch.int64))
    assert masses(tree).tolist() == [[1, 0, 0, 0, 0]]
    require_sums(tree)


def test_fixed_point_by_hand() -> None:
    priority = torch.tensor([0, 1e-30, 2**-20, 0.5, 1, 1.5, 2**16, 65537, 3e38])
    assert fixed_point(priority).tolist() == [1, 1, 1, 2**19, 2**20, 3 * 2**19, 2**36, 2**36, 2**36]


def test_depth_follows_capacity() -> None:
    assert [tuple(level.shape) for level in empty(1, 2**14, CPU).levels] == [(1, 2**14)]
    assert [tuple(level.shape) for level in empty(2, 1_000_000, CPU).levels] == [(2, 15_625), (31_250, 64)]
    shapes = [tuple(level.shape) for level in empty(1, 10_000_000, torch.device("meta")).levels]
    assert shapes == [(1, 2442), (2442, 64), (156_288, 64)]


@pytest.mark.parametrize("capacity", [0, 2**26 + 1])
def test_more_slots_than_noise_can_reach_are_refused(capacity: int) -> None:
    with pytest.raises(ConfigError, match=rf"Prioritized replay: capacity {capacity:,}, expected 1 to 67,108,864, .*"):
        empty(1, capacity, torch.device("meta"))
    assert MAX_MASS * MAX_CAPACITY == 2**62  # what noise reaches


def test_nothing_is_read_from_the_device() -> None:
    """Meta tensors hold no values, so that any read of a value raises."""
    tree = empty(2, 100, torch.device("meta"), fan=4, top=4)
    slot, mass = sample(tree, torch.zeros(2, 5, dtype=torch.int64, device="meta"))
    update(tree, slot, mass, slot > 3)
    assert slot.shape == mass.shape == (2, 5)


MANY, CHUNK = 10_000_000, 100_000


def unreachable(capacity: int, search: Callable[[Tree, Tensor], tuple[Tensor, Tensor]]) -> int:
    """Count slots that neither the first nor the last point of their mass leads to; masses differ by up to 2^36."""
    generator = torch.Generator().manual_seed(0)
    tree = empty(1, capacity, CPU)
    spread = (36 * torch.rand(1, capacity, generator=generator, dtype=torch.float64)).exp2().long()
    spread[0, :: capacity // 1000] = MAX_MASS
    fill(tree, spread)
    ends = spread.cumsum(1)
    missed = 0
    for points in (ends - spread, ends - 1):
        for lo in range(0, capacity, CHUNK):
            slot, _ = search(tree, points[:, lo : lo + CHUNK])
            missed += int((slot[0] != torch.arange(lo, lo + slot.shape[1])).sum())
    return missed


def test_no_slot_is_out_of_reach() -> None:
    assert unreachable(200_000, find) == 0


@pytest.mark.soak  # a minute
def test_none_of_ten_million_slots_is_out_of_reach(proof: Callable[[str, str], None]) -> None:
    missed = unreachable(MANY, find)
    assert missed == 0
    proof("10 million slots of prioritized replay", f"{missed} that cannot be drawn")


def by_float32(tree: Tree, points: Tensor) -> tuple[Tensor, Tensor]:
    """Search in a float32 prefix sum."""
    ends = masses(tree).float().cumsum(1)
    slot = torch.searchsorted(ends, points.float(), right=True).clamp(max=tree.capacity - 1)
    return slot, slot


def one_too_early(tree: Tree, points: Tensor) -> tuple[Tensor, Tensor]:
    """Take the slot that ends at the point for the one that begins there."""
    slot = torch.searchsorted(masses(tree).cumsum(1), points)
    return slot, slot


@pytest.mark.parametrize("mutant", [by_float32, one_too_early])
def test_slots_out_of_reach_are_caught(mutant: Callable) -> None:
    assert unreachable(200_000, mutant) > 10_000


RUNS, BATCHES, BINS = 1000, 1000, 20
LEAST, HIGHEST = 5.41, 43.82  # 0.1 % and 99.9 % points of chi-square with 19 degrees of freedom


def unchanged(values: Tensor) -> Tensor:
    return values


def chi_square(
    take: Callable[[Tree, Tensor], tuple[Tensor, Tensor]], distort: Callable[[Tensor], Tensor] = unchanged
) -> float:
    """Draw a million slots, each by itself; compare how often each twentieth of them came with its mass."""
    values = torch.randint(1, 50, (1, 200), generator=torch.Generator().manual_seed(1)).square()
    tree = empty(RUNS, 200, CPU, fan=4, top=16)
    fill(tree, distort(values).expand(RUNS, -1))
    noise = Streams([5]).integers("replay", BATCHES, RUNS, 1)[0]
    slots = torch.cat([take(tree, each)[0] for each in noise])
    counts = torch.bincount(slots.flatten(), minlength=200).view(BINS, -1).sum(1)
    expected = RUNS * BATCHES * values.view(BINS, -1).sum(1) / values.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_a_million_draws_follow_the_masses(proof: Callable[[str, str], None]) -> None:
    statistic = chi_square(sample)
    assert LEAST < statistic < HIGHEST
    proof(f"a million draws by priority, in {BINS} bins", f"chi-square {statistic:.1f} (19 degrees of freedom)")


def from_little_noise(tree: Tree, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Reach 2^16 of more than 2^17 units of mass."""
    return sample(tree, noise % 2**16)


def root(values: Tensor) -> Tensor:
    """Raise to a power once more."""
    return values.double().sqrt().long()


@pytest.mark.parametrize(("take", "distort"), [(from_little_noise, unchanged), (sample, root)])
def test_draws_that_do_not_follow_the_masses_are_caught(take: Callable, distort: Callable) -> None:
    assert not LEAST < chi_square(take, distort) < HIGHEST


def spread_of_parts(take: Callable[[Tree, Tensor], tuple[Tensor, Tensor]]) -> float:
    """Return the largest difference between the draws of a neighbourhood and its share of the batch."""
    values = torch.randint(1, 50, (1, 200), generator=torch.Generator().manual_seed(1)).square()
    tree = empty(1, 200, CPU, fan=4, top=16)
    fill(tree, values)
    share = 256 * values.view(BINS, -1).sum(1) / values.sum()
    counts = [
        torch.bincount(take(tree, noise[None])[0][0], minlength=200).view(BINS, -1).sum(1)
        for noise in Streams([6]).integers("replay", 50, 256)[0]
    ]
    return float((torch.stack(counts) - share).abs().max())


def test_each_batch_is_spread_evenly_over_the_mass() -> None:
    assert spread_of_parts(sample) <= 2  # a neighbourhood cuts two parts at most


def anywhere(tree: Tree, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw each row from the whole mass."""
    return find(tree, noise % tree.levels[0].sum(1, keepdim=True))


def test_batches_that_are_not_spread_evenly_are_caught() -> None:
    assert spread_of_parts(anywhere) > 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_every_device_gives_the_same_bits(deterministic: bool, device: str) -> None:
    generator, pair = torch.Generator().manual_seed(2), []
    rounds = [
        (
            torch.randint(2**62, (2, 256), generator=generator),
            torch.randint(1, MAX_MASS, (2, 256), generator=generator),
            torch.rand(2, 256, generator=generator) < 0.1,
        )
        for _ in range(50)
    ]
    torch.use_deterministic_algorithms(deterministic)
    try:
        for place in ("cpu", device):
            tree = empty(2, 20_000, torch.device(place))
            fill(tree, torch.full((2, 20_000), UNIT, device=place))
            for noise, mass, skip in rounds:
                slot, _ = sample(tree, noise.to(place))
                update(tree, slot.sort(1).values // 2, mass.to(place), skip.to(place))  # many duplicates
            pair.append(tree)
    finally:
        torch.use_deterministic_algorithms(False)
    for here, there in zip(pair[0].levels, pair[1].levels, strict=True):
        assert torch.equal(here, there.cpu())
