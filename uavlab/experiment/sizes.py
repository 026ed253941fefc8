"""Sizes that are ``auto``: batches by the number of entities of a task, worlds by the throughput measured here.

``uavlab.experiment.fit`` measures what fits into memory.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from uavlab.collectors.off_policy import POOL_STEPS
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.registry import Settings
from uavlab.core.rng import same_random_state
from uavlab.core.types import EnvSpec
from uavlab.experiment import build
from uavlab.profiling.batch_size import fits, knee
from uavlab.profiling.timing import time_steps
from uavlab.runtime.oom_retry import free_cache, free_memory
from uavlab.runtime.stage_timer import synchronize

AUTO = "auto"
BY_ENTITIES = ("batch", "minibatches")
AUTOMATIC = ("worlds", *BY_ENTITIES)  # settings that may be AUTO
PUBLISHED = {8: 128, 16: 64, 24: 32}  # rows of a batch, by the most entities
LEAST = 16  # rows, with more entities
MOST_MINIBATCHES = 1000  # of a batch

MOST = 16_384  # worlds, and rows of a batch, unless the caller says otherwise
SHARE = 0.98  # of the best rate that the rate at the knee has at least
HIGHER = 1.05  # times the best rate so far; long samples with less end a sweep
ROUNDS = 3  # interleaved
SAMPLE_S = 0.2  # least time of a sample (s)
LONG_S, LONGEST_S = 1.0, 8.0  # time of two samples without a higher rate, and of any one, which end a sweep (s)
CLOSE = 0.5  # share of the best first rate from which on a number is measured again
FREE = 0.5  # share of the free memory of a CPU that trials may take

Say = Callable[[str], None]


def batch_for(entities: int) -> int:
    """Return the rows of a batch by the number of entities: fewer where each row is larger.

    Source:
        The published table of largesone/uav-task-path-planning, by the number of UAVs and targets.

    >>> [batch_for(entities) for entities in (1, 8, 9, 16, 17, 24, 25)]
    [128, 128, 64, 64, 32, 32, 16]
    """
    if entities < 1:
        raise ConfigError(f"batch_for: got {entities} entities; expected at least 1.")
    return next((rows for most, rows in PUBLISHED.items() if entities <= most), LEAST)


def count_entities(spec: EnvSpec) -> int:
    """Return how many things an observation lists, empty slots included; how many agents there are if it lists none."""
    return spec.agents if spec.entities is None else spec.entities.rows + spec.entities.columns


def automatic_sizes(config: Settings, names: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return value and reason of each of these settings; minibatches have about the published size."""
    sizes: dict[str, tuple[int, str]] = {}
    if by_entities := [name for name in BY_ENTITIES if name in names]:
        size, why = _published(config, by_entities[0])
        sizes = {"batch": (size, f"{size} rows, {why}")}
    if "worlds" in names:
        batch = {"batch": size} if "batch" in by_entities else {}
        trial = replace(config, source=replace(config.source, **batch))
        sweep = sweep_worlds(trial, budget=trial_limit(build.runtime(config.run).device))
        sizes["worlds"] = sweep.worlds, str(sweep)
        config = replace(config, source=replace(config.source, worlds=sweep.worlds))
    if "minibatches" in names:
        one = config.task.plan(replace(config, run=replace(config.run, updates=1)))
        rows = one["world_steps_per_run"]
        count = min(max(round(rows / size), 1), MOST_MINIBATCHES)
        sizes["minibatches"] = count, f"{count} of about {size} rows, {why}, of {rows} world steps"
    return {name: sizes[name] for name in names}


def _published(config: Settings, name: str) -> tuple[int, str]:
    """Return the published rows of a batch, and why; ``name`` is the setting in the error."""
    spec = config.env.spec
    if not isinstance(spec, EnvSpec):
        missing = f"{name}=auto counts the entities of a team, and there is none"
        raise ConfigError(f"{config.preset}: {missing}; set a number.")
    entities = count_entities(spec)
    return batch_for(entities), f"published for {entities} entities"


@dataclass(frozen=True)
class Sweep:
    """Throughput by the number of worlds (``unit`` per second), and why no larger number was measured."""

    rates: dict[int, float]  # medians over rounds; far below the best, that of one sample
    unit: str
    end: str

    @property
    def worlds(self) -> int:
        return knee(self.rates, SHARE)

    def __str__(self) -> str:
        rate, most = self.rates[self.worlds], max(self.rates)
        return (
            f"{self.worlds} worlds, {rate:,.0f} {self.unit} per second, the fewest within {1 - SHARE:.0%} of the best "
            f"rate of 1 to {most:,} worlds; {self.end}"
        )


def trial_limit(device: torch.device) -> int | None:
    """Return the bytes that trials may take: a share of what a CPU has free, where the system would end the process."""
    return None if device.type == "cuda" else int(FREE * free_memory(device))


def sweep_worlds(config: Settings, most: int = MOST, budget: int | None = None, say: Say = lambda line: None) -> Sweep:
    """Measure how fast a run's collector is with 1, 2, 4, ... worlds, in turn, over some rounds.

    ``budget`` limits the bytes of tensors; None takes the device's memory. Global random numbers stay as they are.
    """
    most = min(most, getattr(config.source, "capacity", most))  # replay holds a row of each world at least
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
    rates = {worlds: median(some[1:] or some) for worlds, some in samples.items()}  # the first one was a warm-up
    for worlds, rate in rates.items():
        say(f"worlds {worlds}: {rate:,.0f} {unit} per second")
    return Sweep(rates, unit, end)


def measure(config: Settings, worlds: int) -> tuple[float, float]:
    """Return the data of a collector per second with other worlds, starts of new ones included, and the time (s)."""
    interval, ratio = config.toggles.interval, config.toggles.ratio  # turns of a round, and its updates by turn
    pace, before = config.task.collector.data_per_update(config)[0], config.source.worlds
    steps = pace // (before * config.run.runs * config.env.spec.agents)
    least = math.ceil(POOL_STEPS / (steps * interval))
    rounds, seconds = _time_rounds(_turns(config, worlds), interval * ratio, least)
    free_cache()
    return rounds * interval * pace / before * worlds / seconds, seconds


def _grow(
    config: Settings, most: int, budget: int | None, sample: Callable[[int], tuple[float, float]], say: Say
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
    rounds = ([turn() for _ in range(turns)] for _ in itertools.count())
    seconds = time_steps(rounds, torch.device("cpu"), SAMPLE_S, least)  # a turn waits for its device by itself
    return len(seconds), sum(seconds)
