"""Timing of calls in one process: in turn, so that a busy machine slows all of them equally, or one for a while."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from uavlab.core.statistics import interval
from uavlab.runtime.stage_timer import synchronize

K = TypeVar("K")

WARM_UP = 3  # rounds that are not counted
FEWEST = 3  # rounds that are always run
ENOUGH = 6  # rounds of an interval: n rounds all lie on one side of the true median with chance 2 / 2^n
ROUNDS, ROUND_S = 5, 0.005  # rounds of the best time, and the time of each (s)
NOTHING_LEFT = object()


def time_call(call: Callable[[], Any], device: torch.device, times: int = 1) -> float:
    """Time one call, or several in a row, with all work that they queued on a GPU (s)."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        call()
    synchronize(device)
    return time.perf_counter() - began


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


def time_steps(
    steps: Iterator[Any], device: torch.device, enough_s: float, fewest: int = 1, most: float = math.inf
) -> list[float]:
    """Time steps of an iterator (s), until they took ``enough_s`` seconds, at least ``fewest`` and at most ``most``."""
    seconds, whole = list[float](), 0.0
    while len(seconds) < most and (len(seconds) < fewest or whole < enough_s):
        began = time.perf_counter()
        if next(steps, NOTHING_LEFT) is NOTHING_LEFT:
            break
        synchronize(device)
        seconds.append(time.perf_counter() - began)
        whole += seconds[-1]
    return seconds


def best_time(call: Callable[[], Any], device: torch.device) -> float:
    """Time a call (s), often enough for the resolution of the clock; the fastest round is the least disturbed."""
    time_call(call, device)
    times = max(1, math.ceil(ROUND_S / max(time_call(call, device), 1e-6)))
    return min(time_call(call, device, times) for _ in range(ROUNDS)) / times


def median(values: Sequence[float]) -> float:
    """Return the upper median."""
    return sorted(values)[len(values) // 2]


def ratio(slow: Sequence[float], fast: Sequence[float], name: str = "median") -> dict[str, float]:
    """Return the median over rounds of slow / fast as ``name``, and its 95 % bootstrap interval as ``low, high``.

    Fewer than six rounds have no such interval: their least and greatest ratios are returned.
    """
    ratios = np.array(slow) / np.array(fast)
    few = len(ratios) < ENOUGH
    ends = (np.median(ratios), ratios.min(), ratios.max()) if few else interval(ratios, np.median)
    return {key: round(float(value), 4) for key, value in zip((name, "low", "high"), ends, strict=True)}
