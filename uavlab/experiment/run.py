"""One training run, in memory or in a folder, as the command line and the notebooks use it.

A folder holds ``config.json`` (every setting), ``run.json`` (status and result), ``metrics.jsonl``,
TensorBoard's files, ``checkpoints/``, and ``divergence.json`` if a number was not finite.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from inspect import GEN_CLOSED, getgeneratorstate
from pathlib import Path
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch

from uavlab.core.cards import Html, card, notes, table
from uavlab.core.errors import ConfigError, DivergedError, ResourceError, reason_of
from uavlab.core.text import one_line
from uavlab.core.types import Update
from uavlab.experiment import build, change, rank_runs, resume
from uavlab.experiment.config import Config
from uavlab.experiment.diagnostics import SCORE, check_alarms, new_findings
from uavlab.experiment.export import export
from uavlab.experiment.instruments import Instruments
from uavlab.experiment.policy import TeamPolicy, TrainedPolicy, choose
from uavlab.experiment.run_dir import (
    lock_run_dir,
    rank_folder,
    read_run_files,
    record_divergence,
    require_empty,
    write_config,
    write_status,
)
from uavlab.experiment.run_state import Change, Progress, RunState, build_parts, digest, not_exact
from uavlab.experiment.schedules import Which, mean_scores, ordered_scores
from uavlab.experiment.signals import defer_interrupt
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.storage import checkpoint
from uavlab.training import check_state, training

Steps = Generator[Progress, None, None]

PATIENCE = 4.0  # seconds for which the end of the process waits for a checkpoint; a notebook's server kills after 5
OPEN: "WeakKeyDictionary[RunState, ReferenceType[Steps]]" = WeakKeyDictionary()  # weak, so that leaving a loop ends it


class Run(RunState):
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
        super().__init__(build_parts(config, ranks), folder)
        self.instruments = Instruments()
        self._update_interrupted = False  # an update or evaluation is in progress, or was interrupted
        if folder is not None:
            with ranks.in_turn(first=True), lock_run_dir(folder, new=True):
                write_config(folder, config)
                write_status(self, "new")

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
        return resume.resume_run(lambda config: cls(config, ranks=ranks), folder, changes, fresh_replay, ranks)

    def __repr__(self) -> str:
        where = self.folder or "memory"
        return one_line(f"<Run of {self.config.preset}: {self.status}, update {self.number}, in {where}>")

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

    def train(self) -> Generator[Progress, None, None]:
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

    def _train(self) -> Generator[Progress, None, None]:
        with lock_run_dir(self.folder):
            self._begin()
            try:
                write_status(self, "running")
                with build.enough_memory():
                    yield from self._updates()
            except (KeyboardInterrupt, SystemExit) as error:
                if self.status == "running":
                    write_status(self, "interrupted")
                if self.folder:
                    error.add_note(f"uavlab.resume({str(self.folder)!r}) goes on from update {self.number}.")
                raise
            except Exception as error:
                self._fail(error)
                raise
            finally:
                self.stopping = self.all_stop = False
                self.recorder.close()

    def _updates(self) -> Generator[Progress, None, None]:
        late = 0.0  # seconds of scores and saves, which count from the next update on: a checkpoint cannot hold its own
        try:
            while not rank_runs.ends(self):
                parts = self.parts  # others after a change of settings
                steps = training(parts.source, parts.learner, parts.rng, parts.rt, self.number)
                if parts.rt.monitor is not None:
                    parts.rt.monitor.reset()  # it times this thread
                with parts.rt.scope():
                    while parts is self.parts and not rank_runs.ends(self):
                        began, before, self.thread = time.monotonic(), self.seconds + late, threading.current_thread()
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

    def _after(self, update: Update) -> Progress:
        """Log, score and save after an update, where one of them is due."""
        settings, number = self.config.run, self.number
        saving = number % settings.checkpoint_every == 0
        metrics: dict[str, float] = {}
        seeds: dict[str, list[float]] = {}
        if number % settings.log_every == 0 or number == 1 or saving:
            self.rt.read(number)
            metrics, seeds = self.instruments.log({**update.metrics, **self.source.figures()}, self)
        figures: dict[str, list[float]] = {}
        if number % settings.evaluate_every == 0:
            figures = self.validate()
        elif self.done and torch.isinf(self.best_score).any() and not self.schedules.begun:  # host sync
            figures, self.parts.forced = self.validate(forced=True), True
        seeds |= {f"{SCORE}{name}": values for name, values in figures.items()}
        score = {f"{SCORE}{name}": sum(values) / len(values) for name, values in figures.items()}
        self._update_interrupted = False
        if metrics or score:
            self.recorder.append(number, self.seconds, {**metrics, **score}, seeds)
            alarms, stops = check_alarms(self.recorder.rows, self.config, self.schedules.since)
            self.alarms += alarms
            self.stopping |= stops
        if score:
            rows = [row for row in self.recorder.rows if row["update"] > max(self.schedules.since)]
            self.symptoms += new_findings(rows, self.config, self.symptoms)
        if saving or self.done:
            self.save()
            write_status(self, "running")  # keeps the file up to date during the run and after a kill
        return Progress(number, settings.updates, self.seconds, metrics or None, score or None, figures or None)

    def validate(self, forced: bool = False) -> dict[str, list[float]]:
        """Evaluate the policy of each seed, keep it if it is the best so far, and judge the seed unless ``forced``."""
        began = time.perf_counter()
        check_state(self.source, self.learner, self.rt, self.number)
        env, settings = self.schedules.evaluation, self.config.run
        how = settings.evaluate_episodes, settings.evaluate_mean_action, build.VALIDATION
        policy = self.learner.policy(env.spec)
        figures = self.config.task.evaluation.figures(self.config, env, policy, self.rng, *how)
        figures = {name: self.rt.ranks.from_first(value) for name, value in figures.items()}  # so that all decide alike
        newest, number = self.learner.parameters(), self.number
        scores, counts = mean_scores(figures, [env.score]), self.schedules.counts.to(self.rt.device)
        better = self.best_team.consider(scores, newest, number, counts)
        if self.best_groups is not None:
            self.best_groups.consider(mean_scores(figures, ordered_scores(env)), newest, number, counts)
        bests = self.best_team, self.best_groups
        moved = not forced and self.schedules.judge(figures, scores[:, 0], number, bests)
        self.schedules.apply(self.source, self.learner)
        fresh = moved or not counts.all() or better  # below its highest stage a seed has no best one
        self.parts.evals_since_best = 0 if fresh else self.parts.evals_since_best + 1  # host sync
        self.score_seconds = time.perf_counter() - began
        return {name: value.mean(1).tolist() for name, value in figures.items()}

    def _begin(self) -> None:
        if reason := self.obstacle:
            raise ConfigError(reason)
        if self.folder:
            if not self.config_stored:
                write_config(self.folder, self.config)
                self.files_seen = read_run_files(self.folder)
            self.config_stored = True
            self.recorder.rewind()
            (self.folder / "divergence.json").unlink(missing_ok=True)
        self.digest = ""

    def _end(self) -> None:
        with defer_interrupt():
            self.save()
            self.digest = digest(self)
            write_status(self, "complete" if self.done else "interrupted")

    def _fail(self, error: BaseException) -> None:
        """Record an error in the folder; a failure to write must not hide the error itself."""
        if isinstance(error, DivergedError):
            record_divergence(error, self.config, self.folder, self.last)
        with suppress(ResourceError):
            write_status(self, "diverged" if isinstance(error, DivergedError) else "failed", reason_of(error))

    @property
    def obstacle(self) -> str:
        """Why training cannot go on from memory between two updates; empty if it can."""
        if self._update_interrupted:
            return (
                "training: an update was cut in half, so there is no state to go on from in memory; go on from the "
                "last checkpoint with Run.resume(folder)."
            )
        if self.folder and read_run_files(self.folder) != self.files_seen:
            return f"{self.folder}: another process went on with this run; continue with Run.resume."
        return ""

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
        self.last, self.last_bytes = resume.save(self, self.folder / "checkpoints")
        self.linkable = True
        self.pauses.append(time.perf_counter() - began)

    def _repr_html_(self) -> str:
        """Return state, last scores, why the run is not exact, what fell back, and symptoms."""
        settings, seeds, rt, machine = self.config.run, self.rng.seeds, self.rt, self.parts.machine
        updates = "" if settings.updates is None else f" of {settings.updates:,}"
        minutes = "" if settings.minutes is None else f" of {60 * settings.minutes:,.0f}"
        facts = {
            "environment": type(self.config.env).__name__,
            "learner": self.config.task.learner,
            "status": self.status,
            "update": f"{self.number:,}{updates}",
            "seconds": f"{self.seconds:,.1f}{minutes}",
            "seeds": seeds[0] if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
            "digest": self.digest[:12],
            "device": f"{rt.device}, {machine['device']}",
            "threads": machine["threads"],
            "folder": self.folder or "none, in memory",
        }
        texts = [f"Not exact: {reason}" for reason in not_exact(self)]
        texts += [f"Fell back: {name}, {reason}" for name, reason in rt.fell_back.items()]
        texts += [f"Note: {name}, {text}" for name, text in rt.notes.items()]
        texts += [f"Symptom at update {finding.update}: {finding.text}" for finding in self.symptoms]
        return card(f"Run of {self.config.preset}", facts, notes(texts), self._last_scores())

    def _last_scores(self) -> Html:
        """Return the last score of each metric: its mean over seeds, and the least and largest of several seeds."""
        last = {name: row for row in self.recorder.rows for name in row if name.startswith(SCORE)}
        units = self.config.task.evaluation.units(self.config.evaluation) if last else {}
        rows = []
        for name, row in last.items():
            metric, seeds = name.removeprefix(SCORE), row.get("each", {}).get(name, [])
            ends = f"{min(seeds):.4g} to {max(seeds):.4g}" if seeds else ""
            rows.append((metric, f"{row[name]:.4g}", ends, units.get(metric, ""), f"{row['update']:,}"))
        return table(("score", "mean", "over seeds", "unit", "at update"), rows)


def open_steps(run: RunState, steps: Steps) -> None:
    """Close the generator that a run left suspended; the end of the process closes this one."""
    if (left := OPEN.get(run)) and (suspended := left()):
        suspended.close()
    OPEN[run], run.thread = ref(steps), None


def end_open_runs() -> None:
    """Close all suspended generators of runs; those in threads of their own stop after the update in progress.

    Threads for which the process waits train on. A run that cannot be saved is named on stderr.
    """
    waits = [(run, run.thread, steps) for run, open_one in list(OPEN.items()) if (steps := open_one()) and run.thread]
    here = threading.current_thread()
    beside = {run: thread for run, thread, _ in waits if thread is not here and thread.is_alive()}
    until = time.monotonic() + (0.0 if all(run.stopping for run in beside) else PATIENCE)  # asked once before
    for run, thread in beside.items():
        if thread.daemon:
            run.stop()
    for run, _, steps in waits:
        if run in beside and not beside[run].daemon:
            continue
        while run in beside and getgeneratorstate(steps) != GEN_CLOSED and time.monotonic() < until:
            time.sleep(0.01)
        try:
            steps.close()
        except Exception as error:  # of any kind, also of an update that takes longer: the other runs are saved
            place = run.folder or run.config.preset
            print(f"{place}: the run was not saved at the end of the process: {reason_of(error)}", file=sys.stderr)


# Before executors shut down, which batches that are drawn ahead need; and after the threads for which Python waits.
for register in (getattr(threading, "_register_atexit", atexit.register), atexit.register):
    register(end_open_runs)
os.register_at_fork(after_in_child=OPEN.clear)  # the runs are those of the parent
