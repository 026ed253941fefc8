"""One training run, in memory or in a folder: what the command line and the notebooks both hold the reins of.

A folder holds ``config.json`` (every setting), ``run.json`` (how the run stands or ended), ``metrics.jsonl``,
``tensorboard/``, ``checkpoints/``, and ``divergence.json`` if a number was not finite.
"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from jaxtyping import Float
from torch import Tensor

from uavlab.app import build, state
from uavlab.app.config import Config
from uavlab.app.folder import claim, read_config, require_empty, require_resumable, write_config
from uavlab.app.machine import describe
from uavlab.app.record import Recorder, invocation, read_json, write_json
from uavlab.app.signals import uncut
from uavlab.core.errors import ConfigError, DivergedError, FileError, UavlabError
from uavlab.core.types import Update
from uavlab.evaluate import episodes
from uavlab.runtime import checkpoint
from uavlab.sources import replay_bytes
from uavlab.train import check_state, training

VALIDATION = "validate"  # the stream of the scores that choose a policy; `evaluate` draws from another
META = {"machine": dict, "device": str, "values": dict, "lifted": list}  # what a checkpoint says beside its tensors
TIMED = "minutes: how many updates fit into them depends on the machine"


@dataclass(frozen=True)
class Progress:
    """Where a run stands after an update; metrics and score are there when they were read anew."""

    number: int
    target: int | None
    seconds: float
    metrics: dict[str, float] | None = None
    score: dict[str, float] | None = None


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
        self.folder: Path | None = None
        self.rt = build.runtime(config.run)
        self.rng = build.streams(config.run, self.rt.device)
        with self.rt.scope(), build.enough_memory():
            self.machine = describe(self.rt.device)
            self.learner = build.learner(config, self.rng, self.rt)
            self.source = build.source(config, self.learner, self.rng, self.rt)
        self.number, self.seconds, self.stopping = 0, 0.0, False
        self.status, self.reason, self.digest = "new", "", ""
        self.lifted: list[str] = [TIMED] if config.run.minutes else []  # why the run is not exactly repeatable
        self.pauses: list[float] = []  # seconds that each save took
        self.written = 0  # bytes of the last one
        self._cut = False  # an update is in progress, or was broken off
        self._lock: FileLock | None = None
        self._told: dict[str, Any] = {}  # what run.json says, if this object wrote it last
        self._saved: Path | None = None  # the checkpoint that later ones may take rows of replay over from
        self.best: Float[Tensor, "R K P"] = self.learner.parameters()
        self.best_score = torch.full((config.run.runs,), -math.inf, device=self.rt.device)
        self.recorder = Recorder(None)
        if folder is not None:
            self._settle(folder, claim(folder, new=True))
            write_config(folder, config)
            self._write_status("new")

    @classmethod
    def resume(cls, folder: Path, *changes: Mapping[str, Any], fresh_replay: bool = False) -> "Run":
        """Continue from the newest intact checkpoint in ``folder``, or from the start if none was ever begun.

        Args:
            folder: The run's.
            changes: Layers of settings to go on with, among ``folder.RESUMABLE``.
            fresh_replay: Leave replay empty, and fill it by random actions before the next update.

        Raises:
            FileError: The folder is no run, no checkpoint in it is intact, or it is an exported copy.
            ConfigError: Another process holds it, or a change does not fit its state.
        """
        config = read_config(folder, *changes)
        lock = claim(folder)
        try:
            run = cls(config)
            run._settle(folder, lock)
            if list((folder / "checkpoints").glob("ckpt-*")):
                run._restore(
                    checkpoint.newest(folder / "checkpoints", state.WITHOUT_REPLAY if fresh_replay else ".*"),
                    fresh_replay,
                    new_streams=any("device" in layer for layer in changes),
                )
            if (folder / "run.json").exists():
                run.command = read_json(folder / "run.json").get("command", "")
            run.recorder.rewind(run.number)
        except BaseException:
            lock.release()
            raise
        if any(changes):
            write_config(folder, config)
        return run

    def _settle(self, folder: Path, lock: FileLock) -> None:
        self.folder, self._lock, self.recorder = folder, lock, Recorder(folder)

    def _restore(self, saved: checkpoint.Checkpoint, fresh_replay: bool, new_streams: bool) -> None:
        if "learner" not in saved.groups:
            raise FileError(
                f"{self.folder}: an exported copy holds the policy alone; resume the run that it was taken from."
            )
        if any(not isinstance(saved.meta.get(name), kind) for name, kind in META.items()):
            raise FileError(f"{saved.path}: was not written by a run; it lacks one of {', '.join(META)}.")
        before, here = saved.meta["machine"], self.rt.device.type
        same_kind = saved.meta["device"] == here
        if not same_kind and not new_streams:
            raise ConfigError(
                f"{self.folder}: trained on {saved.meta['device']}, this process runs on {here}; random streams do not "
                f"carry over. Resume it on {saved.meta['device']}, or go on with new streams: --device {here}."
            )
        changed = require_resumable(saved.path, saved.meta["values"], self.config.values)
        state.restore(self, saved, fresh_replay, streams=same_kind)
        if not same_kind:
            self.rng.reopen(saved.step)
        reasons = [*changed, *state.lifted(before, self.machine)]
        reasons += [f"{saved.meta['device']} -> {here}, new random streams"] * (not same_kind)
        reasons += ["replay started anew"] * fresh_replay
        self.lifted = list(
            dict.fromkeys([*saved.meta["lifted"], *self.lifted, *(f"update {saved.step}: {why}" for why in reasons)])
        )
        self._saved = None if fresh_replay else saved.path

    @property
    def done(self) -> bool:
        """Tell whether the run's own target is reached."""
        settings = self.config.run
        updates_made = settings.updates is not None and self.number >= settings.updates
        return updates_made or (settings.minutes is not None and self.seconds >= 60 * settings.minutes)

    @property
    def headline(self) -> tuple[str, ...]:
        """Name the figures by which this task is judged first."""
        return tuple(self.config.evaluation.score)

    def stop(self) -> None:
        """Ask the run to end after the update in progress."""
        self.stopping = True

    def train(self) -> Iterator[Progress]:
        """Train to the target, yielding after each update; however it ends, the folder tells how and can resume.

        Stopping, breaking off and Ctrl-C (a notebook's Interrupt) end it after the update in progress and save; the
        next ``train()`` goes on. An exit that cuts an update in half leaves the last checkpoint to go on from.

        Raises:
            ConfigError: An update was cut in half before, or another process went on with the folder.
            DivergedError: A number is not finite.
            ResourceError: Memory or disk does not suffice.
        """
        self._begin()
        try:
            with build.enough_memory():
                yield from self._updates()
        except GeneratorExit:
            raise
        except (KeyboardInterrupt, SystemExit):
            if self._cut:
                if torch.isinf(self.best_score).all():  # never scored: the newest policy is the one to look at
                    self.best = self.learner.parameters()
                self._write_status("interrupted")
            raise
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self.stopping = False
            if self._lock:
                self._lock.release()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, DivergedError):
            error.advice = self._advice(error)
            if self.folder:
                saved = self._saved.name if self._saved else None
                write_json(self.folder / "divergence.json", {**error.record, "last_good_checkpoint": saved})
            self._write_status("diverged", str(error))
        else:
            self._write_status(
                "failed", str(error) if isinstance(error, UavlabError) else f"{type(error).__name__}: {error}"
            )

    def _advice(self, error: DivergedError) -> str:
        if error.record["kind"] == "environment":
            return f"The environment made it: see `uavlab check {self.config.preset}`."
        rates = " ".join(f"--set {name}={getattr(self.config.masac, name) / 2:g}" for name in ("lr", "critic_lr"))
        if self._saved is None:
            return f"Nothing was saved before; start a new run with lower rates: {rates}."
        return f"{self._saved.name} is the last good state: `uavlab resume {self.folder} {rates}` goes on from it."

    def _begin(self) -> None:
        if self._cut:
            raise ConfigError(
                f"training: update {self.number + 1} was cut in half, so there is no state to go on from in memory; "
                "go on from the last checkpoint with Run.resume(folder)."
            )
        if self.folder and self._lock and not self._lock.is_locked:
            self._lock = claim(self.folder)
            if read_json(self.folder / "run.json") != self._told:
                self._lock.release()
                raise ConfigError(f"{self.folder}: another process went on with this run; continue with Run.resume.")
        if self.folder:
            (self.folder / "divergence.json").unlink(missing_ok=True)
        self._write_status("running")

    def _updates(self) -> Iterator[Progress]:
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
                        self._cut = False
                    yield progress
        except (GeneratorExit, KeyboardInterrupt):
            if not self._cut:
                self._end()
            raise
        self._end()

    def save(self) -> None:
        """Write a checkpoint; a run without a folder keeps none.

        Raises:
            DivergedError: A number in the state is not finite; nothing is written.
            ResourceError: The disk refuses.
        """
        if self.folder is None:
            return
        began = time.monotonic()
        check_state(self.source, self.learner, self.rt, self.number)
        meta = {
            "preset": self.config.preset,
            "values": self.config.values,
            "device": self.rt.device.type,
            "machine": self.machine,
            "lifted": self.lifted,
        }
        self.recorder.sync()
        self._saved, self.written = state.save(self, self.folder / "checkpoints", meta, self._saved)
        self.pauses.append(time.monotonic() - began)

    def saves(self) -> dict[str, float]:
        """Tell how often training paused to save, how long (s), and how much the last save wrote."""
        count = len(self.pauses)
        mean, longest = (sum(self.pauses) / count, max(self.pauses)) if count else (0.0, 0.0)
        return {"count": count, "mean_s": round(mean, 4), "longest_s": round(longest, 4), "last_bytes": self.written}

    def _after(self, update: Update) -> Progress:
        settings = self.config.run
        metrics = score = None
        saving = self.number % settings.checkpoint_every == 0
        if self.number % settings.log_every == 0 or self.number == 1 or saving:
            metrics = {name: value.double().mean().item() for name, value in update.metrics.items()}
        if self.number % settings.evaluate_every == 0:
            score = self._validate()
        if metrics or score:
            self.recorder.row(self.number, self.seconds, {**(metrics or {}), **(score or {})})
        if saving:
            self.save()
        return Progress(self.number, settings.updates, self.seconds, metrics, score)

    def _validate(self) -> dict[str, float]:
        """Score the policy in training on the evaluation task and keep it where it is the best so far."""
        check_state(self.source, self.learner, self.rt, self.number)
        env = self.config.evaluation
        figures = episodes(
            env, self.learner.policy(env.spec), self.rng, self.config.run.evaluate_episodes, stream=VALIDATION
        )
        score = torch.stack([weight * figures[name].mean(1) for name, weight in env.score.items()]).sum(0)
        better = score > self.best_score
        self.best_score = torch.where(better, score, self.best_score)
        self.best = torch.where(better[:, None, None], self.learner.parameters(), self.best)
        return {f"eval/{name}": value.mean().item() for name, value in figures.items()}

    def _end(self) -> None:
        """Finish: a last score if none was ever made, a checkpoint, the record."""
        if self.number and torch.isinf(self.best_score).any():
            if self.done:
                with self.rt.scope():
                    self.recorder.row(self.number, self.seconds, self._validate())
            else:  # a score now would make the resumed run meet other episodes than a run without a break
                self.best = self.learner.parameters()
        self.save()
        self.digest = state.digest(self)
        self._write_status("complete" if self.done else "interrupted")

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
            "saves": self.saves(),
            "machine": self.machine,
        }
        write_json(self.folder / "run.json", record)
        self._told = record


def plan(config: Config) -> dict[str, Any]:
    """Tell what a run would do and take, before anything is made."""
    replay, run = config.replay, config.run
    steps = None if run.updates is None else run.updates * replay.world_steps * replay.worlds + replay.learning_starts
    return {
        "preset": config.preset,
        "updates": run.updates,
        "minutes": run.minutes,
        "runs": run.runs,
        "world_steps_per_run": steps,
        "agent_steps_per_run": None if steps is None else steps * config.env.spec.agents,
        "replay_bytes": replay_bytes(config.env, replay, run.runs),
    }
