"""The process of a worker: it holds copies of one environment, and steps those that it is asked to.

``python -m uavlab.workers.worker SOCKET PARENT STACK`` reads a line of JSON per request. The first names the
environment, and the answer describes it. Each other lists pairs: a row of shared memory, and a seed to reset its copy,
or null to step it. STACK is a file to which a signal, or a crash, writes where the process is.
"""

import ctypes
import faulthandler
import io
import json
import mmap
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from uavlab.core.text import one_line
from uavlab.workers.description import Rows, rows_in
from uavlab.workers.spaces import Refusal
from uavlab.workers.team import Team, make

PARENT_DEATH = 1  # of Linux's prctl: the signal that a process gets when the thread that started it ends
LONGEST = 4000  # characters of a traceback, and of what an environment printed


class Tail(io.TextIOBase):
    """A stream that keeps the last characters written to it; its file is that of the process, which nobody reads."""

    text = ""

    def write(self, text: str) -> int:
        """Add text."""
        self.text = (self.text + text)[-LONGEST:]
        return len(text)

    def fileno(self) -> int:
        """Return the file of standard output, for processes that an environment starts."""
        return 1


def main() -> None:
    """Serve the process that started this one, until it closes the socket or ends."""
    sys.stdout = sys.stderr = Tail()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains
    stack = int(sys.argv[3])
    faulthandler.enable(stack, all_threads=False)
    faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
    _end_with(int(sys.argv[2]))
    connection = socket.socket(fileno=int(sys.argv[1]))
    lines = connection.makefile("r", encoding="utf-8")
    task = json.loads(next(lines))
    sys.path[:] = task["path"]
    teams: dict[int, Team] = {}
    rows: Any = None

    def answer(message: dict[str, Any]) -> None:
        connection.sendall(json.dumps(message).encode() + b"\n")

    try:
        spare = Team(make(**task["origin"]))
        description = spare.describe()
    except BaseException as error:  # code of others may raise anything
        answer(_failure(error, "make"))
        return
    answer({"description": description.as_json()})
    for line in lines:
        if rows is None and task["memory"] is not None:  # not before the description was compared, which fits it
            rows = rows_in(mmap.mmap(task["memory"], 0), description, task["copies"])
        answer(_serve(json.loads(line), teams, rows, task["origin"], spare))


def _serve(pairs: list[Any], teams: dict[int, Team], rows: Rows, origin: Any, spare: Team) -> dict[str, Any]:
    """Reset or step copies; return an empty answer, or what failed."""
    doing, row = "reset", 0
    try:
        for row, seed in pairs:
            doing = "step" if seed is None else "reset"
            if row not in teams:
                teams[row] = spare if not teams else Team(make(**origin))
            if seed is None:
                teams[row].step(rows, row)
            else:
                teams[row].reset(seed, rows, row)
    except BaseException as error:
        return {**_failure(error, doing), "row": row}
    return {}


def _failure(error: BaseException, doing: str) -> dict[str, Any]:
    """Return what an environment raised, and where, with its traceback and what it printed before."""
    text = one_line(str(error).partition("\n")[0])
    printed = getattr(sys.stdout, "text", "")
    if isinstance(error, Refusal):
        return {"refused": text.rstrip("."), "doing": doing, "printed": printed}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "uavlab/workers" not in frame.filename]
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    trace = "".join(traceback.format_exception(error))[-LONGEST:]
    return {
        "raised": f"{type(error).__name__}: {text}"[:500] + place, "doing": doing, "printed": printed, "trace": trace
    }  # fmt: skip


def _end_with(parent: int) -> None:
    """End this process when its parent ends, also while the environment is at work."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
