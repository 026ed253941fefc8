"""The speed of a run over time: samples of its updates, stages and memory at a bounded rate."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from uavlab.experiment.config import Config
from uavlab.experiment.instruments import Instruments
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Progress

EVERY = 0.5  # seconds of training between samples
MOST = 2400  # samples that are stored; of older ones every second one is dropped


@dataclass(frozen=True)
class Sample:
    """A reading of a run between two updates.

    Attributes:
        seconds: Training so far (s), with scores and saves, without pauses and changes.
        net: The same without scores and saves.
        update: Updates so far.
        figures: Shares of the time by stage since the sample before, and memory; see ``Instruments.read``.
    """

    seconds: float
    net: float
    update: int
    figures: Mapping[str, float] = field(default_factory=dict)


class History:
    """Samples of a run; the thread that trains it calls ``begin`` once, ``add`` after each update, ``skip`` before one.

    Attributes:
        samples: All samples, the oldest first.
        net: Seconds of training without scores and saves.
    """

    def __init__(self, run: Run) -> None:
        """Start with a sample of the run as it is."""
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
