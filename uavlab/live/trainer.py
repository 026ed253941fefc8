"""A run that trains on a thread of its own, and takes orders between two updates."""

import atexit
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal
from weakref import WeakSet

from uavlab.core.errors import ConfigError, UavlabError
from uavlab.experiment.change import changed_config
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Change, Progress
from uavlab.live.comparison import Comparison
from uavlab.live.history import History

State = Literal["ready", "training", "paused", "stopping", "complete", "failed"]
PATIENCE = 4.0  # seconds for which the end of the process waits for a checkpoint; a notebook's server kills after 5

TRAINERS: "WeakSet[Trainer]" = WeakSet()


class Trainer:
    """One training thread of a run: start, pause, step, stop, save and change it from another thread.

    The thread alone touches the run while it is alive; orders wait for the end of the update in progress.

    Attributes:
        run: The run.
        history: Its speed so far.
        comparison: The slices that are being measured; None if there are none.
        fresh: A change after which no update was made yet, which may take long where code is compiled.
        error: What ended training; None if nothing did.
    """

    def __init__(self, run: Run) -> None:
        """Take over a run that nobody else trains."""
        self.run, self.history = run, History(run)
        self.comparison: Comparison | None = None
        self.fresh: Change | None = None
        self.error: BaseException | None = None
        self.last: Progress | None = None
        self._orders: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._running = False  # whether the thread takes orders
        self._left: int | None = None  # updates until it pauses; None trains on
        TRAINERS.add(self)

    @property
    def alive(self) -> bool:
        """Return whether the thread trains, or is paused."""
        return self._running

    @property
    def state(self) -> State:
        """Return what the run is doing."""
        if self.alive:
            return "stopping" if self.run.stopping else "paused" if self._left == 0 else "training"
        return "failed" if self.error is not None else "complete" if self.run.done else "ready"

    @property
    def values(self) -> dict[str, Any]:
        """Return the settings of the run; while a comparison goes to and fro, those after its change."""
        comparison = self.comparison
        return {**self.run.config.values, **(comparison.new if comparison else {})}

    def start(self) -> None:
        """Train to the target, or go on after a pause.

        Raises:
            ConfigError: The run is at its target.
        """
        self._go(None)

    def step(self, updates: int = 1) -> None:
        """Make some updates, then pause.

        Raises:
            ConfigError: The run is at its target, or ``updates`` is less than 1.
        """
        if updates < 1:
            raise ConfigError(f"step: got updates={updates}; expected at least 1.")
        self._go(updates)

    def pause(self) -> None:
        """Pause after the update in progress; the folder stays locked."""
        with self._wake:
            if self.alive:
                self._left = 0

    def stop(self, wait: float | None = None) -> None:
        """End training after the update in progress and save a checkpoint; wait at most so many seconds for the end."""
        with self._wake:
            if self.alive:
                self.run.stop()
                self._wake.notify_all()
        if wait is not None:
            self.join(wait)

    def join(self, wait: float | None = None) -> None:
        """Wait until training has ended; raise what ended it.

        Raises:
            UavlabError: Training failed.
        """
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(wait)
        if not self.alive and self.error is not None:
            raise self.error

    def save(self) -> None:
        """Write a checkpoint.

        Raises:
            ResourceError: It cannot be written.
        """
        self.order(self.run.save).result()

    def change(self, by: str = "python", measure: bool = True, **settings: Any) -> Change | None:
        """Change settings after the update in progress; return what changed.

        With ``measure`` the speed after the change over that before is measured, see ``comparison``.

        Raises:
            ConfigError, ResourceError: As ``Run.change``; the run goes on as it was.
        """
        return self.order(lambda: self._change(settings, by, measure)).result()

    def order(self, job: Callable[[], Any]) -> "Future[Any]":
        """Run a job after the update in progress, or now if there is no thread; return its future result."""
        future: Future[Any] = Future()
        with self._wake:
            self._orders.append((job, future))
            if not self.alive:
                self._obey()
            self._wake.notify_all()
        return future

    def _go(self, updates: int | None) -> None:
        with self._wake:
            if self.run.done and not self.alive:
                raise ConfigError(
                    f"the run is at its target, update {self.run.number}; set a farther one, such as updates="
                    f"{2 * max(1, self.run.number)}."
                )
            self._left = updates
            if not self.alive:
                self.error, self._running = None, True
                self._thread = threading.Thread(target=self._train, name=f"train {self.run.config.preset}", daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def _train(self) -> None:
        try:
            for progress in self.run.train():
                self.last = progress
                self._measure(self.history.add(self.run, progress))
                self._attend()
        except BaseException as error:  # of any kind: the thread's own is shown nowhere else
            self.error = error
        finally:
            with self._wake:
                self._end_comparison("training ended")
                self._obey()
                self._running = False

    def _attend(self) -> None:
        """Obey the orders that wait, and sleep while the run is paused."""
        with self._wake:
            if self._left:
                self._left -= 1
            self._obey()
            while self._left == 0 and not (self.run.stopping or self.run.done):
                self._wake.wait()
                self._obey()

    def _obey(self) -> None:
        while self._orders:
            job, future = self._orders.popleft()
            try:
                future.set_result(job())
            except Exception as error:
                future.set_exception(error)

    def _change(self, settings: Mapping[str, Any], by: str, measure: bool) -> Change | None:
        changed_config(self.run, settings)  # a change that is refused ends no comparison
        self._end_comparison("another change")
        self.history.sample(self.run)
        samples = list(self.history.samples)
        change = self.run.change(by, **settings)
        self.fresh = change if self.alive else None
        if change and measure and self.alive:
            self.comparison = Comparison(self.run, change, samples)
        return change

    def _measure(self, spent: float) -> None:
        """Count an update for the comparison in progress, and go to and fro between its settings."""
        if self.fresh is not None:
            self._see_whether_it_works(self.fresh)
        if (comparison := self.comparison) is None:
            return
        wanted = comparison.count(self.run, spent)
        try:
            if wanted is not None:
                self.history.sample(self.run)
                self.run.change("comparison", **wanted)
        except UavlabError as error:
            self._note(comparison.change, {"stopped": str(error)})
            self.comparison = None
        if comparison.result is not None:
            self._note(comparison.change, comparison.result)
            self.comparison = None

    def _see_whether_it_works(self, change: Change) -> None:
        """After the first update, end a change that was undone, and change back toggles that fell back."""
        self.fresh = None
        reasons = [f"{name} fell back: {why}" for name, why in self.run.rt.fell_back.items() if name in change.settings]
        if not reasons and any(each is change for each in self.run.changes):
            return
        self.comparison = None
        if reasons:
            self._note(change, {"stopped": "; ".join(reasons)})
            with suppress(UavlabError):
                self.run.change("fallback", **{name: old for name, (old, _) in change.settings.items()})

    def _end_comparison(self, why: str) -> None:
        """Leave the slices of a comparison that is not over, with the settings after its change."""
        comparison, self.comparison = self.comparison, None
        if comparison is not None:
            self._note(comparison.change, {"stopped": why})
            with suppress(UavlabError):
                self.run.change("comparison", **comparison.new)

    def _note(self, change: Change, measured: Mapping[str, Any]) -> None:
        """Add what was measured to the record of a change."""
        at = next((i for i, each in enumerate(self.run.changes) if each is change), None)
        if at is not None:
            self.run.changes[at] = replace(change, measured=measured)
            self.run.store_config()


def trainer_of(run: Run) -> Trainer:
    """Return the trainer of a run: the one that it has, so that there is never a second thread, or a new one."""
    for trainer in TRAINERS:
        if trainer.run is run or (trainer.alive and run.folder and trainer.run.folder == run.folder):
            return trainer
    return Trainer(run)


@atexit.register
def stop_all() -> None:
    """Stop every training thread, so that each saves a checkpoint before the process ends."""
    alive = [trainer for trainer in TRAINERS if trainer.alive]
    for trainer in alive:
        trainer.stop()
    for trainer in alive:
        with suppress(BaseException):
            trainer.join(PATIENCE)
