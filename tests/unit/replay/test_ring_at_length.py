"""Ten million transitions in flat memory, and a million draws that favour no row."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from tests.support.named_rows import RUNS, check, named, names_of, rows
from uavlab.core.rng import Streams
from uavlab.core.types import Transition, leaves
from uavlab.replay.ring import Ring, add, allocate, draw

BATCH, CAPACITY = 1_000, 30_500  # rows per run; the end of the ring falls into a batch
WARM_UP, EVERY = 100, 20  # batches
NAMES = 90_000  # rows per run that have a name of their own; more than the ring holds
ALLOWED = 2**20  # bytes per million transitions


def growth(write: Callable[[Ring, Transition], None], transitions: int) -> tuple[float, Ring, int]:
    """Fill a ring; return the slope of the memory in use (bytes per million transitions), the ring, rows per run."""
    batches = [rows(named(BATCH, start)) for start in range(0, NAMES, BATCH)]
    ring, process, seen = allocate(batches[0], CAPACITY), psutil.Process(), []
    count = transitions // (RUNS * BATCH)
    for number in range(count):
        fresh = Transition(**{name: leaf.clone() for name, leaf in leaves(batches[number % len(batches)])})
        write(ring, fresh)
        if number >= WARM_UP and number % EVERY == 0:
            seen.append((number * RUNS * BATCH / 1e6, process.memory_info().rss))
    millions, used = np.array(seen, dtype=float).T
    return float(np.polyfit(millions, used, 1)[0]), ring, count * BATCH


def plain() -> float:
    """Fill a ring with ten million transitions, look at its window, and return the slope."""
    slope, ring, total = growth(add, 10_000_000)
    row = torch.arange(total - CAPACITY, total)
    stored = Transition(**{name: leaf[:, row % CAPACITY] for name, leaf in leaves(ring.rows)})
    check(stored, row % NAMES + named(1))
    return slope


def hoarding() -> float:
    """Do a tenth of it with a ring that keeps what was added."""
    kept = []

    def write(ring: Ring, new: Transition) -> None:
        kept.append(new)
        add(ring, new)

    return growth(write, 1_000_000)[0]


def alone(name: str) -> float:
    """Measure in a process of its own: what earlier tests gave back here would hide what a ring takes."""
    call = f"from tests.unit.replay.test_ring_at_length import {name}; print({name}())"
    root = Path(__file__).parents[3]
    return float(subprocess.run([sys.executable, "-c", call], cwd=root, stdout=subprocess.PIPE, check=True).stdout)


def test_ten_million_transitions_in_flat_memory(proof: Callable[[str, str], None]) -> None:
    slope = alone("plain")
    assert slope <= ALLOWED
    proof("10 million transitions through replay", f"memory grows by {slope / 2**20:.3f} MiB per million")


def test_a_ring_that_keeps_what_was_added_is_caught() -> None:
    assert alone("hoarding") > 10 * ALLOWED


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
    found = chi_square(draw, added)
    assert all(LEAST < value < MOST for value in found), found
    proof(f"a million draws from replay after {added} rows, in {BINS} bins",
          f"chi-square {', '.join(f'{value:.1f}' for value in found)} (19 degrees of freedom)")  # fmt: skip


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
