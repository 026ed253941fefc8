"""The speed of a run over time, and after a change of settings over that before, from slices of the run itself.

Where a change leaves the algorithm as it is, the run goes to and fro between both settings, slice by slice, so that a
busy machine slows both. Else the slices before the change are compared with those after it.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from uavlab.core.statistics import student
from uavlab.experiment.change import alternates
from uavlab.experiment.config import Config
from uavlab.experiment.instruments import Instruments
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Change, Progress

EVERY = 0.5  # seconds of training between samples
MOST = 2400  # samples that are stored; of older ones every second one is dropped
PAIRS = 6  # slices of each side
SLICE = 0.5  # seconds of training in a slice, at least
INTERLEAVED, ONE_AFTER_THE_OTHER = "interleaved", "before and after"


@dataclass(frozen=True)
class Sample:
    """A reading of a run between two updates."""

    seconds: float  # of training so far, with scores and saves, without pauses and changes
    net: float  # the same without scores and saves
    update: int
    figures: Mapping[str, float] = field(default_factory=dict)  # of ``Instruments.read`` since the sample before


class History:
    """Samples of a run; the thread that trains calls ``begin`` once, ``add`` after each update, ``skip`` before one."""

    def __init__(self, run: Run) -> None:
        self.instruments, self.net = Instruments(), run.seconds
        self.samples: deque[Sample] = deque([Sample(run.seconds, self.net, run.number)])
        self._number = run.number
        self.begin(run)

    def begin(self, run: Run) -> None:
        """Begin training; if the run was trained elsewhere since its last update here, begin a new history."""
        if run.number != self._number:
            self.samples = deque([Sample(run.seconds, self.net, run.number)])
        self._number, self._seconds, self._saves = run.number, run.seconds, len(run.pauses)
        self._late = 0.0  # seconds of score and saves after the last update, which ``Run`` counts with the next one

    def add(self, run: Run, progress: Progress) -> float:
        """Count an update, and take a sample if one is due; return the seconds of the update (without score, save)."""
        spent = run.seconds - self._seconds - self._late
        self._late = (run.score_seconds if progress.score else 0.0) + sum(run.pauses[self._saves :])
        self.net, self._number, self._seconds = self.net + spent, run.number, run.seconds
        self.skip(run)
        self.sample(run, EVERY)
        return spent

    def skip(self, run: Run) -> None:
        """Leave out saves between updates, which ``Run`` does not count."""
        self._saves = len(run.pauses)

    def sample(self, run: Run, after: float = EVERY / 2) -> None:
        """Take a sample if the last one is so many seconds of training ago."""
        if self.net - self.samples[-1].net >= after:
            self.samples.append(Sample(run.seconds, self.net, run.number, self.instruments.read(run.rt)))
            if len(self.samples) > MOST:
                half = MOST // 2
                rest = list(self.samples)
                self.samples = deque([*rest[:half:2], *rest[half:]])


def rates(samples: Iterable[Sample]) -> list[tuple[float, float]]:
    """Return updates per second between successive samples, each with the seconds of training at its end."""
    return [
        (after.seconds, (after.update - before.update) / (after.net - before.net))
        for before, after in pairwise(samples)
        if after.net > before.net
    ]


def work(config: Config) -> dict[str, float]:
    """Return what an update stands for: rows that are learned from, and data that are collected, by their units."""
    amount, unit = config.task.collector.data_per_update(config)
    toggles, batch = config.toggles, getattr(config.source, "batch", None)
    collected = amount / toggles.ratio if config.task.collector.replay else amount
    rows = {"rows": batch * config.run.runs} if batch and config.task.collector.replay else {}
    return {**rows, unit: collected}


class Comparison:
    """Slices of a run after a change, and before it."""

    def __init__(self, run: Run, change: Change, samples: Sequence[Sample], pairs: int = PAIRS) -> None:
        """Begin after a change that has just taken effect; ``samples`` are those before it."""
        self.place, self.pairs = len(run.changes) - 1, pairs  # place of the change in ``run.changes``
        self.old = {name: old for name, (old, _) in change.settings.items()}
        self.new = {name: new for name, (_, new) in change.settings.items()}
        self.how = INTERLEAVED if alternates(list(change.settings)) else ONE_AFTER_THE_OTHER
        self.warm_up: float | None = None  # seconds of the first update after the change
        self.result: dict[str, Any] | None = None  # of ``outcome``, when all slices are over
        self.after: list[float] = []  # updates per second of each slice
        self.before = [] if self.how == INTERLEAVED else [rate for _, rate in rates(samples)][-pairs:]
        self.works = {False: work(run.spare.config if run.spare else run.config), True: work(run.config)}
        self.now = True  # whether the present slice has the settings after the change
        self._start()

    def _start(self) -> None:
        self.updates, self.seconds, self.skipped = 0, 0.0, 0

    def count(self, run: Run, spent: float) -> Mapping[str, Any] | None:
        """Count an update of ``spent`` seconds; return the settings to change to now, None to go on."""
        if self.warm_up is None:
            self.warm_up = spent
        round_ = run.config.toggles.interval * run.config.toggles.ratio if run.config.task.collector.replay else 1
        if self.skipped < round_:  # the first updates after a change allocate memory
            self.skipped += 1
            return None
        self.updates, self.seconds = self.updates + 1, self.seconds + spent
        if self.seconds < SLICE or self.updates % round_:
            return None
        (self.after if self.now else self.before).append(self.updates / self.seconds)
        self._start()
        if self.how == INTERLEAVED:
            self.now = not self.now
        if len(self.after) >= self.pairs and (self.how != INTERLEAVED or len(self.before) >= self.pairs):
            self.result = self.outcome()
        return None if self.how != INTERLEAVED else self.new if self.now else self.old

    def holds(self, run: Run) -> bool:
        """Return whether a run has the settings of the present slice; it has not where a change was undone."""
        wanted = self.new if self.now else self.old
        return self.how != INTERLEAVED or all(run.config.values[name] == value for name, value in wanted.items())

    def outcome(self) -> dict[str, Any]:
        """Return the ratio of speeds with its interval, and what it was measured on."""
        ratio = speed_ratio(self.before, self.after, self.how == INTERLEAVED)
        per_update = {unit: self.works[True][unit] / amount for unit, amount in self.works[False].items() if amount}
        return {
            "how": self.how,
            **(ratio or {"stopped": "too few slices before it"}),
            "before": _median(self.before),
            "after": _median(self.after),
            "slices": len(self.after),
            "warm_up_s": round(self.warm_up or 0.0, 3),
            "per_update": {unit: round(share, 4) for unit, share in per_update.items() if share != 1},
        }


def speed_ratio(before: Sequence[float], after: Sequence[float], paired: bool) -> dict[str, float]:
    """Return the ratio of two speeds and the ends ``low`` and ``high`` of its 95 % interval.

    It is empty where a side has less than two slices, which have no interval. Means of logarithms are compared: those
    of pairs, or of both sides, whose errors are independent.

    Source:
        Student 1908, "The Probable Error of a Mean".
    """
    if min(len(before), len(after)) < 2:
        return {}
    logs = [[math.log(rate) for rate in side] for side in (before, after)]
    if paired:
        middle, low, high = student([b - a for a, b in zip(*logs, strict=True)])
    else:
        (first, *ends), (second, *others) = (student(side) for side in logs)
        reach = math.hypot(ends[1] - first, others[1] - second)
        middle, low, high = second - first, second - first - reach, second - first + reach
    return {"ratio": round(math.exp(middle), 4), "low": round(math.exp(low), 4), "high": round(math.exp(high), 4)}


def measured_rows(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Return a row for each change whose speed was measured; ``over_first`` is that after it over that before."""
    return [
        {
            "setting": ", ".join(f"{name}={new}" for name, (_, new) in change.settings.items()),
            "over_first": change.measured["ratio"],
            **{key: change.measured[key] for key in ("low", "high", "how")},
        }
        for change in changes
        if "ratio" in change.measured
    ]


def unmeasured(changes: Iterable[Change]) -> list[str]:
    """Return a line for each change whose speed was not measured, with the reason."""
    return [
        f"{change}" if change.undone else f"{change}: {change.measured.get('stopped', 'no comparison')}"
        for change in changes
        if "ratio" not in change.measured
    ]


def _median(rates_: Sequence[float]) -> float | None:
    return round(sorted(rates_)[len(rates_) // 2], 3) if rates_ else None
