"""Engines: where the processes of trials run. Both start the same command with the same environment.

A process holds the end of a pipe. When the pipe closes, because the sweep stops or is no more, the trial ends after its
update and is saved.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import NamedTuple

from uavlab.core.errors import ResourceError
from uavlab.core.installation import entry
from uavlab.storage.machine import usable_cores
from uavlab.sweeps.spec import Sweep

POLL = 0.1  # s between looks at a process


class Engine(NamedTuple):
    """How many trials run at once, and what runs one: a function of its folder, its request and an event to stop it.

    The function returns when the process has ended, however it did.
    """

    workers: int
    run: Callable[[Path, str, Event], None]


@contextmanager
def local_engine(sweep: Sweep) -> Iterator[Engine]:
    """Yield the engine of this machine, one process for each core by default."""
    program, where = entry(), os.getcwd()

    def run(folder: Path, request: str, stop: Event) -> None:
        run_process(program, where, folder, request, stop)

    yield Engine(sweep.workers or usable_cores(), run)


def run_process(program: list[str], where: str, folder: Path, request: str, stop: Event | None = None) -> None:
    """Start the process of a trial and wait for its end, also where this one is interrupted.

    What it prints is added to the file ``FOLDER.log``.
    """
    words = [sys.executable, *program, "sweep-trial", str(folder)]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.log").open("ab") as log:
            child = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=where,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the sweep, which asks its trials to stop
            )
    except OSError as error:
        raise ResourceError(
            f"{folder}: cannot start a process ({error.strerror}); free some memory or space."
        ) from error
    pipe = child.stdin
    try:
        with suppress(BrokenPipeError):
            if pipe is not None:
                pipe.write(f"{request}\n".encode())
                pipe.flush()
        while child.poll() is None and not (stop and stop.is_set()):
            with suppress(subprocess.TimeoutExpired):
                child.wait(POLL)
    finally:
        with suppress(BrokenPipeError):
            if pipe is not None:
                pipe.close()
        child.wait()
