"""Searches for sizes: the largest batch that fits into memory, and the knee of the throughput.

Each trial builds its own objects and drops them, so the search changes no state.
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

StepFactory = Callable[[int], Callable[[], Any]]
"""Builds new objects for a size and returns one full step with them."""

STEPS = 2  # per trial: the second step also needs memory for what the first one keeps


@dataclass(frozen=True)
class BatchSearch:
    """The largest batch that leaves the margin free, and whether each size fits, in the order of the trials."""

    rows: int
    trials: dict[int, bool]


def largest_batch(
    make_step: StepFactory,
    low: int,
    high: int,
    margin: float = 0.1,
    budget: int | None = None,
    tolerance: float = 0.0,
    on_trial: Callable[[int, bool], object] = lambda rows, good: None,
) -> BatchSearch:
    """Search for the largest batch by full training steps: forward, backward, and the optimizer with its moments.

    A batch that was tried, less the margin, is returned, never one beyond those that were tried.

    Args:
        make_step: Builds new objects for a number of rows and returns one training step of them.
        low: The smallest useful batch.
        high: The largest useful batch.
        margin: Share in [0, 1) of the rows that fit to leave free for other programs.
        budget: Limit on the bytes of tensors, in place of the device's memory.
        tolerance: Share of what fits by which the result may be less than the largest.
        on_trial: Called with each size and whether it fits.

    Raises:
        ConfigError: The bounds or the margin are invalid, or a CUDA graph is being captured.
        ResourceError: ``low`` rows do not fit.
    """
    if is_capturing():
        raise ConfigError("Batch search: a CUDA graph is being captured; search before, a failed allocation ends it.")
    if not (1 <= low <= high and 0 <= margin < 1):
        raise ConfigError(
            f"Batch search: got low={low}, high={high}, margin={margin}; expected 1 <= low <= high, 0 <= margin < 1."
        )
    trials: dict[int, bool] = {}

    def try_rows(rows: int) -> bool:
        trials[rows] = fits(make_step, rows, budget)
        on_trial(rows, trials[rows])
        return trials[rows]

    least, most = (math.ceil(rows / (1 - margin)) for rows in (low, high))
    if not try_rows(least):
        where = "the device" if budget is None else f"{budget:,} bytes"
        raise ResourceError(
            f"Batch search: a step with {least} rows ({low} and the margin) does not fit into {where}; lower low, "
            "margin, hidden or runs, or set micro_batches."
        )
    good, bad = least, most + 1
    while good < most and bad > most:
        size = min(2 * good, most)
        good, bad = (size, bad) if try_rows(size) else (good, size)
    while bad - good > max(1, tolerance * good):
        size = (good + bad) // 2
        good, bad = (size, bad) if try_rows(size) else (good, size)
    return BatchSearch(min(high, math.floor(good * (1 - margin) + 1e-9)), trials)


def fits(make_step: StepFactory, rows: int, budget: int | None = None) -> bool:
    """Return whether steps of a size succeed without splitting the batch; what they hold is free afterwards.

    ``budget`` limits the bytes of tensors, in place of the device's memory.
    """
    try:
        return _succeeds(make_step, rows, budget)
    finally:  # the objects of the trial are dropped by now
        free_cache()


def _succeeds(make_step: StepFactory, rows: int, budget: int | None) -> bool:
    with warnings.catch_warnings(), nullcontext() if budget is None else Budget(budget):
        warnings.simplefilter("error", RetryWarning)
        try:
            step = make_step(rows)
            for _ in range(STEPS):
                step()
        except (ResourceError, RetryWarning):
            return False
        except (MemoryError, RuntimeError) as error:
            refusal_reason(error)
            return False
    return True


class Budget(TorchDispatchMode):
    """Emulates a memory limit, such as that of a small device on a CPU: operators that exceed it raise an error.

    It counts the results of operators, but not their temporary memory, nor the memory of compiled code.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.live, self.peak = limit, 0, 0  # bytes of tensors created inside: at most, now, at the peak
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count its results."""
        inputs = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage(), inputs)
        return out

    def _count(self, storage: torch.UntypedStorage, inputs: set[int]) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if size == 0 or place in inputs or place in self._known:
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
    """Return the smallest size that reaches ``share`` of the best rate."""
    if not rates:
        raise ConfigError("Knee: no rates were given; measure at least one size.")
    enough = share * max(rates.values())
    return min(size for size, rate in rates.items() if rate >= enough)
