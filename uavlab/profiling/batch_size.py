"""Sizes found by trying: the largest batch that fits into memory, and the knee beyond which more worlds gain little.

Whatever is tried is built for the purpose and thrown away, so there is no state to bring back.
"""

import math
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from uavlab.core.errors import ConfigError, ResourceError, RetryWarning
from uavlab.runtime.oom_retry import free_cache, is_capturing, refusal_reason

StepOf = Callable[[int], Callable[[], Any]]
"""Builds everything anew for a size and returns what takes one full step with it."""

STEPS = 2  # per trial: the second one stands beside what the first one left


@dataclass(frozen=True)
class Fit:
    """What a search found.

    Attributes:
        rows: The largest batch that leaves the margin free.
        tried: Sizes in the order in which they were tried, and whether they fitted.
    """

    rows: int
    tried: dict[int, bool]


def largest_batch(step_of: StepOf, low: int, high: int, margin: float = 0.1, budget: int | None = None) -> Fit:
    """Search the largest batch by full training steps: forward, backward, and the optimizer with its moments.

    Args:
        step_of: Builds fresh objects for a number of rows and returns one training step of them.
        low: The smallest batch of use.
        high: The largest batch of use.
        margin: Share of the rows that fit to be given up, in [0, 1); other programs come and go.
        budget: Bytes of tensors to make do with, instead of the device's memory.

    Raises:
        ConfigError: The bounds or the margin make no sense, or a CUDA graph is being captured.
        ResourceError: Not even ``low`` rows fit.
    """
    if is_capturing():
        raise ConfigError("Batch search: a CUDA graph is being captured; search before, refusals end a capture.")
    if not (1 <= low <= high and 0 <= margin < 1):
        raise ConfigError(
            f"Batch search: got low={low}, high={high}, margin={margin}; expected 1 <= low <= high, 0 <= margin < 1."
        )
    tried: dict[int, bool] = {}

    def fits(rows: int) -> bool:
        tried[rows] = _trial(step_of, rows, budget)
        free_cache()
        return tried[rows]

    least, most = (math.ceil(rows / (1 - margin)) for rows in (low, high))
    if not fits(least):
        where = "the device" if budget is None else f"{budget:,} bytes"
        raise ResourceError(
            f"Batch search: a step with {least} rows ({low} and the margin) does not fit into {where}; lower low, "
            "margin, hidden or runs, or set micro_batches."
        )
    good, bad = least, most + 1
    while good < most and bad > most:
        size = min(2 * good, most)
        good, bad = (size, bad) if fits(size) else (good, size)
    while bad - good > 1:
        size = (good + bad) // 2
        good, bad = (size, bad) if fits(size) else (good, size)
    return Fit(min(high, math.floor(good * (1 - margin) + 1e-9)), tried)


def _trial(step_of: StepOf, rows: int, budget: int | None) -> bool:
    """Tell whether steps succeed as they are; one that had to be cut did not fit."""
    with warnings.catch_warnings(), nullcontext() if budget is None else Budget(budget):
        warnings.simplefilter("error", RetryWarning)
        try:
            step = step_of(rows)
            for _ in range(STEPS):
                step()
        except (ResourceError, RetryWarning):
            return False
        except (MemoryError, RuntimeError) as error:
            refusal_reason(error)
            return False
    return True


class Budget(TorchDispatchMode):
    """Memory of so many bytes, pretended: inside, an operator whose result is one tensor too many is refused.

    It counts what operators return, not what they hold while they run, and sees no compiled code. So a CPU can show
    what a small device would do.

    Attributes:
        limit: Bytes that tensors made inside may hold at a time.
        live: Bytes that they hold now.
        peak: The most that they held.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.live, self.peak = limit, 0, 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count its results.

        Raises:
            torch.OutOfMemoryError: They do not fit.
        """
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage(), given)
        return out

    def _count(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if size == 0 or place in given or place in self._known:
            return
        if self.live + size > self.limit:
            raise torch.OutOfMemoryError(f"{size:,} bytes do not fit, {self.live:,} of {self.limit:,} are taken")
        self._known.add(place)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, place, size).atexit = False

    def _forget(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.live -= size


def knee(rates: Mapping[int, float], share: float = 0.9) -> int:
    """Give the smallest size that reaches ``share`` of the best rate.

    Raises:
        ConfigError: There are no rates.
    """
    if not rates:
        raise ConfigError("Knee: no rates were given; measure at least one size.")
    return min(size for size, rate in rates.items() if rate >= share * max(rates.values()))
