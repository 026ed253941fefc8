"""Small runs on a training thread, with patience for their states, and a watch over all threads."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Change
from uavlab_lab.live.trainer import Trainer, follow, script_of, stop_all

PATIENCE = 30.0  # s, for a loaded machine; a quiet one needs a fraction of a second
QUICK: dict[str, Any] = {
    **{"worlds": 2, "updates": 40, "log_every": 8, "evaluate_every": 16, "evaluate_episodes": 1},
    **{"checkpoint_every": 1000, "device": "cpu"},
}


def drift(**changes: Any) -> Config:
    """Return settings of a run whose update takes about a millisecond, see ``tests.support.outside``."""
    return configure("drift_quick", QUICK, changes)


def trained(config: Config, folder: Path | None = None) -> Run:
    """Return a run that was trained to its target without a trainer."""
    run = Run(config, folder)
    for _ in run.train():
        pass
    return run


def followed(config: Config, changes: list[Change]) -> Run:
    """Return a new run that was trained with the changes of another one."""
    run = Run(config)
    for _ in follow(run, script_of(changes)):
        pass
    return run


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.0005)


def wait_for(trainer: Trainer, *states: str) -> None:
    """Wait until a trainer is in one of these states."""
    wait_until(lambda: trainer.state in states)


def step(trainer: Trainer, updates: int) -> None:
    """Make some updates, and wait until they are made."""
    trainer.step(updates)
    wait_for(trainer, "paused", "complete", "failed")


def finish(trainer: Trainer) -> None:
    """Train until the end; raise what ended it before."""
    trainer.start()
    trainer.join(PATIENCE)


def failing(run: Run, error: BaseException) -> None:
    """Let every update of a run fail from now on."""

    def fail(*args: Any) -> None:
        raise error

    run.learner.update = fail


def training_threads() -> list[threading.Thread]:
    """Return the threads of trainers that are alive."""
    return [each for each in threading.enumerate() if each.name.startswith("train ")]


@contextmanager
def watch_threads() -> Iterator[list[str]]:
    """Yield a list that gets the exceptions that nobody caught; at the end there are none, and no training thread."""
    errors: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda args: errors.append(repr(args.exc_value)))
        patch.setattr(sys, "excepthook", lambda kind, error, trace: errors.append(repr(error)))
        yield errors
    for thread in training_threads():
        thread.join(PATIENCE / 10)
    left = training_threads()
    stop_all()  # so that the next test sees its own threads alone
    assert left == []
    assert errors == []
