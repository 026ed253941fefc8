"""The end of the process: runs that nobody trains to their end are stopped between two updates and saved."""

import atexit
import os
import sys
import threading
import time
from collections.abc import Generator
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from uavlab.core.errors import reason_of
from uavlab.experiment.run_state import RunState

Steps = Generator[Any, None, None]

PATIENCE = 4.0  # seconds for which the end of the process waits for a checkpoint; a notebook's server kills after 5
OPEN: "WeakKeyDictionary[RunState, ReferenceType[Steps]]" = WeakKeyDictionary()  # weak, so that leaving a loop ends it


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
