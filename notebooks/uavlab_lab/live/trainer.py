"""Live runs: training on a thread of its own, and what a change of a setting does to its speed.

Where a change leaves the algorithm as it is, the run goes to and fro between both settings, slice by slice, so that a
busy machine slows both. Else the slices before the change are compared with those after it.
"""

import atexit
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

from uavlab.core.errors import ConfigError, FallbackError, UavlabError, reason_of
from uavlab.core.statistics import student
from uavlab.core.text import quote
from uavlab.experiment.change import alternates, changed_config, record_failure, require_usable
from uavlab.experiment.config import Config
from uavlab.experiment.instruments import Instruments
from uavlab.experiment.run import PATIENCE, Run
from uavlab.experiment.run_dir import store_config
from uavlab.experiment.run_state import COMPARISON, Change, Progress

EVERY = 0.5  # seconds of training between samples
MOST = 7200  # samples that are stored: the last hour
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
        self.samples = deque([Sample(run.seconds, self.net, run.number)], MOST)
        self._number = run.number
        self.begin(run)

    def begin(self, run: Run) -> None:
        """Begin training; if the run was trained elsewhere since its last update here, begin a new history."""
        if run.number != self._number:
            self.samples = deque([Sample(run.seconds, self.net, run.number)], MOST)
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


State = Literal["ready", "training", "paused", "stopping", "complete", "failed"]
Script = Sequence[tuple[int, Mapping[str, Any]]]
"""Updates after which settings change, and these settings."""


def script_of(changes: Iterable[Change]) -> Script:
    """Return the script of the changes of a run, without those that were undone."""
    return [
        (change.update, {k: new for k, (_, new) in change.settings.items()}) for change in changes if not change.undone
    ]


def follow(run: Run, script: Script) -> Iterator[Progress]:
    """Train a run and change its settings as a script says; yield after each update.

    Raises:
        ConfigError: The script is none, or a change is refused.
    """
    steps = parse_script(script)
    left = [(update, settings) for update, settings in steps if update >= run.number]
    while left and left[0][0] == run.number:
        run.change("script", **left.pop(0)[1])
    for progress in run.train():
        while left and left[0][0] == progress.number:
            run.change("script", **left.pop(0)[1])
        yield progress


def parse_script(value: Any) -> list[tuple[int, dict[str, Any]]]:
    """Return a script in the order of its updates; ``value`` may come from YAML or a notebook's parameters."""
    entries = []
    for number, entry in enumerate(value if isinstance(value, list | tuple) else [value], 1):
        if not (isinstance(entry, list | tuple) and len(entry) == 2 and type(entry[0]) is int and entry[0] >= 0):
            raise ConfigError(f"script, entry {number}: got {quote(entry)}; expected [update, {{setting: value}}].")
        if not isinstance(entry[1], Mapping) or not all(isinstance(name, str) for name in entry[1]):
            raise ConfigError(f"script, entry {number}: got {quote(entry[1])}; expected a mapping of names to values.")
        entries.append((entry[0], dict(entry[1])))
    return sorted(entries, key=lambda entry: entry[0])


class Playback:
    """Changes of a script that a trainer makes, each when the one before it is measured; the last one ends training.

    One that falls back here, or for which memory fails, is recorded with its reason.
    """

    def __init__(self, script: Script) -> None:
        self._left = parse_script(script)
        self._due: dict[str, Any] | None = None  # the next change, while it waits for slices to compare it with

    def go_on(self, trainer: "Trainer") -> None:
        """Make the next change if it is due; the thread that trains calls this between two updates."""
        if trainer.comparison is not None:
            return
        if self._left and trainer.run.number >= self._left[0][0] and self._due is None:
            self._due = self._left.pop(0)[1]
            changed_config(trainer.run, self._due)  # what is refused does not wait
        if self._due is None:
            if not self._left:
                trainer.run.stop()
        elif trainer.comparable(self._due):
            settings, self._due = self._due, None
            try:
                trainer.change("script", **settings)
            except Exception as error:  # of any kind: a compiler has classes of its own
                if isinstance(error, ConfigError) and not isinstance(error, FallbackError):
                    raise
                record_failure(trainer.run, settings, "script", error)

    def end(self, trainer: "Trainer") -> None:
        """Record the changes that training did not come to."""
        for settings in [self._due or {}, *(settings for _, settings in self._left)]:
            with suppress(ConfigError):
                record_failure(trainer.run, settings, "script", ConfigError("training ended before it"))


TRAINERS: "WeakSet[Trainer]" = WeakSet()
LOCK = threading.RLock()  # of this set


class Trainer:
    """One training thread of a run: start, pause, step, stop, save and change it from another thread.

    The thread alone touches the run while it is alive; orders wait for the end of the update in progress.
    """

    def __init__(self, run: Run, pairs: int = PAIRS) -> None:
        """Take over a run that nobody else trains; comparisons have so many slices of each side."""
        self.run, self.history, self.pairs = run, History(run), pairs
        self.comparison: Comparison | None = None  # the slices that are being measured
        self.fresh: tuple[int, ...] = ()  # places in ``run.changes`` of those before their first update, which is slow
        self.error: BaseException | None = None  # what ended training
        self._script: Playback | None = None
        self._orders: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._running = False  # whether the thread takes orders
        self._ending = False  # whether it was asked to stop
        self._left: int | None = None  # updates until it pauses; None trains on
        with LOCK:
            TRAINERS.add(self)

    @property
    def alive(self) -> bool:
        return self._running

    @property
    def state(self) -> State:
        if self.alive:
            stopping = self._ending or self.run.stopping
            return "stopping" if stopping else "paused" if self._left == 0 else "training"
        return "failed" if self.error is not None else "complete" if self.run.done else "ready"

    @property
    def values(self) -> dict[str, Any]:
        """Return the settings of the run as they were chosen, while a comparison goes to and fro, too."""
        comparison = self.comparison
        return {**self.run.config.values, **(comparison.new if comparison else {})}

    def start(self) -> None:
        """Train to the target, or go on after a pause; a run that is stopping goes on once it has stopped."""
        self._go(None)

    def step(self, updates: int = 1) -> None:
        """Make some updates, then pause."""
        if updates < 1:
            raise ConfigError(f"step: got updates={updates}; expected at least 1.")
        self._go(updates)

    def play(self, script: Script) -> None:
        """Train with the changes of a script, and stop when the last one is measured.

        A change waits until the one before it is measured, and until there is enough to compare it with, so it may take
        effect after a later update than it says. One that falls back is undone with its reason in ``run.changes``, and
        the script goes on. Whatever ends training ends the script.
        """
        self._go(None, Playback(script))

    def pause(self) -> None:
        """Pause after the update in progress; the folder stays locked."""
        with self._wake:
            if self.alive:
                self._left = 0

    def stop(self, wait: float | None = None) -> None:
        """End training after the update in progress and save a checkpoint; wait at most so many seconds for the end."""
        with self._wake:
            if self.alive and not self._ending:
                self._ending = True
                self.order(self.run.stop)
        if wait is not None:
            self.join(wait)

    def join(self, wait: float | None = None) -> None:
        """Wait until training has ended; raise what ended it."""
        if self._thread is not None and not self._within:
            self._thread.join(wait)
        if not self.alive and self.error is not None:
            raise self.error

    def save(self) -> None:
        self.order(self.run.save).result()

    def change(self, by: str = "python", measure: bool = True, **settings: Any) -> Change | None:
        """Change settings after the update in progress; return what changed.

        With ``measure`` the speed after the change over that before is measured, see ``comparison``.
        """
        return self.ask(settings, by, measure).result()

    def ask(self, settings: Mapping[str, Any], by: str, measure: bool = True) -> "Future[Change | None]":
        """Order a change; the future result is what ``change`` returns or raises."""
        return self.order(lambda: self._change(settings, by, measure))

    def order(self, job: Callable[[], Any]) -> "Future[Any]":
        """Run a job after the update in progress, or now if there is no thread; return its future result."""
        future: Future[Any] = Future()
        with self._wake:
            self._orders.append((job, future))
            if not self.alive:
                self._obey()
            self._wake.notify_all()
        if self._within:  # a job that gives orders would wait for itself
            self._obey()
        return future

    @property
    def _within(self) -> bool:
        return threading.current_thread() is self._thread

    def _go(self, updates: int | None, script: Playback | None = None) -> None:
        while self.state == "stopping" and self._thread is not None and not self._within:
            self._thread.join()
        with self._wake:
            if self.run.done and not self.alive:
                raise ConfigError(
                    f"the run is at its target, update {self.run.number}; set a farther one, such as updates="
                    f"{2 * max(1, self.run.number)}."
                )
            self._left, self._script = updates, self._script if script is None else script
            if not self.alive:
                self.error = None
                self._thread = threading.Thread(target=self._train, name=f"train {self.run.config.preset}", daemon=True)
                self._thread.start()
                self._running = True
            self._wake.notify_all()

    def _train(self) -> None:
        try:
            self.history.begin(self.run)
            for progress in self.run.train():
                self._measure(self.history.add(self.run, progress))
                if self._script is not None:
                    self._script.go_on(self)
                self._attend()
                self.history.skip(self.run)
            if self._script is not None:
                self._script.end(self)
        except BaseException as error:  # of any kind: the thread's own is shown nowhere else
            self.error = error
        finally:
            with self._wake:
                try:
                    self._end_comparison("training ended")
                finally:
                    self._running, self._script = False, None
                    self._obey()
                    self._ending = self.run.stopping = False

    def _attend(self) -> None:
        """Obey the orders that wait, and sleep while the run is paused."""
        with self._wake:
            if self._left:
                self._left -= 1
        while True:
            self._obey()
            with self._wake:
                if self._left != 0 or self.run.stopping or self.run.done:
                    break
                if not self._orders:
                    self._wake.wait()
        if self.run.stopping or self.run.done:  # before the checkpoint, which has the settings after the change then
            self._end_comparison("training ended")

    def _obey(self) -> None:
        """Run the jobs that wait, one after the other, while others may come; one of them may start a new thread."""
        while True:
            with self._wake:
                if not self._orders or (self.alive and not self._within):
                    return
                job, future = self._orders.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as error:  # of any kind: whoever waits for the result must get it
                    future.set_exception(error)

    def _change(self, settings: Mapping[str, Any], by: str, measure: bool) -> Change | None:
        require_usable(self.run, changed_config(self.run, settings))
        self._end_comparison("another change")
        self.history.sample(self.run)
        samples = self._samples
        change = self.run.change(by, **settings)
        if change:
            self.fresh += (len(self.run.changes) - 1,)
        if change and measure and self.alive:
            self.comparison = Comparison(self.run, change, samples, self.pairs)
        return change

    @property
    def _samples(self) -> list[Sample]:
        """The samples with the present settings, without the first update after the last change, which may compile."""
        since = self.run.changes[-1].update if self.run.changes else -1
        return [sample for sample in self.history.samples if sample.update > since]

    def comparable(self, settings: Iterable[str]) -> bool:
        """Return whether a change of these settings can be measured now: to and fro, or by slices before it."""
        return alternates(settings) or len(self._samples) > self.pairs

    def _measure(self, spent: float) -> None:
        """Count an update for the comparison in progress, and go to and fro between its settings."""
        self._see_what_works()
        if (comparison := self.comparison) is None:
            return
        wanted = comparison.count(self.run, spent)
        if wanted is not None:
            self.history.sample(self.run)
            try:
                self.run.change(COMPARISON, **wanted)
            except Exception as error:  # of any kind: training goes on
                self.comparison = None
                self._note(comparison.place, {"stopped": reason_of(error)})
        if self.comparison and comparison.result is not None:
            self.comparison = None
            self._note(comparison.place, comparison.result)

    def _see_what_works(self) -> None:
        """End the comparison where a change was undone, and change back toggles that fell back."""
        comparison, changes = self.comparison, self.run.changes
        watched, self.fresh = self.fresh, ()
        for place in dict.fromkeys((*watched, *([comparison.place] if comparison and comparison.now else ()))):
            settings, undone = changes[place].settings, changes[place].undone
            reasons = [f"{name} fell back: {why}" for name, why in self.run.rt.fell_back.items() if name in settings]
            if (undone or reasons) and comparison and comparison.place == place:
                self.comparison = None
            if reasons and not undone:
                self._note(place, {"stopped": "; ".join(reasons)})
                with suppress(UavlabError):
                    self.run.change("fallback", **{name: old for name, (old, _) in settings.items()})
        if self.comparison and not self.comparison.holds(self.run):
            self._end_comparison("a slice was undone")

    def _end_comparison(self, why: str) -> None:
        """Leave the slices of a comparison that is not over, with the settings after its change."""
        comparison, self.comparison = self.comparison, None
        if comparison is not None:
            with suppress(UavlabError):
                self.run.change(COMPARISON, **comparison.new)
            self._note(comparison.place, {"stopped": why})  # the folder gets the present settings, too

    def _note(self, place: int, measured: Mapping[str, Any]) -> None:
        self.run.changes[place] = replace(self.run.changes[place], measured=measured)
        store_config(self.run)


def stop_all() -> None:
    """Stop every training thread, so that each saves a checkpoint before the process ends."""
    with LOCK:
        alive = [trainer for trainer in TRAINERS if trainer.alive]
    for trainer in alive:
        trainer.stop()
    for trainer in alive:
        with suppress(BaseException):
            trainer.join(PATIENCE)


# Before executors shut down, which batches that are drawn ahead need; they are imported, so this is called first.
getattr(threading, "_register_atexit", atexit.register)(stop_all)


def trainer_of(run: Run) -> Trainer:
    """Return the trainer of a run: the one that it has, so that there is never a second thread, or a new one."""
    with LOCK:
        present = [trainer for trainer in _trainers(run.folder) if trainer.alive]
        present += [trainer for trainer in TRAINERS if trainer.run is run]
        return present[0] if present else Trainer(run)


def trainer_in(folder: Path) -> Trainer:
    """Return the trainer of a folder: one that can go on, or one of the run as its newest checkpoint has it."""
    with LOCK:
        present = [trainer for trainer in _trainers(folder) if trainer.alive or not trainer.run.obstacle]
        return min(present, key=lambda trainer: not trainer.alive) if present else trainer_of(Run.resume(folder))


def _trainers(folder: Path | None) -> list[Trainer]:
    where = folder and folder.resolve()
    return [trainer for trainer in TRAINERS if where and trainer.run.folder and trainer.run.folder.resolve() == where]
