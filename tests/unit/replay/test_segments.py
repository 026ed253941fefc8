"""Replay on disk against a plain Python list: 200 000 random operations, and every error."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch
from torch import Tensor

from tests.support.named_rows import RUNS, draw, named, rows
from uavlab.core.errors import FileError
from uavlab.core.types import Transition, leaves, tree_map
from uavlab.replay import segments as real
from uavlab.replay.ring import Ring, add, allocate

SOURCE = Path(real.__file__).read_text()
TABLE = rows(named(60_000))  # row n of every run has the name n; name 0 is a slot never written
tree_map(lambda leaf: leaf[:, 0].zero_(), TABLE)
RUN = torch.arange(RUNS)[:, None]
GAME = 500  # operations


def of(lo: int, hi: int) -> str:
    return f"replay-{lo:012d}-{hi:012d}"


def span(name: str) -> tuple[int, int]:
    return int(name[7:19]), int(name[20:])


def table_rows(start: int, count: int) -> Transition:
    return tree_map(lambda leaf: leaf[:, start : start + count], TABLE)


def require(got: dict[str, Tensor], names: list[int] | list[list[int]]) -> None:
    """Compare every leaf with the rows of these names, the same for all runs or a list for each."""
    index = torch.tensor(names, dtype=torch.int64)
    for leaf, table in leaves(TABLE):
        assert torch.equal(got[leaf], table[:, index] if index.dim() == 1 else table[RUN, index]), leaf


@dataclass
class Replay:
    """A ring, its checkpoints, and the plain list of the names of its rows, by row number."""

    module: ModuleType
    dice: random.Random
    ring: Ring
    names: list[int] = field(default_factory=list)
    next_name: int = 1
    last: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # the newest checkpoint of these rows
    saved: int = 0  # rows that it covers
    checkpoints: list[tuple[list[int], dict[str, dict[str, Tensor]]]] = field(default_factory=list)
    ever: list[str] = field(default_factory=list)

    def add(self) -> None:
        capacity = self.ring.capacity
        many = (capacity - 1, capacity, capacity + 1, 2 * capacity, 2 * capacity + 1)
        count = self.dice.choice(many if self.dice.random() < 0.1 else (0, 1, 1, 2, 3, 5))
        add(self.ring, table_rows(self.next_name, count))
        self.names += range(self.next_name, self.next_name + count)
        self.next_name += count

    def draw(self) -> None:
        noise = [[self.dice.randrange(2**62) for _ in range(4)] for _ in range(RUNS)]
        got, index = draw(self.ring, torch.tensor(noise))
        slots = self.slots()
        size = max(1, min(len(self.names), self.ring.capacity))
        assert index.tolist() == [[n % size for n in run] for run in noise]
        require(dict(leaves(got)), [[slots[n % size] for n in run] for run in noise])

    def save(self) -> None:
        total, capacity, most = len(self.names), self.ring.capacity, self.module.MOST
        start = max(0, total - capacity)
        expected = [name for name in self.last if span(name)[1] > start]
        if total > self.saved:
            expected.append(of(max(start, self.saved), total))
        if len(expected) > most:
            expected = [of(start, total)]
        useless = [name for name in self.ever if span(name)[1] <= start or span(name)[1] > total]
        known = [*self.last, *self.dice.sample(useless, min(3, len(useless)))]
        self.dice.shuffle(known)
        plan = self.module.plan(known, total, capacity)
        assert plan == expected
        new = {name: self.module.cut(self.ring, name) for name in plan if name not in self.last}
        assert len(new) <= 1
        for name, cut in new.items():
            require(cut, self.names[slice(*span(name))])
        self.last, self.saved = {name: new.get(name) or self.last[name] for name in plan}, total
        self.ever = [*self.ever[-30:], *plan]
        self.checkpoints = [*self.checkpoints[-4:], (list(self.names), self.last)]

    def load(self) -> None:
        """Go back to a checkpoint; what was added and saved since is an abandoned future."""
        if self.checkpoints:
            names, segments = self.dice.choice(self.checkpoints)
            self.ring = allocate(table_rows(0, 1), self.ring.capacity)
            self.module.paste(self.ring, dict(self.dice.sample(sorted(segments.items()), len(segments))), len(names))
            self.names, self.last, self.saved = list(names), segments, len(names)

    def clear(self) -> None:
        """Start without rows, as after a checkpoint whose replay is lost."""
        self.ring, self.names, self.last, self.saved = allocate(table_rows(0, 1), self.ring.capacity), [], {}, 0

    def slots(self) -> list[int]:
        slots = [0] * self.ring.capacity
        for row in range(max(0, len(self.names) - self.ring.capacity), len(self.names)):
            slots[row % self.ring.capacity] = self.names[row]
        return slots

    def require_same(self) -> None:
        total, capacity = len(self.names), self.ring.capacity
        assert (int(self.ring.cursor), int(self.ring.size)) == (total % capacity, min(total, capacity))
        require(dict(leaves(self.ring.rows)), self.slots())


def play(module: ModuleType, seed: int) -> None:
    """Perform random operations on a ring and on the list, and compare.

    Raises:
        AssertionError: They differ.
    """
    dice = random.Random(seed)
    replay = Replay(module, dice, allocate(table_rows(0, 1), dice.choice((1, 2, 3, 7, 16, 100))))
    operations = (replay.add, replay.draw, replay.save, replay.load, replay.clear)
    with mock.patch.object(module, "MOST", dice.choice((1, 2, 5, 64))):
        for operation in dice.choices(operations, (50, 15, 25, 8, 2), k=GAME):
            operation()
            if operation != replay.draw:
                replay.require_same()


def test_random_operations_equal_a_plain_list(proof: Callable[[str, str], None]) -> None:
    for seed in range(16):
        play(real, seed)
    proof("replay, its segments and a plain list (short)", f"{16 * GAME} operations, 0 differences")


@pytest.mark.soak
def test_200_000_random_operations_equal_a_plain_list(proof: Callable[[str, str], None]) -> None:
    games = 200_000 // GAME
    for seed in range(games):
        play(real, 1000 + seed)
    proof("replay, its segments and a plain list", f"{games * GAME} operations, 0 differences")


def edited(old: str, new: str) -> ModuleType:
    """Load the module with a piece of its source replaced."""
    assert SOURCE.count(old) == 1, old
    module = ModuleType("edited")
    exec(compile(SOURCE.replace(old, new), "edited", "exec"), module.__dict__)
    return module


MUTANTS = {
    "cut forgets the wrap": ("for part in parts", "for part in parts[:1]"),
    "cut wraps onto the wrong rows": ("parts = _slots(lo,", "parts = _slots(lo + ring.capacity - 1,"),
    "cut hands out views": ("torch.cat([", "stored[:, parts[0]] if not parts[1].stop else torch.cat(["),
    "plan drops the oldest live segment": ("for lo, hi in spans]", "for lo, hi in spans[len(spans) > 1 :]]"),
    "plan writes anew what was partly overwritten": ("at in (lo, start)", "at == lo"),
    "plan takes the oldest for live one row too long": ("if lo <= at < hi", "if lo <= at <= hi"),
    "plan ends one row early": ("spans.append((at, total))", "spans.append((at, total - 1))"),
    "plan trusts an abandoned future": ("at < hi <= total and", "at < hi and"),
    "plan trusts whatever is known": ("if lo <= at < hi <= total and at in (lo, start)", "if True"),
    "plan keeps one segment too few": ("> MOST", ">= MOST"),
    "plan never writes anew": ("> MOST", "> 10**6"),
    "plan writes too much anew": ("spans = [(start, total)]", "spans = [(0, total)]"),
    "paste forgets the cursor": ("ring.cursor.fill_(total % ring.capacity)", "pass"),
    "paste forgets the size": ("ring.size.fill_(total - start)", "pass"),
    "paste forgets the wrap": ("stored[leaf][:, tail].copy_(after)", "pass"),
    "paste takes overwritten rows for live": ("rows[:, first - lo :]", "rows[:, : hi - first]"),
}  # fmt: skip


@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS)
def test_random_operations_catch_a_mutant(change: tuple[str, str]) -> None:
    module = edited(*change)
    with pytest.raises((AssertionError, FileError, RuntimeError)):  # noqa: PT012
        for seed in range(16):
            play(module, seed)


@pytest.mark.parametrize(
    ("known", "total", "capacity", "names"),
    [
        ([], 0, 5, []),
        ([], 3, 5, [(0, 3)]),
        ([], 8, 5, [(3, 8)]),
        ([(0, 3)], 3, 5, [(0, 3)]),
        ([(0, 3)], 7, 5, [(0, 3), (3, 7)]),  # row 2 is still in the ring
        ([(0, 3)], 8, 5, [(3, 8)]),  # none is
        ([(0, 3)], 9, 5, [(4, 9)]),
        ([(2, 4), (0, 2), (4, 6)], 7, 5, [(2, 4), (4, 6), (6, 7)]),
        ([(0, 2), (4, 6)], 6, 9, [(0, 2), (2, 6)]),  # a gap
        ([(2, 6)], 6, 9, [(0, 6)]),
        ([(0, 4), (3, 6)], 6, 9, [(0, 4), (4, 6)]),  # an overlap
        ([(0, 4), (4, 9)], 6, 9, [(0, 4), (4, 6)]),  # an abandoned future
        ([(0, 9)], 6, 9, [(0, 6)]),
        ([(n, n + 1) for n in range(63)], 64, 99, [(n, n + 1) for n in range(64)]),
        ([(n, n + 1) for n in range(64)], 65, 99, [(0, 65)]),
        ([(n, n + 1) for n in range(64)], 65, 64, [(n, n + 1) for n in range(1, 65)]),
        ([(0, 10**12)], 10**12 + 1, 5, [(0, 10**12), (10**12, 10**12 + 1)]),
    ],
)  # fmt: skip
def test_plans_by_hand(known: list[tuple[int, int]], total: int, capacity: int, names: list[tuple[int, int]]) -> None:
    assert real.plan([of(*span) for span in known], total, capacity) == [of(*span) for span in names]


NEXT = " Resume another checkpoint of the run, or let `uavlab resume --fresh-replay` start replay anew."
NO_NAME = "is no segment's name, expected replay-LO-HI, row numbers of 12 digits."
STRANGE = ["", "learner", "replay-0-4", of(4, 4), of(4, 3), of(0, 4) + "\n", of(0, 10**18), f"replay-{4:013d}-{5:012d}",
           of(0, 4).replace("4", "\N{ARABIC-INDIC DIGIT FOUR}"), "replay--00000000001-000000000004"]  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_strange_names_are_refused(name: str) -> None:
    ring = allocate(table_rows(0, 1), 5)
    for use in (lambda: real.plan([name], 4, 5), lambda: real.cut(ring, name), lambda: real.paste(ring, {name: {}}, 4)):
        with pytest.raises(FileError) as caught:
            use()
        assert str(caught.value) == f"Replay segment {name!r} {NO_NAME}{NEXT}"


def test_more_rows_than_the_ring_has_cannot_be_cut() -> None:
    with pytest.raises(FileError) as caught:
        real.cut(allocate(table_rows(0, 1), 5), of(2, 8))
    assert str(caught.value) == f"Replay segment {of(2, 8)} means 6 rows, expected at most the 5 of the ring.{NEXT}"


Segments = dict[str, dict[str, Tensor]]


def good(*spans: tuple[int, int]) -> Segments:
    """Make segments whose row n has the name n + 1."""
    return {of(lo, hi): dict(leaves(table_rows(lo + 1, hi - lo))) for lo, hi in spans}


def with_leaf(lo: int, hi: int, **changed: Tensor | None) -> Segments:
    """Change leaves of the segment, or leave them out, beside good ones that make up the rest of rows 3 to 7."""
    segments = good((0, 4), (4, 6), (6, 8))
    changes = {**segments[of(lo, hi)], **changed}
    return {**segments, of(lo, hi): {leaf: tensor for leaf, tensor in changes.items() if tensor is not None}}


ALL = "action, next_obs, obs, reward, terminated, truncated"
CASES = [
    (good((0, 4), (4, 6), (6, 8)), 8, "accepted"),
    (good((3, 8)), 8, "accepted"),
    (good((0, 2), (2, 8)), 8, "accepted"),  # the first holds nothing that is still there
    ({}, 0, "accepted"),
    ({}, 8, "rows [3, 8) are in no segment, expected each of [3, 8) in one"),
    ({}, -1, "rows [0, -1) are in no segment, expected each of [0, -1) in one"),
    (good((0, 3)), 8, "rows [3, 8) are in no segment, expected each of [3, 8) in one"),
    (good((0, 4), (6, 8)), 8, f"segment {of(6, 8)} goes on from row 6, expected 4"),
    (good((0, 5), (4, 8)), 8, f"segment {of(4, 8)} goes on from row 4, expected 5"),
    (good((0, 4), (2, 8)), 8, f"segment {of(2, 8)} goes on from row 2, expected 4"),
    (good((4, 8)), 8, f"segment {of(4, 8)} goes on from row 4, expected 3"),
    (good((0, 4), (4, 7)), 8, "rows [7, 8) are in no segment, expected each of [3, 8) in one"),
    (good((0, 4), (4, 9)), 8, f"segment {of(4, 9)} ends at row 9, expected 8 at most"),
    (good((0, 4), (4, 8), (8, 9)), 8, f"segment {of(8, 9)} ends at row 9, expected 8 at most"),
    (good((0, 1)), 0, f"segment {of(0, 1)} ends at row 1, expected 0 at most"),
    (with_leaf(6, 8, obs=None), 8,
     f"segment {of(6, 8)} holds action, next_obs, reward, terminated, truncated, expected {ALL}"),
    (with_leaf(6, 8, extra=torch.zeros(2, 2)), 8,
     f"segment {of(6, 8)} holds {ALL.replace('action,', 'action, extra,')}, expected {ALL}"),
    ({**with_leaf(0, 4), of(6, 8): {}}, 8, f"segment {of(6, 8)} holds nothing, expected {ALL}"),
    (with_leaf(6, 8, reward=torch.zeros(2, 2, 2, dtype=torch.float64)), 8,
     f"segment {of(6, 8)} has reward as float64 2x2x2, expected float32 2x2x2"),
    (with_leaf(6, 8, reward=torch.zeros(3, 2, 2)), 8,
     f"segment {of(6, 8)} has reward as float32 3x2x2, expected float32 2x2x2"),
    (with_leaf(6, 8, reward=torch.zeros(2, 3, 2)), 8,
     f"segment {of(6, 8)} has reward as float32 2x3x2, expected float32 2x2x2"),
    (with_leaf(6, 8, reward=torch.zeros(2, 2, 1)), 8,
     f"segment {of(6, 8)} has reward as float32 2x2x1, expected float32 2x2x2"),
    (with_leaf(6, 8, truncated=torch.tensor(0)), 8,
     f"segment {of(6, 8)} has truncated as int64 scalar, expected bool 2x2"),
    ({**with_leaf(4, 6), **{of(0, 3): {}}}, 8, f"segment {of(0, 3)} holds nothing, expected {ALL}"),  # old, but wrong
]  # fmt: skip


def outcome(module: ModuleType, segments: Segments, total: int) -> str:
    """Paste onto a ring in use and return the outcome: the message of a refusal that left the ring unchanged."""
    ring = allocate(table_rows(0, 1), 5)
    add(ring, table_rows(100, 7))
    before = [leaf.clone() for _, leaf in leaves(ring)]
    try:
        module.paste(ring, segments, total)
    except FileError as error:
        untouched = all(torch.equal(a, b) for a, (_, b) in zip(before, leaves(ring), strict=True))
        return str(error) if untouched else "half written"
    except (LookupError, RuntimeError) as error:
        return repr(error)
    return "accepted"


def whole(message: str) -> str:
    return message if message == "accepted" else f"Replay {message}.{NEXT}"


@pytest.mark.parametrize(("segments", "total", "message"), CASES)
def test_what_does_not_fit_is_refused_and_the_ring_untouched(segments: Segments, total: int, message: str) -> None:
    assert outcome(real, segments, total) == whole(message)


def test_segments_come_back_by_hand() -> None:
    ring = allocate(table_rows(0, 1), 5)
    add(ring, table_rows(100, 7))
    real.paste(ring, good((0, 4), (4, 6), (6, 8)), 8)
    require(dict(leaves(ring.rows)), [6, 7, 8, 4, 5])  # row n has the name n + 1: rows 5, 6, 7, 3, 4
    assert (int(ring.cursor), int(ring.size)) == (3, 5)


LOOP = "    for lo, hi, name in spans:\n"
FIT = "        _require_fit(ring, name, hi - lo, segments[name])\n"
LEAVES = "    stored = dict(leaves(ring.rows))\n"


@pytest.mark.parametrize(
    ("old", "new", "outcome_part"),
    [
        ("    _require_cover([span for span in spans if span[1] > start], start, total)\n", "", "accepted"),
        ("if span[1] > start]", "]", "goes on from row 2"),
        (LOOP + FIT, "", "KeyError"),
        (LOOP + FIT + LEAVES + LOOP, LEAVES + LOOP + FIT, "half written"),
    ],
)
def test_a_paste_that_looks_less_closely_is_caught(old: str, new: str, outcome_part: str) -> None:
    careless = edited(old, new)
    outcomes = [(outcome(careless, segments, total), whole(message)) for segments, total, message in CASES]
    assert any(outcome_part in got and got != expected for got, expected in outcomes)
