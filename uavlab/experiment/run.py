"""One training run, in memory or in a folder, as the command line and the notebooks use it.

A folder holds ``config.json`` (every setting), ``run.json`` (status and result), ``metrics.jsonl``,
TensorBoard's files, ``checkpoints/``, and ``divergence.json`` if a number was not finite.
"""

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread, current_thread
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError, DivergedError, ResourceError, reason_of
from uavlab.core.installation import invocation
from uavlab.core.types import Update
from uavlab.experiment import build, change, rank_runs, resume, run_state, symptoms
from uavlab.experiment.best import Which, best_policies, validate
from uavlab.experiment.cards import run_card, run_line
from uavlab.experiment.config import Config
from uavlab.experiment.export import export
from uavlab.experiment.instruments import Instruments
from uavlab.experiment.policy import TeamPolicy, TrainedPolicy, choose
from uavlab.experiment.process_end import open_steps
from uavlab.experiment.run_dir import (
    STATUS,
    lock_run_dir,
    rank_folder,
    read_run_files,
    record_divergence,
    require_empty,
    write_config,
)
from uavlab.experiment.run_state import TIMED, Change, Progress
from uavlab.experiment.schedules import Schedules
from uavlab.experiment.signals import defer_interrupt
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.storage import checkpoint
from uavlab.storage.files import reserve_space, write_json, write_last
from uavlab.storage.machine import describe
from uavlab.storage.metrics_log import Recorder
from uavlab.training import check_state, training


class Run:
    """Settings, source, learner and the best policy so far of one training run.

    >>> run.status, run.number, run.rows()[0]["seed"]
    ('complete', 2, 0)
    """

    def __init__(self, config: Config, folder: Path | None = None, ranks: Ranks = ALONE) -> None:
        """Build learner and source, and create the folder if one is given; ``ranks`` train the run together.

        Raises:
            ConfigError: The folder is not empty or in use, or the settings do not fit this machine.
        """
        if folder is not None:
            folder = require_empty(rank_folder(folder, ranks.rank), run=True)
        self.config, self.command = config, invocation()
        with build.enough_memory():
            self.rt, self.rng, self.learner, self.source = build.assemble(config, ranks=ranks)
        with self.rt.scope():
            self.machine = describe(self.rt.device)
        self.number, self.seconds, self.stopping = 0, 0.0, False
        self.all_stop = False  # whether a rank was asked to end before the last update, as all ranks know
        self.status, self.digest = "new", ""
        self.not_exact_reasons = [TIMED] if config.run.minutes else []  # why it cannot be repeated bit for bit
        self.forced = False  # whether the last score was taken because the run ended, not because one was due
        self.pauses: list[float] = []  # seconds that each save took
        self.evals_since_best = 0  # evaluations since the best score
        self.symptoms: list[symptoms.Finding] = []  # what ails it
        self.last_bytes, self.score_seconds = 0, 0.0  # bytes of the last save, seconds of the last evaluation
        self.last: Path | None = None  # the last checkpoint
        self.linkable = False  # whether the next checkpoint may link segments of replay from the last one
        self.instruments = Instruments()
        self.changes: list[Change] = []  # of settings between updates
        self.spare: Run | None = None  # the parts before the last change
        self._update_interrupted = False  # an update or evaluation is in progress, or was interrupted
        self.thread: Thread | None = None  # of the last update since ``train``
        self._config_stored = True  # whether the folder holds the settings of this object
        self._files_seen = b""  # settings and status in the folder as this object wrote them
        self.best_team, self.best_groups = best_policies(config, self.learner.parameters())
        self.schedules = Schedules(config, self.rng.seeds, self.source, self.learner, ranks.size)
        self.folder, self.recorder = folder, Recorder(folder, run_state.about(self))
        if folder is not None:
            with ranks.in_turn(first=True), lock_run_dir(folder, new=True):
                write_config(folder, config)
                self._write_status("new")

    @classmethod
    def resume(
        cls, folder: Path, *changes: Mapping[str, Any], fresh_replay: bool = False, ranks: Ranks = ALONE
    ) -> "Run":
        """Continue from the newest intact checkpoint in ``folder``, or from the start if it has none.

        Args:
            folder: Folder of the run.
            changes: Layers of settings to change; each must be declared as resumable.
            fresh_replay: Start with empty replay, which is filled by random actions before the next update.
            ranks: Those that train it from now on.

        Raises:
            FileError: The folder is no run, no checkpoint in it is intact, or it is an exported copy.
            ConfigError: Another process uses the folder, a change does not fit the saved state or sets no later target,
                or the run has no replay to fill.
        """
        return resume.resume_run(cls, folder, changes, fresh_replay, ranks)

    __repr__ = run_line
    _repr_html_ = run_card

    @property
    def best(self) -> Float[Tensor, "R K P"]:
        """Return the parameters with each seed's best score; for seeds without a score, the newest."""
        return self.best_team.or_newest(self.learner.parameters())

    @property
    def best_score(self) -> Float[Tensor, " R"]:
        """Return the best score of each seed; -inf before the first evaluation."""
        return self.best_team.score[:, 0]

    def trained(self, which: Which = "best") -> TrainedPolicy:
        """Return the best policy of each seed, or another one (see ``uavlab.load``); before any score, the newest.

        Raises:
            ConfigError: The run does not choose policies by group.
        """
        return choose(self, which)

    def policy(self, env: Any = None, run: int = 0) -> TeamPolicy:
        """Return the best policy of one seed as a function of observations; see ``TrainedPolicy.policy``."""
        return self.trained().policy(env, run)

    def export(self, out: str | Path, run: int = 0, agent: int | None = None) -> Path:
        """Write the best policy of one seed as a file, or those of all as a folder; see ``uavlab.export``."""
        return export(self.trained(), Path(out), run, agent)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each logged update and seed: its numbers, metrics and figures of evaluations (``eval/``)."""
        return self.recorder.by_seed(self.rng.seeds)

    @property
    def done(self) -> bool:
        """Return whether the run is at its target of updates or minutes, or out of patience."""
        settings = self.config.run
        if settings.patience is not None and self.evals_since_best >= settings.patience:
            return True
        updates_reached = settings.updates is not None and self.number >= settings.updates
        return updates_reached or (settings.minutes is not None and self.seconds >= 60 * settings.minutes)

    def stop(self) -> None:
        """Ask the run to end after the update in progress."""
        self.stopping = True

    def train(self) -> Generator["Progress", None, None]:
        """Train to the target, yielding after each update; the folder records how training ended.

        ``stop()``, closing the generator, the end of the process and Ctrl-C (a notebook's Interrupt) end training after
        the update in progress and save a checkpoint. The next ``train()`` closes a suspended generator and continues.
        After an exit in the middle of an update, only the last checkpoint can be resumed.

        Raises:
            ConfigError: An earlier update was interrupted, or another process uses the folder or continued the run.
            DivergedError: A number is not finite.
            ResourceError: Memory or disk space does not suffice.
        """
        steps = self._train()
        open_steps(self, steps)
        return steps

    __iter__ = train

    def _train(self) -> Generator["Progress", None, None]:
        with lock_run_dir(self.folder), reserve_space(self.folder and self.folder / STATUS):
            self._begin()
            try:
                self._write_status("running")
                with build.enough_memory():
                    yield from self._updates()
            except (KeyboardInterrupt, SystemExit) as error:
                if self.status == "running":
                    self._write_status("interrupted")
                if self.folder:
                    error.add_note(f"uavlab.resume({str(self.folder)!r}) goes on from update {self.number}.")
                raise
            except Exception as error:
                self._fail(error)
                raise
            finally:
                self.stopping = self.all_stop = False
                self.recorder.close()

    @property
    def obstacle(self) -> str:
        """Why training cannot go on from memory between two updates; empty if it can."""
        if self._update_interrupted:
            return (
                "training: an update was cut in half, so there is no state to go on from in memory; go on from the "
                "last checkpoint with Run.resume(folder)."
            )
        if self.folder and read_run_files(self.folder) != self._files_seen:
            return f"{self.folder}: another process went on with this run; continue with Run.resume."
        return ""

    def _begin(self) -> None:
        if reason := self.obstacle:
            raise ConfigError(reason)
        if self.folder:
            if not self._config_stored:
                write_config(self.folder, self.config)
                self._files_seen = read_run_files(self.folder)
            self._config_stored = True
            self.recorder.rewind()
            (self.folder / "divergence.json").unlink(missing_ok=True)
        self.digest = ""

    def _updates(self) -> Generator["Progress", None, None]:
        late = 0.0  # seconds of scores and saves, which count from the next update on: a checkpoint cannot hold its own
        try:
            while not rank_runs.ends(self):
                rt = self.rt  # another one after a change of settings
                steps = training(self.source, self.learner, self.rng, rt, self.number)
                if rt.monitor is not None:
                    rt.monitor.reset()  # it times this thread
                with rt.scope():
                    while rt is self.rt and not rank_runs.ends(self):
                        began, before, self.thread = time.monotonic(), self.seconds + late, current_thread()
                        with defer_interrupt():
                            self._update_interrupted = True
                            if (update := self._update(steps)) is None:
                                break
                            rank_runs.agree(self, before + time.monotonic() - began)
                            progress = self._after(update)
                            late = before + time.monotonic() - began - self.seconds
                        yield progress
        except (GeneratorExit, KeyboardInterrupt):
            if not self._update_interrupted:
                self._end()
            raise
        self._end()

    def _update(self, steps: Iterator[tuple[int, Update]]) -> Update | None:
        """Make an update; None if it is the first one after a change of settings and fails, so that this is undone."""
        self.schedules.warm_up(self.source, self.learner, self.number)
        try:
            self.number, update = self.instruments.next_update(self, steps)
        except Exception as error:
            if not change.undo(self, error):
                raise
            self._update_interrupted = False
            return None
        return update

    def _end(self) -> None:
        with defer_interrupt():
            self.save()
            self.digest = run_state.digest(self)
            self._write_status("complete" if self.done else "interrupted")

    def _fail(self, error: BaseException) -> None:
        """Record an error in the folder; a failure to write must not hide the error itself."""
        if isinstance(error, DivergedError):
            record_divergence(error, self.config, self.folder, self.last)
        with suppress(ResourceError):
            self._write_status("diverged" if isinstance(error, DivergedError) else "failed", reason_of(error))

    def change(self, by: str = "python", /, **settings: Any) -> Change | None:
        """Change settings between two updates, as ``resume`` may, with the same bits; return what changed.

        A change whose first update fails is undone, and the run goes on as it was; see ``changes``.

        Raises:
            ConfigError: A setting is unknown or out of range, cannot change within a run, or cannot be used here; or an
                update is in progress. The run is as it was.
            ResourceError: Memory does not suffice. The run is as it was.
        """
        if self._update_interrupted:
            raise ConfigError("change: an update is in progress; change settings between updates.")
        with defer_interrupt(), build.enough_memory():
            return change.change(self, settings, by)

    def store_config(self) -> None:
        """Write settings and changes, at once while the run trains, else when training begins."""
        self._config_stored = False
        if self.folder and self.status == "running":
            write_config(self.folder, self.config)
            self._write_status("running")
            self._config_stored = True

    def save(self) -> None:
        """Write a checkpoint of this update unless it exists; without a folder, do nothing.

        Raises:
            DivergedError: A number in the state is not finite; nothing is written.
            ResourceError: The checkpoint cannot be written.
        """
        saved = self.last and self.linkable and self.last.name == checkpoint.folder_name(self.number)
        if self.folder is None or not self.rt.ranks.any(not saved):
            return
        began = time.perf_counter()
        check_state(self.source, self.learner, self.rt, self.number)
        self.recorder.sync()
        self.last, self.last_bytes = run_state.save(self, self.folder / "checkpoints")
        self.linkable = True
        self.pauses.append(time.perf_counter() - began)

    def _after(self, update: Update) -> Progress:
        settings = self.config.run
        metrics = score = each = None
        seeds: dict[str, list[float]] = {}
        saving = self.number % settings.checkpoint_every == 0
        if self.number % settings.log_every == 0 or self.number == 1 or saving:
            self.rt.read(self.number)
            metrics, seeds = self.instruments.log({**update.metrics, **self.source.figures()}, self)
        if self.number % settings.evaluate_every == 0:
            each = validate(self)
        elif self.done and torch.isinf(self.best_score).any() and not self.schedules.begun:  # host sync
            each, self.forced = validate(self, forced=True), True
        if each:
            score = {f"eval/{name}": sum(values) / len(values) for name, values in each.items()}
            seeds |= {f"eval/{name}": values for name, values in each.items()}
        self._update_interrupted = False
        if metrics or score:
            self.recorder.append(self.number, self.seconds, {**(metrics or {}), **(score or {})}, seeds)
            self.stopping |= self.schedules.check_alarms(self.recorder.rows, self.number)
        if score:
            rows = [row for row in self.recorder.rows if row["update"] > max(self.schedules.since)]
            self.symptoms = symptoms.warn(rows, self.config, self.symptoms)
        if saving or self.done:
            self.save()
            self._write_status("running")  # keeps the file up to date during the run and after a kill
        return Progress(self.number, settings.updates, self.seconds, metrics, score, each)

    def _write_status(self, status: str, reason: str = "") -> None:
        self.status = status
        if self.folder is None:
            return
        record = run_state.status_record(self, reason)
        write = write_json if status in ("new", "running") else write_last  # the last one even on a full disk
        with defer_interrupt():  # between the two, ``_files_seen`` would not match this object's own file
            write(self.folder / STATUS, record)
            self._files_seen = read_run_files(self.folder)
