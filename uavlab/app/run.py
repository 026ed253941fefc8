"""One training run, in memory or in a folder: what the command line and the notebooks both hold the reins of.

A folder holds ``config.json`` (every setting), ``run.json`` (how the run stands or ended), ``metrics.jsonl``,
``tensorboard/`` and ``checkpoints/``.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.app import build
from uavlab.app.config import Config, configure, nearest
from uavlab.app.machine import describe
from uavlab.app.presets import presets
from uavlab.app.record import Recorder, invocation, read_json, write_json
from uavlab.core.errors import ConfigError, DivergedError, FileError, UavlabError
from uavlab.core.types import Update
from uavlab.evaluate import episodes
from uavlab.runtime import checkpoint
from uavlab.sources import replay_bytes
from uavlab.train import training

VALIDATION = "validate"  # the stream of the scores that choose a policy; `evaluate` draws from another


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
            ConfigError: The folder is not empty, or the settings do not fit this machine.
        """
        if folder is not None:
            require_empty(folder)
        self.config, self.folder, self.command = config, folder, invocation()
        self.rt = build.runtime(config.run)
        self.rng = build.streams(config.run, self.rt.device)
        with self.rt.scope(), build.enough_memory():
            self.machine = describe(self.rt.device)
            self.learner = build.learner(config, self.rng, self.rt)
            self.source = build.source(config, self.learner, self.rng, self.rt)
        self.number, self.seconds, self.stopping = 0, 0.0, False
        self.status, self.reason = "new", ""
        self._update: Update | None = None  # the newest one, whose metrics may not have been read yet
        self.best: Float[Tensor, "R K P"] = self.learner.parameters()
        self.best_score = torch.full((config.run.runs,), -math.inf, device=self.rt.device)
        self.recorder = Recorder(folder)
        if folder is not None:
            self.recorder.reserve()
            write_json(folder / "config.json", {"preset": config.preset, "values": config.values})
            self._write_status("new")

    @classmethod
    def resume(cls, folder: Path) -> "Run":
        """Continue from the newest checkpoint in ``folder``.

        Raises:
            FileError: The folder is no run, no checkpoint in it is intact, or it is an exported copy.
        """
        config, saved = read_config(folder), checkpoint.load(checkpoint.newest(folder / "checkpoints"))
        if "learner" not in saved.groups:
            raise FileError(
                f"{folder}: an exported copy holds the policy alone; resume the run that it was taken from."
            )
        run = cls(config)
        if saved.meta.get("device", run.rt.device.type) != run.rt.device.type:
            raise ConfigError(
                f"{folder}: trained on {saved.meta['device']}, this process runs on {run.rt.device.type}; random "
                "streams do not carry over. Resume it on a machine with the device that it began on."
            )
        run.folder, run.recorder = folder, Recorder(folder)
        run.command = read_json(folder / "run.json").get("command", "")
        try:
            run._load(saved)
        except (KeyError, RuntimeError) as error:
            raise FileError(
                f"{folder}: its checkpoint does not fit its settings ({error}); was it written by another version, or "
                "its config.json edited?"
            ) from error
        run.recorder.rewind(run.number)
        return run

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

        Breaking off between updates saves. An interrupt inside an update does not: half an update is no state to go
        on from, so the last checkpoint stands.

        Raises:
            DivergedError: A metric is not finite.
            ResourceError: Memory or disk does not suffice.
        """
        self._write_status("running")
        try:
            with build.enough_memory():
                yield from self._updates()
        except GeneratorExit:
            raise
        except (KeyboardInterrupt, SystemExit):
            if torch.isinf(self.best_score).all():  # never scored: the newest policy is the one to look at
                self.best = self.learner.parameters()
            self._write_status("interrupted")
            raise
        except BaseException as error:
            reason = str(error) if isinstance(error, UavlabError) else f"{type(error).__name__}: {error}"
            self._write_status("diverged" if isinstance(error, DivergedError) else "failed", reason)
            raise

    def _updates(self) -> Iterator[Progress]:
        began, before, self.stopping = time.monotonic(), self.seconds, False
        last = self.config.run.updates or 10**9
        try:
            with self.rt.scope():
                for step in training(self.source, self.learner, self.rng, self.rt, self.number, last):
                    self.number, self.seconds = step.number, before + time.monotonic() - began
                    self._update = step.update
                    yield self._after(step.update)
                    if self.stopping or self.done:
                        break
        except GeneratorExit:
            self._end()
            raise
        self._end()

    def save(self) -> None:
        """Write a checkpoint; a run without a folder keeps none."""
        if self.folder is None:
            return
        groups = {
            "learner": self.learner.state_dict(),
            "source": self.source.state_dict(),
            "streams": self.rng.state_dict(),
            "best": {"parameters": self.best, "score": self.best_score},
        }
        meta = {"seconds": self.seconds, "preset": self.config.preset, "device": self.rt.device.type}
        checkpoint.save(self.folder / "checkpoints", self.number, groups, meta, self.config.run.keep)

    def _load(self, saved: checkpoint.Checkpoint) -> None:
        self.learner.load_state_dict(saved.groups["learner"])
        self.source.load_state_dict(saved.groups["source"])
        self.best = saved.groups["best"]["parameters"].to(self.rt.device)
        self.best_score = saved.groups["best"]["score"].to(self.rt.device)
        self.number, self.seconds = saved.step, saved.meta["seconds"]
        self.rng.load_state_dict(saved.groups["streams"])  # last: building drew from the streams

    def _after(self, update: Update) -> Progress:
        settings = self.config.run
        metrics = score = None
        saving = self.number % settings.checkpoint_every == 0
        if self.number % settings.log_every == 0 or self.number == 1 or saving:
            metrics = self._metrics(update)
        if self.number % settings.evaluate_every == 0:
            score = self._validate()
        if metrics or score:
            self.recorder.row(self.number, self.seconds, {**(metrics or {}), **(score or {})})
        if saving:
            self.save()
        return Progress(self.number, settings.updates, self.seconds, metrics, score)

    def _metrics(self, update: Update) -> dict[str, float]:
        """Read the metrics from the device (host sync) and refuse those that are not finite."""
        read = {name: value.double().cpu() for name, value in update.metrics.items()}
        for name, value in read.items():
            if not value.isfinite().all():
                run, *agent = (~value.isfinite()).nonzero()[0].tolist()
                whose = f"run {run}" + (f", agent {agent[0]}" if agent else "")
                raise DivergedError(
                    f"training: {name} of {whose} is {value[run, *agent].item()} at update {self.number}; expected a "
                    "finite number. Start a new run with a lower lr or critic_lr; resuming would meet the same end."
                )
        return {name: value.mean().item() for name, value in read.items()}

    def _validate(self) -> dict[str, float]:
        """Score the policy in training on the evaluation task and keep it where it is the best so far."""
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
        """Finish: refuse what is not finite, a last score if none was ever made, a checkpoint, the record."""
        if self._update is not None:
            self._metrics(self._update)
        if self.number and torch.isinf(self.best_score).any():
            if self.done:
                with self.rt.scope():
                    self.recorder.row(self.number, self.seconds, self._validate())
            else:  # a score now would make the resumed run meet other episodes than a run without a break
                self.best = self.learner.parameters()
        if self.number:
            self.save()
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
            "machine": self.machine,
        }
        write_json(self.folder / "run.json", record)


def read_config(folder: Path) -> Config:
    """Read the settings of a run.

    Raises:
        FileError: The folder holds no run.
        ConfigError: Its settings are no longer valid.
    """
    path = folder / "config.json"
    if not path.exists():
        raise FileError(f"{path}: missing, so {folder} is no run; expected a folder that `uavlab train` made.")
    stored = read_json(path)
    if not isinstance(stored.get("preset"), str) or not isinstance(stored.get("values"), dict):
        raise FileError(f"{folder / 'config.json'}: expected the preset and the values of a run.")
    if stored["preset"] not in presets():
        raise ConfigError(
            f"{folder}: trained on {stored['preset']!r}, which is not registered here; run this command with the file "
            "that registers it: python FILE.py evaluate ..."
        )
    return configure(stored["preset"], stored["values"])


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


def require_empty(folder: Path) -> Path:
    """Return the folder if a new run may use it.

    Raises:
        ConfigError: It is a file or holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--out {folder}: not empty; choose a new folder, or `uavlab resume {folder}`.")
    return folder


def run_folder(text: str) -> Path:
    """Take an argument that exists or holds a separator for a run.

    Raises:
        ConfigError: It is a preset or nothing known.
    """
    if Path(text).exists() or "/" in text or "\\" in text:
        return Path(text)
    if text in presets():
        raise ConfigError(f"{text!r} is a preset, expected a run; train it first: uavlab train {text}.")
    raise ConfigError(
        f"{text!r} is neither a run nor a preset{nearest(text, presets())}; expected the folder of a run."
    )


def run_name(name: str) -> str:
    """Refuse a name that is no plain folder name.

    Raises:
        ConfigError: Other characters than letters, digits, dot, dash and underscore, or too long.
    """
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not (plain.isascii() and plain.isalnum()) or len(name) > 80 or name.startswith(("-", ".")):
        raise ConfigError(
            f"--name {name!r}: expected 1 to 80 letters, digits, '.', '_', '-', starting with none of '.-'."
        )
    return name
