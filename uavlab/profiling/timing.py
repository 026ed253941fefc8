"""Timing of calls in turn in one process, so that a busy machine slows all of them equally."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from uavlab.core.statistics import interval
from uavlab.runtime.stage_timer import synchronize

K = TypeVar("K")

WARM_UP = 3  # rounds that are not counted
FEWEST = 3  # rounds that are always run
ENOUGH = 6  # rounds of an interval: n rounds all lie on one side of the true median with chance 2 / 2^n


def time_in_turn(
    calls: Mapping[K, Callable[[], Any]],
    rounds: int,
    device: torch.device,
    warm_up: int = WARM_UP,
    enough_s: float = math.inf,
    fewest: int = FEWEST,
) -> dict[K, list[float]]:
    """Time each call once per round, in turn (s); stop after ``enough_s`` seconds, but not before ``fewest`` rounds.

    Each round begins with another call, so that none has the same place in all of them.
    """
    names = list(calls)
    seconds: dict[K, list[float]] = {name: [] for name in calls}
    began = time.perf_counter()
    for number in range(-warm_up, rounds):
        if time.perf_counter() - began > enough_s:
            if number >= fewest:
                break
            if number < 0:
                continue
        first = (number + warm_up) % len(names)
        for name in names[first:] + names[:first]:
            once = time_call(calls[name], device)
            if number >= 0:
                seconds[name].append(once)
    return seconds


def time_call(call: Callable[[], Any], device: torch.device) -> float:
    """Time one call, with all work that it queued on a GPU (s)."""
    synchronize(device)
    began = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - began


def median(values: Sequence[float]) -> float:
    """Return the upper median."""
    return sorted(values)[len(values) // 2]


def ratio(slow: Sequence[float], fast: Sequence[float], name: str = "median") -> dict[str, float]:
    """Return the median over rounds of slow / fast as ``name``, and its 95 % bootstrap interval as ``low, high``.

    Fewer than six rounds have no such interval: their least and greatest ratios are returned.
    """
    each = np.array(slow) / np.array(fast)
    few = len(each) < ENOUGH
    ends = (np.median(each), each.min(), each.max()) if few else interval(each, np.median)
    return {key: round(float(value), 4) for key, value in zip((name, "low", "high"), ends, strict=True)}


def break_even_calls(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> int | None:
    """Return the number of calls after which a longer warm-up pays off: 0 if it is not longer, None if it never does.

    Args:
        slow: ``ms`` and ``first_call_s`` of the baseline.
        fast: ``ms`` and ``first_call_s`` of the call that warms up.
    """
    warm_up, gain = 1e3 * (fast["first_call_s"] - slow["first_call_s"]), slow["ms"] - fast["ms"]
    if warm_up <= 0:
        return 0
    return math.ceil(warm_up / gain) if gain > 0 else None
