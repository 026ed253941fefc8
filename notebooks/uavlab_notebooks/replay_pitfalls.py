"""Variants that lose, measured so that notebooks can show how: replay behind a DataLoader, sums in float32."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from uavlab.bench.timing import median
from uavlab.core.errors import ResourceError
from uavlab.ops.sum_tree import fixed_point

FEATURES = 85  # float32 of a row of the team of five
PATIENCE = 60  # seconds granted to a worker for a batch


class Rows(IterableDataset[tuple[np.ndarray, np.ndarray]]):
    """Replay as programs often keep it: arrays that are written in place, and a generator that draws from them.

    Attributes:
        number: Of the row in each slot, counted since the beginning.
        size: Rows written so far, in an array of one.
    """

    def __init__(self, capacity: int, batch: int, seed: int = 0) -> None:
        """Reserve ``capacity`` rows, of which ``batch`` are drawn at a time."""
        self.number, self.size = np.zeros(capacity, np.int64), np.zeros(1, np.int64)
        self.data, self.batch = np.zeros((capacity, FEATURES), np.float32), batch
        self.generator = np.random.default_rng(seed)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Draw without end."""
        while True:
            yield self.draw()

    def write(self, count: int) -> None:
        """Append rows."""
        first = int(self.size[0])
        self.number[first : first + count] = self.data[first : first + count, 0] = np.arange(first, first + count)
        self.size += count

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Give the numbers and the contents of some rows."""
        slot = self.generator.integers(self.size[0], size=self.batch)
        return self.number[slot], self.data[slot]


def behind_a_loader(
    steps: int = 40, start: int = 512, new: int = 64, batch: int = 64, workers: int = 2, seed: int = 0
) -> dict[str, Any]:
    """Write rows into replay and draw batches, from itself and through worker processes.

    Args:
        steps: Rounds of writing and drawing.
        start: Rows written before the workers start.
        new: Rows written in each round.
        batch: Rows of a batch.
        workers: Processes that draw; 0 draws here.
        seed: Of the generator that each of them gets a copy of.

    Returns:
        ``rows``: for each round and each of ``source`` ``replay itself`` and ``DataLoader`` the ``newest`` row of all
        batches so far, its ``age_s`` (since it was written), and the last row ``written``; ``repeated``, the
        share of the loader's batches that another worker had drawn before; ``start_s`` until its first batch came, and
        ``ms`` by source, a batch after that.

    Raises:
        ResourceError: The workers give no answer.
    """
    replay, born = Rows(start + steps * new, batch, seed), np.empty(start + steps * new)
    replay.write(start)
    began = born[:start] = time.perf_counter()  # when each row was written
    rows, given = [], []
    try:
        batches = _batches(replay, workers)
        given.append(next(batches))
        start_s = time.perf_counter() - began
        draws: dict[str, Callable[[], np.ndarray]] = {
            "replay itself": lambda: replay.draw()[0],
            "DataLoader": lambda: next(batches),
        }
        seconds: dict[str, list[float]] = {source: [] for source in draws}
        newest = dict.fromkeys(draws, 0)
        for step in range(steps):
            written = int(replay.size[0])
            replay.write(new)
            born[written : written + new] = time.perf_counter()
            for source, draw in draws.items():
                asked = time.perf_counter()
                number = draw()
                now = time.perf_counter()
                seconds[source].append(now - asked)
                newest[source] = max(newest[source], int(number.max()))
                found = {"newest": newest[source], "age_s": round(now - float(born[newest[source]]), 4)}
                rows.append({"source": source, "step": step + 1, "written": written + new - 1, **found})
            given.append(number)  # the loader's, which came last
    except RuntimeError as error:
        raise ResourceError(f"DataLoader: {error}; close other programs or take fewer workers.") from error
    return {
        "rows": rows,
        "repeated": 1 - len({number.tobytes() for number in given}) / len(given),
        "start_s": round(start_s, 3),
        "ms": {source: round(1e3 * median(each), 3) for source, each in seconds.items()},
    }


def _batches(replay: Rows, workers: int) -> Iterator[np.ndarray]:
    """Yield the numbers of rows that a loader draws."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the workers are many for this machine, that forks and threads mix
        drawn = iter(DataLoader(replay, batch_size=None, num_workers=workers, timeout=PATIENCE if workers else 0))
    for number, _ in drawn:
        yield number.numpy()


def unreachable(capacities: Sequence[int], seed: int = 0) -> list[dict[str, Any]]:
    """Count the slots that no draw can reach, because the sums before and behind their priority are the same number.

    Priorities are uniform in [0, 1).

    Returns:
        Rows with ``capacity``, ``float32`` (slots left out by sums in float32) and ``int64`` (by fixed point).
    """
    rows = []
    for capacity in capacities:
        priority = torch.rand(capacity, generator=torch.Generator().manual_seed(seed))
        sums = {"float32": priority.cumsum(0), "int64": fixed_point(priority).cumsum(0)}
        lost = {name: int((ends[1:] == ends[:-1]).sum()) for name, ends in sums.items()}
        rows.append({"capacity": capacity, **lost})
    return rows
