"""A run that trains on a thread of its own, and takes orders between two updates."""

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

from uavlab.core.errors import ConfigError, FallbackError, UavlabError, reason_of
from uavlab.core.text import quote
from uavlab.experiment.change import (
    alternates,
    begins_to_compile,
    changed_config,
    prepare,
    record_failure,
    require_usable,
)
from uavlab.experiment.run import PATIENCE, Run
from uavlab.experiment.run_dir import store_config
from uavlab.experiment.run_state import COMPARISON, Change, Parts, Progress
from uavlab.live.comparison import PAIRS, Comparison, History, Sample

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

    One that falls back here, or whose code or memory fails, is undone with its reason.
    """

    def __init__(self, script: Script) -> None:
        self._left = parse_script(script)
        self._due: dict[str, Any] | None = None  # the next change, while it waits for slices to compare it with
        self._asked: tuple[dict[str, Any], Future[Any]] | None = None  # a change that is not made yet

    def go_on(self, trainer: "Trainer") -> None:
        """Ask for the next change if it is due; the thread that trains calls this between two updates."""
        if trainer.comparison is not None or (self._asked and not self._asked[1].done()):
            return
        if self._asked:
            (settings, future), self._asked = self._asked, None
            try:
                future.result()
            except Exception as error:  # of any kind: a compiler has classes of its own
                if isinstance(error, ConfigError) and not isinstance(error, FallbackError):
                    raise
                record_failure(trainer.run, settings, "script", error)
        if self._left and trainer.run.number >= self._left[0][0] and self._due is None:
            self._due = self._left.pop(0)[1]
            changed_config(trainer.run, self._due)  # what is refused does not wait
        if self._due is None and not self._left:
            trainer.run.stop()
        elif self._due is not None and trainer.comparable(self._due):
            self._asked, self._due = (self._due, trainer.ask(self._due, "script")), None

    def end(self, trainer: "Trainer") -> None:
        """Record the changes that training did not come to, and the last one if it failed."""
        if self._asked and self._asked[1].done() and (error := self._asked[1].exception()) is not None:
            with suppress(ConfigError):
                record_failure(trainer.run, self._asked[0], "script", error)
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
        self.preparing = False  # whether code is compiled for a change, while training goes on
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
        if self._within:  # a job would wait for itself
            return self._change(settings, by, measure)
        return self.ask(settings, by, measure).result()

    def ask(self, settings: Mapping[str, Any], by: str, measure: bool = True) -> "Future[Change | None]":
        """Order a change; where a run begins to compile, another thread does so first, and training goes on meanwhile.

        The future result is what ``change`` returns or raises.
        """
        if not self.alive or self.preparing or not begins_to_compile(self.run, settings):
            return self.order(lambda: self._change(settings, by, measure))
        future: Future[Change | None] = Future()
        future.set_running_or_notify_cancel()
        self.preparing = True
        threading.Thread(target=self._prepare, args=(settings, by, measure, future), daemon=True).start()
        return future

    def _prepare(self, settings: Mapping[str, Any], by: str, measure: bool, future: "Future[Change | None]") -> None:
        began = time.monotonic()
        try:
            prepared = prepare(self.run, settings), time.monotonic() - began
            self.preparing = False
            future.set_result(self.order(lambda: self._change(settings, by, measure, prepared)).result())
        except BaseException as error:  # of any kind: whoever waits for the result must get it
            future.set_exception(error)
        finally:
            self.preparing = False

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

    def _change(
        self, settings: Mapping[str, Any], by: str, measure: bool, prepared: tuple[Parts, float] | None = None
    ) -> Change | None:
        """Change settings; ``prepared`` are compiled parts with them, and how long compiling took (s)."""
        require_usable(self.run, changed_config(self.run, settings))
        self._end_comparison("another change")
        self.history.sample(self.run)
        samples = self._samples
        if prepared:
            self.run.spare = prepared[0]
        change = self.run.change(by, **settings)
        if change:
            self.fresh += (len(self.run.changes) - 1,)
        if change and measure and self.alive:
            self.comparison = Comparison(self.run, change, samples, self.pairs)
            self.comparison.warm_up = prepared and prepared[1]
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
