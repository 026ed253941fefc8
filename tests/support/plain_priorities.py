"""Prioritized replay as plain Python lists and whole numbers, and random operations that compare both."""

import random

import pytest
import torch
from torch import Tensor

from tests.support.named_rows import RUNS, check, named, names_of, rows
from uavlab.core.types import Batch, leaves
from uavlab.ops import sum_tree
from uavlab.replay.prioritized import ByPriority, PriorityConfig

UNIT, MOST = 2**20, 2**36
WILD = (float("nan"), float("inf"), float("-inf"), -1.0, -1e-30)


class Plain:
    """Prioritized replay, one row after the other."""

    def __init__(self, capacity: int, config: PriorityConfig) -> None:
        self.capacity, self.config = capacity, config
        self.total = self.draws = 0
        self.names: list[int] = []
        self.mass: list[list[int]] = [[] for _ in range(RUNS)]
        self.largest, self.refused = [UNIT] * RUNS, [0] * RUNS

    def add(self, count: int) -> None:
        for _ in range(count):
            slot = self.total % self.capacity
            for values, new in ((self.names, self.total), *zip(self.mass, self.largest, strict=True)):
                values[slot : slot + 1] = [new]
            self.total += 1

    def draw(self, noise: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
        config = self.config
        share = min(1, self.draws / (config.priority_draws or 100_000))
        beta = config.priority_beta + (1 - config.priority_beta) * share
        self.draws += 1
        self.largest = [largest - largest // 1024 for largest in self.largest]
        index = [[self.find(run, k, n, len(row)) for k, n in enumerate(row)] for run, row in enumerate(noise)]
        mass = [[self.mass[run][slot] for slot in row] for run, row in enumerate(index)]
        weight = [[(len(self.names) * m / sum(self.mass[run])) ** -beta for m in row] for run, row in enumerate(mass)]
        return index, [[w / max(row) for w in row] for row in weight]

    def find(self, run: int, part: int, noise: int, parts: int) -> int:
        total = sum(self.mass[run])
        point = (part * total + noise % total) // parts
        for slot, mass in enumerate(self.mass[run]):
            if point < mass:
                return slot
            point -= mass
        raise IndexError("beyond the mass")

    def set_priorities(self, index: list[list[int]], priority: list[list[float]]) -> None:
        for run in range(RUNS):
            given: dict[int, int] = {}
            for slot, value in zip(index[run], priority[run], strict=True):
                if 0 <= slot < len(self.names) and 0 <= value < float("inf"):
                    given[slot] = min(MOST, max(1, int(value**self.config.priority_alpha * UNIT)))
                else:
                    self.refused[run] += 1
            for slot, mass in given.items():
                self.mass[run][slot] = mass
            self.largest[run] = max([self.largest[run], *given.values()])


def draw(replay: ByPriority, noise: Tensor) -> Batch:
    """Draw a batch."""
    index, weight = replay.choose(noise)
    return Batch(replay.take(index), index, weight)


def digest(replay: ByPriority) -> dict[str, bytes]:
    """Copy everything that a replay holds."""
    held = {**dict(leaves(replay.ring)), **replay._counters()}
    held |= {f"level {n}": level for n, level in enumerate(replay.tree.levels)}
    return {name: tensor.clone().numpy().tobytes() for name, tensor in held.items()}


def small(capacity: int, config: PriorityConfig, fan: int = 3, top: int = 2) -> ByPriority:
    """Reserve a replay of named rows over a tree that is deep for its size."""
    replay = ByPriority(rows(named(1)), capacity, config)
    replay.tree = sum_tree.empty(RUNS, capacity, torch.device("cpu"), fan, top)
    return replay


def compare(replay: ByPriority, plain: Plain) -> None:
    """Compare slot by slot, counter by counter, node by node."""
    size = len(plain.names)
    assert (int(replay.ring.size), int(replay.draws)) == (size, plain.draws)
    assert sum_tree.masses(replay.tree)[:, :size].tolist() == plain.mass
    assert (replay.largest.tolist(), replay.refused.tolist()) == (plain.largest, plain.refused)
    assert replay.tree.levels[0].sum(1).tolist() == [sum(run) if size else 1 for run in plain.mass]
    stored = names_of(replay.ring.rows)[:, :size]
    assert torch.equal(stored, torch.tensor(plain.names).expand(RUNS, -1) + named(1))


def random_operations(seed: int, operations: int) -> int:
    """Perform adds, draws, new priorities and saves on a replay and on plain lists, and compare after each.

    Returns:
        The number of operations.

    Raises:
        AssertionError: They differ.
    """
    dice = random.Random(seed)
    capacity = dice.choice((1, 2, 7, 16, 64))
    alpha = dice.choice((0.5, 0.5, 1.0, 0.0))  # powers of which plain Python gives the same bits
    config = PriorityConfig(alpha, None, dice.choice((0.0, 0.4, 1.0)), dice.choice((1, 10, 1000)))
    fan, top = dice.choice(((2, 1), (3, 2), (4, 8), (64, 64)))
    replay, plain = small(capacity, config, fan, top), Plain(capacity, config)
    for _ in range(operations):
        kind = dice.random() if plain.names else 0.0
        if kind < 0.25:
            count = dice.choice((1, 1, 2, 3, capacity, capacity + 1, 2 * capacity, 2 * capacity + 1))
            replay.add(rows(named(count, plain.total)))
            plain.add(count)
        elif kind < 0.55:
            noise = _noise(dice, plain)
            batch, (index, weight) = draw(replay, torch.tensor(noise)), plain.draw(noise)
            assert batch.index.tolist() == index
            check(batch.data, torch.tensor([[plain.names[slot] for slot in row] for row in index]) + named(1))
            assert batch.weight is not None
            assert batch.weight.flatten().tolist() == pytest.approx([w for row in weight for w in row], rel=1e-5)
        elif kind < 0.95:
            index, priority = _priorities(dice, plain)
            replay.set_priorities(torch.tensor(index), priority)
            plain.set_priorities(index, priority.tolist())
        else:
            replay = _save_and_load(replay)
        compare(replay, plain)
    return operations


def _noise(dice: random.Random, plain: Plain) -> list[list[int]]:
    """Draw noise, often noise at the border between two slots of a batch of one row."""
    count = dice.choice((1, 1, 2, 5, 3 * plain.capacity))
    borders = [0, 2**62 - 1, *(sum(plain.mass[0][:slot]) for slot in range(len(plain.names)))]
    return [[dice.choice((dice.randrange(2**62), dice.choice(borders))) for _ in range(count)] for _ in range(RUNS)]


def _priorities(dice: random.Random, plain: Plain) -> tuple[list[list[int]], Tensor]:
    """Draw priorities with duplicates; most are squares, whose root is exact."""
    size, count = len(plain.names), dice.choice((1, 2, 8, plain.capacity + 3))
    odd = (-1, size, plain.capacity, 10**12, -(2**40))

    def slot() -> int:
        return dice.choice(odd) if dice.random() < 0.05 else dice.randrange(size)

    def priority() -> float:
        if dice.random() < 0.1:
            return dice.choice((*WILD, 0.0, 1e38, 2.0**-40, 2.0**30))
        return (dice.randrange(4096) / 64) ** 2

    index = [[slot() for _ in range(count)] for _ in range(RUNS)]
    return index, torch.tensor([[priority() for _ in range(count)] for _ in range(RUNS)])


def _save_and_load(replay: ByPriority) -> ByPriority:
    """Load the state of a replay into a new one."""
    copy = ByPriority(rows(named(1)), replay.ring.capacity, replay.config)
    copy.tree = sum_tree.empty(RUNS, replay.ring.capacity, torch.device("cpu"), 5, 3)
    copy.load_state_dict(replay.state_dict())
    copy.ring = replay.ring
    return copy
