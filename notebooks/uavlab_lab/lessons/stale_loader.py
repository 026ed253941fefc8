"""Replay behind a DataLoader, whose workers never see a new row."""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from uavlab.core.errors import ResourceError
from uavlab.profiling.timing import median

FEATURES = 85  # numbers in a row of the team of five, in float32
PATIENCE = 60  # seconds granted to a worker for a batch


class ArrayReplay(IterableDataset[tuple[np.ndarray, np.ndarray]]):
    """Replay as in many programs: arrays that are written in place, and a generator that draws from them.

    Attributes:
        number: Number of the row in each slot, counted from the first row written.
        size: Rows written so far, in an array of one.
    """

    def __init__(self, capacity: int, batch: int, seed: int = 0) -> None:
        """Reserve ``capacity`` rows, of which ``batch`` are drawn at a time."""
        self.number, self.size = np.zeros(capacity, np.int64), np.zeros(1, np.int64)
        self.data, self.batch = np.zeros((capacity, FEATURES), np.float32), batch
        self.generator = np.random.default_rng(seed)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield draws without end."""
        while True:
            yield self.draw()

    def write(self, count: int) -> None:
        """Append rows."""
        first = int(self.size[0])
        self.number[first : first + count] = self.data[first : first + count, 0] = np.arange(first, first + count)
        self.size += count

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers and the contents of some rows."""
        slot = self.generator.integers(self.size[0], size=self.batch)
        return self.number[slot], self.data[slot]


def read_through_loader(
    steps: int = 40, start: int = 512, new: int = 64, batch: int = 64, workers: int = 2, seed: int = 0
) -> dict[str, Any]:
    """Write rows into replay and draw batches, directly and through ``workers`` processes (0 for this process).

    ``start`` rows are written before the workers start, ``new`` ones in each of ``steps`` rounds.

    Returns:
        ``rows``: for each round and ``source`` (``replay itself`` or ``DataLoader``) the ``newest`` row of all batches
        so far, its ``age_s`` since it was written, and the last row ``written``; ``repeated``, the share of the
        loader's batches that another worker drew before; ``start_s`` until its first batch, and by source ``ms`` for
        each later batch.
    """
    replay, written_at = ArrayReplay(start + steps * new, batch, seed), np.empty(start + steps * new)
    replay.write(start)
    begin = written_at[:start] = time.perf_counter()
    rows, numbers = [], []
    try:
        batches = _batches(replay, workers)
        numbers.append(next(batches))
        start_s = time.perf_counter() - begin
        draws: dict[str, Callable[[], np.ndarray]] = {
            "replay itself": lambda: replay.draw()[0],
            "DataLoader": lambda: next(batches),
        }
        seconds: dict[str, list[float]] = {source: [] for source in draws}
        newest = dict.fromkeys(draws, 0)
        for step in range(steps):
            written = int(replay.size[0])
            replay.write(new)
            written_at[written : written + new] = time.perf_counter()
            for source, draw in draws.items():
                before = time.perf_counter()
                number = draw()
                now = time.perf_counter()
                seconds[source].append(now - before)
                newest[source] = max(newest[source], int(number.max()))
                age_s = round(now - float(written_at[newest[source]]), 4)
                place = {"source": source, "step": step + 1, "written": written + new - 1}
                rows.append({**place, "newest": newest[source], "age_s": age_s})
            numbers.append(number)  # the loader's, which came last
    except RuntimeError as error:
        raise ResourceError(f"DataLoader: {error}; close other programs or take fewer workers.") from error
    return {
        "rows": rows,
        "repeated": 1 - len({number.tobytes() for number in numbers}) / len(numbers),
        "start_s": round(start_s, 3),
        "ms": {source: round(1e3 * median(each), 3) for source, each in seconds.items()},
    }


def _batches(replay: ArrayReplay, workers: int) -> Iterator[np.ndarray]:
    """Yield the numbers of rows that a loader draws."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of more workers than cores, and of forks in a process with threads
        pairs = iter(DataLoader(replay, batch_size=None, num_workers=workers, timeout=PATIENCE if workers else 0))
    for number, _ in pairs:
        yield number.numpy()
