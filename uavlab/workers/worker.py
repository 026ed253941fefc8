"""The process of a worker: it holds copies of one environment, and steps those that it is asked to.

``python -m uavlab.workers.worker SOCKET ALIVE`` reads a line of JSON per request. The first names the environment, and
the answer describes it. Each other lists pairs: a row of shared memory, and a seed to reset its copy, or null to step
it. After the last one all copies are closed, and the answer says what that raised. ALIVE is the end of a pipe whose
other end the process that trains holds; with that process, everything in this one's group ends.
"""

import io
import json
import mmap
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from uavlab.core.text import one_line
from uavlab.workers.spaces import Refusal, Rows, rows_in
from uavlab.workers.team import Team, make

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
    _end_group_with(int(sys.argv[2]), int(sys.argv[1]))
    sys.stdout = sys.stderr = Tail()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains
    connection = socket.socket(fileno=int(sys.argv[1]))
    lines = connection.makefile("r", encoding="utf-8")
    task = json.loads(next(lines))
    sys.path[:] = task["path"]
    teams: dict[int, Team] = {}
    rows: Any = None
    envs: list[Any] = []  # to be closed

    def answer(message: dict[str, Any]) -> None:
        connection.sendall(json.dumps(message).encode() + b"\n")

    def another() -> Team:
        envs.append(make(**task["origin"]))
        return Team(envs[-1])

    try:
        spare = another()
        description = spare.describe()
    except BaseException as error:  # code of others may raise anything
        answer(_failure(error, "make"))
        _close(envs)
        return
    answer({"description": asdict(description)})
    for line in lines:
        pairs = json.loads(line)
        if rows is None or max(row for row, _ in pairs) >= len(rows.end):  # the memory has grown
            rows = rows_in(mmap.mmap(task["memory"], 0), description)
        answer(_serve(pairs, teams, rows, another, spare))
    closed = _close(envs)
    with suppress(OSError):  # nobody listens
        answer(closed)


def _close(envs: list[Any]) -> dict[str, Any]:
    """Close environments; return what the first one raised, or nothing."""
    raised = ""
    for env in envs:
        try:
            getattr(env, "close", lambda: None)()
        except BaseException as error:
            raised = raised or _failure(error, "close").get("raised", "an error")
    return {"closed": raised}


def _serve(pairs: list[Any], teams: dict[int, Team], rows: Rows, another: Any, spare: Team) -> dict[str, Any]:
    """Reset or step copies; return an empty answer, or what failed."""
    doing, row = "reset", 0
    try:
        for row, seed in pairs:
            doing = "step" if seed is None else "reset"
            if row not in teams:
                teams[row] = spare if not teams else another()
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
    raised = f"{type(error).__name__}: {text}"[:500] + place
    return {"raised": raised, "doing": doing, "printed": printed, "trace": trace}


def _end_group_with(alive: int, connection: int) -> None:
    """Start a process that waits for the end of the one that trains, then kills this one and all that it started.

    It does so whatever an environment is doing, also where the process that trains is killed.
    """
    if os.getpgrp() != os.getpid():  # this one was started by hand
        return
    if os.fork():
        os.close(alive)
        return
    os.close(connection)  # whose end is that of the worker
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    poll = select.poll()
    poll.register(alive, 0)  # returns when nobody holds the other end
    poll.poll()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
