"""Variants that lose, measured so that notebooks can show how: replay behind a DataLoader, sums in float32."""

import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from uavlab.app.timing import median
from uavlab.core.errors import ResourceError
from uavlab.ops.trees import fixed_point

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
        workers: Processes that draw.
        seed: Of the generator that each of them gets a copy of.

    Returns:
        ``rows``: for each round and each of ``source`` ``replay itself`` and ``DataLoader`` the ``newest`` row of all
        batches so far, its ``age_s`` (how long ago it was written), and what was ``written`` last; ``repeated``, the
        share of the loader's batches that another worker had drawn before; ``start_s`` until its first batch came, and
        ``ms`` by source, a batch after that.

    Raises:
        ResourceError: The workers give no answer.
    """
    replay = Rows(start + steps * new, batch, seed)
    born = np.empty(start + steps * new)  # when each row was written (s)
    replay.write(start)
    began = born[:start] = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that two processes are many for this machine, that forks and threads mix
        try:
            drawn = iter(DataLoader(replay, batch_size=None, num_workers=workers, timeout=PATIENCE))
            given = [next(drawn)[0].numpy()]
            start_s = time.perf_counter() - began
            rows, seconds, best = [], {"replay itself": [], "DataLoader": []}, {"replay itself": 0, "DataLoader": 0}
            for step in range(steps):
                written = int(replay.size[0])
                replay.write(new)
                born[written : written + new] = time.perf_counter()
                for source in seconds:
                    asked = time.perf_counter()
                    number = np.asarray(next(drawn)[0] if source == "DataLoader" else replay.draw()[0])
                    seconds[source].append(time.perf_counter() - asked)
                    best[source] = max(best[source], int(number.max()))
                    age = time.perf_counter() - born[best[source]]
                    rows.append({"source": source, "step": step + 1, "newest": best[source], "age_s": round(age, 4)})
                    rows[-1]["written"] = written + new - 1
                    given += [number] if source == "DataLoader" else []
        except RuntimeError as error:
            raise ResourceError(f"DataLoader: {error}; close other programs or take fewer workers.") from error
    distinct = len({number.tobytes() for number in given})
    return {
        "rows": rows,
        "repeated": 1 - distinct / len(given),
        "start_s": round(start_s, 3),
        "ms": {source: round(1e3 * median(each), 3) for source, each in seconds.items()},
    }


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
