"""One training run, in memory or in a folder: what the command line and the notebooks both hold the reins of.

A folder holds ``config.json`` (every setting), ``run.json`` (how the run stands or ended), ``metrics.jsonl``,
``tensorboard/``, ``checkpoints/``, and ``divergence.json`` if a number was not finite.
"""

import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError, DivergedError, ResourceError, UavlabError
from uavlab.core.types import Update
from uavlab.experiment import build, run_state
from uavlab.experiment.config import Config
from uavlab.experiment.run_dir import claimed, read_command, read_config, require_empty, said, write_config
from uavlab.experiment.signals import uncut
from uavlab.runtime.toggles import changes
from uavlab.storage import checkpoint
from uavlab.storage.files import write_json
from uavlab.storage.machine import describe, invocation, program
from uavlab.storage.metrics_log import Recorder
from uavlab.train import check_state, training

TIMED = "minutes: how many updates fit into them depends on the machine"


@dataclass(frozen=True)
class Progress:
    """Where a run stands after an update; the rest is there when it was read anew.

    ``score`` is the mean over runs, ``each`` what each of them reached.
    """

    number: int
    target: int | None
    seconds: float
    metrics: dict[str, float] | None = None
    score: dict[str, float] | None = None
    each: dict[str, list[float]] | None = None


class Run:
    """Settings, source, learner and the policy kept so far."""

    def __init__(self, config: Config, folder: Path | None = None) -> None:
        """Build everything; with a folder, reserve it.

        Raises:
            ConfigError: The folder is not empty or in use, or the settings do not fit this machine.
        """
        if folder is not None:
            require_empty(folder)
        self.config, self.command = config, invocation()
        self.rt = build.runtime(config.run, config.toggles)
        self.rng = build.streams(config.run, self.rt.device)
        with self.rt.scope(), build.enough_memory():
            self.machine = describe(self.rt.device)
            self.learner, self.source = config.task.build(config, self.rng, self.rt)
        self.number, self.seconds, self.stopping = 0, 0.0, False
        self.status, self.reason, self.digest = "new", "", ""
        self.lifted: list[str] = [TIMED] if config.run.minutes else []  # why the run is not exactly repeatable
        self.forced = False  # it was scored because it ended, not because a score was due
        self.pauses: list[float] = []  # seconds that each save took
        self.written = 0  # bytes of the last one
        self.stale = 0  # scores since one was better
        self.scored = 0.0  # seconds that the last score took
        self.last: Path | None = None  # the last good checkpoint
        self.linkable = False  # replay in memory goes on from that one's
        self._cut = False  # an update or a score is in progress, or was broken off
        self._steps: Callable[[], Generator[Progress, None, None] | None] = lambda: None
        self._seen = b""  # what the folder said when this object last wrote it
        self.kept: Float[Tensor, "R K P"] = self.learner.parameters()
        self.best_score = torch.full((config.run.runs,), -math.inf, device=self.rt.device)
        self.folder: Path | None = None
        self.recorder = Recorder(None)
        if folder is not None:
            with claimed(folder, new=True):
                self.folder, self.recorder = folder, Recorder(folder)
                write_config(folder, config)
                self._write_status("new")

    @classmethod
    def resume(cls, folder: Path, *changes: Mapping[str, Any], fresh_replay: bool = False) -> "Run":
        """Continue from the newest intact checkpoint in ``folder``, or from the start if none was ever begun.

        Args:
            folder: The run's.
            changes: Layers of settings to go on with, marked as resumable where they are declared.
            fresh_replay: Leave replay empty, and fill it by random actions before the next update.

        Raises:
            FileError: The folder is no run, no checkpoint in it is intact, or it is an exported copy.
            ConfigError: Another process holds it, a change does not fit its state, or it has no replay to fill.
        """
        config = read_config(folder, *changes)
        if fresh_replay and not config.task.replay:
            raise ConfigError(f"{folder}: a run of {config.preset} keeps no replay; leave out --fresh-replay.")
        with claimed(folder):
            run = cls(config)
            run.folder, run.recorder = folder, Recorder(folder)
            if list((folder / "checkpoints").glob("ckpt-*")):
                run_state.take_up(run, folder / "checkpoints", fresh_replay)
            if run.done and any(changes):
                asked = {key: value for layer in changes for key, value in layer.items()}
                raise ConfigError(
                    f"{folder}: update {run.number} is at its target, so nothing would be trained with {asked}; set a "
                    "farther one: --updates or --minutes, counted from the run's beginning."
                )
            if not run.recorder.rewind():
                run.lifted.append(f"update {run.number}: rows of metrics were lost or changed")
            run.command = read_command(folder)
            if any(changes):
                write_config(folder, config)
            run._seen = said(folder)
        return run

    @property
    def best(self) -> Float[Tensor, "R K P"]:
        """Give the policy of each run's best score; of a run never scored, the newest."""
        return torch.where(torch.isinf(self.best_score)[:, None, None], self.learner.parameters(), self.kept)

    @property
    def done(self) -> bool:
        """Tell whether the run's own target is reached."""
        settings = self.config.run
        if settings.patience is not None and self.stale >= settings.patience:
            return True
        updates_made = settings.updates is not None and self.number >= settings.updates
        return updates_made or (settings.minutes is not None and self.seconds >= 60 * settings.minutes)

    @property
    def headline(self) -> tuple[str, ...]:
        """Name the figures by which this task is judged first."""
        return tuple(self.config.evaluation.score)

    def stop(self) -> None:
        """Ask the run to end after the update in progress."""
        self.stopping = True

    def train(self) -> Generator["Progress", None, None]:
        """Train to the target, yielding after each update; however it ends, the folder tells how and can resume.

        Stopping, breaking off and Ctrl-C (a notebook's Interrupt) end it after the update in progress and save; the
        next ``train()`` goes on, and ends one that was left suspended. An exit that cuts an update in half leaves the
        last checkpoint to go on from.

        Raises:
            ConfigError: An update was cut in half before, or another process holds the folder or went on with it.
            DivergedError: A number is not finite.
            ResourceError: Memory or disk does not suffice.
        """
        if left := self._steps():
            left.close()
        steps = self._train()
        self._steps = ref(steps)  # weak: a loop that is broken off must let its generator go
        return steps

    def _train(self) -> Generator["Progress", None, None]:
        with claimed(self.folder):
            self._begin()
            try:
                self._write_status("running")
                with build.enough_memory():
                    yield from self._updates()
            except GeneratorExit:
                raise
            except (KeyboardInterrupt, SystemExit):
                if self.status == "running":
                    self._write_status("interrupted")
                raise
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                self.stopping = False
                self.recorder.close()

    def _begin(self) -> None:
        if self._cut:
            raise ConfigError(
                "training: an update was cut in half, so there is no state to go on from in memory; go on from the "
                "last checkpoint with Run.resume(folder)."
            )
        if self.folder:
            if said(self.folder) != self._seen:
                raise ConfigError(f"{self.folder}: another process went on with this run; continue with Run.resume.")
            (self.folder / "divergence.json").unlink(missing_ok=True)
        self.digest = ""

    def _updates(self) -> Generator["Progress", None, None]:
        began, before = time.monotonic(), self.seconds
        last = self.config.run.updates or 10**9
        try:
            with self.rt.scope():
                steps = training(self.source, self.learner, self.rng, self.rt, self.number, last)
                while not (self.stopping or self.done):
                    with uncut():
                        self._cut = True
                        step = next(steps)
                        self.number, self.seconds = step.number, before + time.monotonic() - began
                        progress = self._after(step.update)
                    yield progress
        except (GeneratorExit, KeyboardInterrupt):
            if not self._cut:
                self._end()
            raise
        self._end()

    def _end(self) -> None:
        with uncut():
            self.save()
            self.digest = run_state.digest(self)
            self._write_status("complete" if self.done else "interrupted")

    def _fail(self, error: BaseException) -> None:
        """Tell the folder what happened; a disk that refuses even that must not hide it."""
        if isinstance(error, DivergedError):
            error.advice = self._advice(error)
            record = {**error.record, "last_good_checkpoint": self.last.name if self.last else None}
            with suppress(ResourceError):
                if self.folder:
                    write_json(self.folder / "divergence.json", record)
        reason = str(error) if isinstance(error, UavlabError) else f"{type(error).__name__}: {error}"
        with suppress(ResourceError):
            self._write_status("diverged" if isinstance(error, DivergedError) else "failed", reason)

    def _advice(self, error: DivergedError) -> str:
        good = f"; {self.last.name} is the last good state" if self.last else ""
        if error.record["kind"] == "environment":
            return f"The environment made it: see `{program()} check {self.config.preset}`{good}."
        known = {name: getattr(self.config.learner, name, None) for name in ("lr", "critic_lr")}
        rates = " ".join(f"--set {name}={rate / 2:g}" for name, rate in known.items() if rate)
        if self.last is None:
            return f"Nothing was saved before; start a new run with lower rates: {rates}."
        return f"{self.last.name} is the last good state: `{program()} resume {self.folder} {rates}` goes on from it."

    def save(self) -> None:
        """Write a checkpoint; a run without a folder keeps none, and one of this update is not written twice.

        Raises:
            DivergedError: A number in the state is not finite; nothing is written.
            ResourceError: The disk refuses.
        """
        if self.folder is None or (
            self.last and self.linkable and self.last.name == checkpoint.folder_name(self.number)
        ):
            return
        began = time.perf_counter()
        check_state(self.source, self.learner, self.rt, self.number)
        self.recorder.sync()
        self.last, self.written = run_state.save(self, self.folder / "checkpoints")
        self.linkable = True
        self.pauses.append(time.perf_counter() - began)

    def saves(self) -> dict[str, float]:
        """Tell how often training paused to save, how long (s), and how much the last save wrote."""
        count = len(self.pauses)
        mean, longest = (sum(self.pauses) / count, max(self.pauses)) if count else (0.0, 0.0)
        return {"count": count, "mean_s": round(mean, 4), "longest_s": round(longest, 4), "last_bytes": self.written}

    def _after(self, update: Update) -> Progress:
        settings = self.config.run
        metrics = score = each = None
        saving = self.number % settings.checkpoint_every == 0
        if self.number % settings.log_every == 0 or self.number == 1 or saving:
            self.rt.read(self.number)
            metrics = {name: value.double().mean().item() for name, value in update.metrics.items()}
        if self.number % settings.evaluate_every == 0:
            each = self._validate()
        elif self.done and torch.isinf(self.best_score).any():
            each, self.forced = self._validate(), True
        if each:
            score = {f"eval/{name}": sum(values) / len(values) for name, values in each.items()}
        self._cut = False
        if metrics or score:
            self.recorder.append(self.number, self.seconds, {**(metrics or {}), **(score or {})})
        if saving or self.done:
            self.save()
            self._write_status("running")  # for whoever looks at a run at work, or at one that was killed
        return Progress(self.number, settings.updates, self.seconds, metrics, score, each)

    def _validate(self) -> dict[str, list[float]]:
        """Score the policy in training on the evaluation task, run by run, and keep it where it is the best so far."""
        began = time.perf_counter()
        check_state(self.source, self.learner, self.rt, self.number)
        env = self.config.evaluation
        policy = self.learner.policy(env.spec)
        figures = self.config.task.evaluation.figures(
            self.config, env, policy, self.rng, self.config.run.evaluate_episodes, False, build.VALIDATION
        )
        score = torch.stack([weight * figures[name].mean(1) for name, weight in env.score.items()]).sum(0)
        better = score > self.best_score
        self.stale = 0 if better.any() else self.stale + 1  # host sync
        self.best_score = torch.where(better, score, self.best_score)
        self.kept = torch.where(better[:, None, None], self.learner.parameters(), self.kept)
        self.scored = time.perf_counter() - began
        return {name: value.mean(1).tolist() for name, value in figures.items()}

    def _write_status(self, status: str, reason: str = "") -> None:
        self.status, self.reason = status, reason
        if self.folder is None:
            return
        record = {
            "status": status,
            "reason": reason,
            "command": self.command,
            "update": self.number,
            "target": self.config.run.updates,
            "seconds": round(self.seconds, 3),
            "seeds": list(self.rng.seeds),
            "digest": self.digest,
            "not_exact": self.lifted,
            "toggles": {**changes(self.rt.requested), "fell_back": self.rt.fell_back},
            "retries": self.rt.retries,
            "saves": self.saves(),
            "machine": self.machine,
        }
        with uncut():  # who was interrupted between the two would take the file for somebody else's
            write_json(self.folder / "run.json", record)
            self._seen = said(self.folder)
