"""The end of the process: runs that nobody trains to their end are stopped between two updates and saved."""

import atexit
import os
import sys
import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from uavlab.core.errors import reason_of

if TYPE_CHECKING:
    from uavlab.experiment.run import Run

Steps = Generator[Any, None, None]

PATIENCE = 4.0  # seconds for which the end of the process waits for a checkpoint; a notebook's server kills after 5
OPEN: "WeakKeyDictionary[Run, ReferenceType[Steps]]" = WeakKeyDictionary()  # weak, so that leaving a loop ends it


def open_steps(run: "Run", steps: Steps) -> None:
    """Close the generator that a run left suspended; the end of the process closes this one."""
    if (left := OPEN.get(run)) and (suspended := left()):
        suspended.close()
    OPEN[run], run.thread = ref(steps), None


def end_open_runs() -> None:
    """Close all suspended generators of runs; those in threads of their own stop after the update in progress.

    Threads for which the process waits train on. A run that cannot be saved is named on stderr.
    """
    waits = [(run, steps) for run, each in list(OPEN.items()) if (steps := each()) and run.thread and not _goes_on(run)]
    until = time.monotonic() + (0.0 if all(run.stopping for run, _ in waits) else PATIENCE)  # asked once before
    for run, _ in waits:
        if _in_thread(run):
            run.stop()
    for run, steps in waits:
        while _in_thread(run) and steps.gi_frame is not None and time.monotonic() < until:
            time.sleep(0.01)
        reason = f"an update takes longer than {PATIENCE:g} s" if steps.gi_running else ""
        try:
            if not reason:
                steps.close()
        except Exception as error:  # of any kind: the other runs are saved
            reason = reason_of(error)
        if reason:
            text = f"{run.folder or run.config.preset}: the run was not saved at the end of the process: {reason}"
            print(text, file=sys.stderr)


def _in_thread(run: "Run") -> bool:
    """Return whether another thread, which is alive, made the last update."""
    return run.thread is not None and run.thread.is_alive() and run.thread is not threading.current_thread()


def _goes_on(run: "Run") -> bool:
    return _in_thread(run) and run.thread is not None and not run.thread.daemon


# Before executors shut down, which batches that are drawn ahead need; and after the threads for which Python waits.
for register in (getattr(threading, "_register_atexit", atexit.register), atexit.register):
    register(end_open_runs)
os.register_at_fork(after_in_child=OPEN.clear)  # the runs are those of the parent
