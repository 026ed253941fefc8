"""The number of worlds at the knee of a collector's throughput, measured here by a sweep of doubling numbers."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from uavlab.collectors.off_policy import POOL_STEPS
from uavlab.core.errors import ResourceError
from uavlab.core.registry import Settings
from uavlab.core.rng import same_random_state
from uavlab.experiment import build
from uavlab.profiling.batch_size import fits, knee
from uavlab.runtime.oom_retry import free_cache, free_memory
from uavlab.runtime.stage_timer import synchronize

MOST = 16_384  # worlds, and rows of a batch, unless the caller says otherwise
SHARE = 0.98  # of the best rate that the rate at the knee has at least
HIGHER = 1.05  # times the best rate so far; long samples with less end a sweep
ROUNDS = 3  # interleaved
SAMPLE_S = 0.2  # least time of a sample (s)
LONG_S, LONGEST_S = 1.0, 8.0  # time of two samples without a higher rate, and of any one, which end a sweep (s)
CLOSE = 0.5  # share of the best first rate from which on a number is measured again
FREE = 0.5  # share of the free memory of a CPU that trials may take

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sweep:
    """The throughput of a collector by the number of worlds.

    Attributes:
        rates: Medians over rounds (``unit`` per second); far below the best, that of one sample.
        unit: What is counted.
        end: Why no larger number was measured.
    """

    rates: dict[int, float]
    unit: str
    end: str

    @property
    def worlds(self) -> int:
        """Return the fewest worlds whose rate is at least ``SHARE`` of the best."""
        return knee(self.rates, SHARE)

    def __str__(self) -> str:
        """Return the knee and what it was chosen from."""
        rate, most = self.rates[self.worlds], max(self.rates)
        return (
            f"{self.worlds} worlds, {rate:,.0f} {self.unit} per second, the fewest within {1 - SHARE:.0%} of the best "
            f"rate of 1 to {most:,} worlds; {self.end}"
        )


def trial_limit(device: torch.device) -> int | None:
    """Return the bytes that trials may take: a share of what a CPU has free; None for a GPU, which refuses by itself.

    A CPU refuses nothing: the system ends a process that takes too much.
    """
    return None if device.type == "cuda" else int(FREE * free_memory(device))


def sweep_worlds(config: Settings, most: int = MOST, budget: int | None = None, say: Say = lambda line: None) -> Sweep:
    """Measure how fast a run's collector is with 1, 2, 4, ... worlds, in turn, over some rounds.

    Each measurement builds the run anew and times whole turns of its collector. Global random numbers stay as they are.

    Args:
        config: Settings of a run whose collector has worlds.
        most: Largest number that is tried; replay holds at least one row of each.
        budget: Limit on the bytes of tensors; None takes the device's memory.
        say: Called with a line on each number.
    """
    most = min(most, getattr(config.source, "capacity", most))
    samples: dict[int, list[float]] = {}

    def sample(worlds: int) -> tuple[float, float]:
        rate, seconds = measure(config, worlds)
        samples.setdefault(worlds, []).append(rate)
        return rate, seconds

    with same_random_state():
        end = _grow(config, most, budget, sample, say)
        enough = CLOSE * max(first for first, *_ in samples.values())
        for _ in range(ROUNDS):
            for worlds in [worlds for worlds, (first, *_) in samples.items() if first >= enough]:
                sample(worlds)
    unit = config.task.collector.data_per_update(config)[1]
    rates = {worlds: median(each[1:] or each) for worlds, each in samples.items()}  # the first one was a warm-up
    for worlds, rate in rates.items():
        say(f"worlds {worlds}: {rate:,.0f} {unit} per second")
    return Sweep(rates, unit, end)


def measure(config: Settings, worlds: int) -> tuple[float, float]:
    """Build a run anew with other worlds, and time its collector.

    At least ``POOL_STEPS`` steps are timed, so that starts of new worlds count, too.

    Returns:
        What the collector's ``pace`` counts, per second, and the time of the sample (s).
    """
    interval, ratio = config.toggles.interval, config.toggles.ratio  # turns of a round, and its updates by turn
    pace, own = config.task.collector.data_per_update(config)[0], config.source.worlds
    steps = pace // (own * config.run.runs * config.env.spec.agents)
    least = math.ceil(POOL_STEPS / (steps * interval))
    rounds, seconds = _time_rounds(_turns(config, worlds), interval * ratio, least)
    free_cache()
    return rounds * interval * pace / own * worlds / seconds, seconds


def _grow(
    config: Settings,
    most: int,
    budget: int | None,
    sample: Callable[[int], tuple[float, float]],
    say: Say,
) -> str:
    """Take a sample of doubling numbers of worlds; return why the largest one is the last."""
    worlds, best, slow = 1, 0.0, 0
    while worlds <= most:
        if not fits(lambda count: _turns(config, count), worlds, budget):
            where = "the device" if budget is None else f"{budget:,} bytes"
            if worlds == 1:
                raise ResourceError(
                    f"worlds: one does not fit into {where}; lower batch, capacity, hidden or runs, or allow more."
                )
            say(f"worlds {worlds}: do not fit into {where}")
            return f"{worlds:,} do not fit into {where}"
        rate, seconds = sample(worlds)
        slow = slow + 1 if seconds > LONG_S and rate < HIGHER * best else 0
        if seconds > LONGEST_S or slow == 2:  # one may be slow because the machine was busy
            return f"a sample of {worlds:,} takes {seconds:.1f} s"
        worlds, best = 2 * worlds, max(best, rate)
    return f"{most:,} is the largest number to try"


def _turns(config: Settings, worlds: int) -> Callable[[], Any]:
    """Return a function that takes a turn of a new collector: steps, a batch, and new worlds in reserve."""
    few = {"learning_starts": worlds} if hasattr(config.source, "learning_starts") else {}
    rt, _, _, source = build.assemble(replace(config, source=replace(config.source, worlds=worlds, **few)))

    def turn() -> None:
        with rt.scope():
            source.before_cycle()
            source.next()
            source.after_cycle()
            synchronize(rt.device)

    return turn


def _time_rounds(turn: Callable[[], Any], turns: int, least: int) -> tuple[int, float]:
    """Take rounds of turns for ``SAMPLE_S`` seconds, but not fewer than ``least``; return their number and time (s)."""
    turn()  # and what is done once
    began, rounds, seconds = time.perf_counter(), 0, 0.0
    while rounds < least or seconds < SAMPLE_S:
        for _ in range(turns):
            turn()
        rounds += 1
        seconds = time.perf_counter() - began
    return rounds, seconds
