"""Workers as the process that trains sees them: it starts them, asks all at once, and replaces those that fail."""

import json
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from uavlab.core.errors import ConfigError, FallbackWarning, ResourceError
from uavlab.core.installation import PACKAGE
from uavlab.core.text import printable
from uavlab.experiment.names import Origin
from uavlab.workers.spaces import Description, Rows, difference, memory_bytes, rows_in

QUIET = {"OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
TRIES = 3  # in which a worker may be lost while it starts, or workers in one step
START_S = 120.0  # seconds for a worker to import the environment and make a first one
CLOSE_S = 5.0  # seconds for all workers to close their copies
STACK_S = 1.0  # seconds for a worker that does not answer to write where it is
FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')  # of the standard library's fault handler


class Lost(Exception):  # noqa: N818 - the caller starts another worker
    """A worker has died or does not answer; the message says which of them."""


class Worker:
    """A process with copies of an environment."""

    def __init__(self, origin: Origin, memory: int | None, copies: int) -> None:
        """Start the process; ``describe`` waits until it is ready."""
        self.stack = _shared_file(0)
        self.socket, served = socket.socketpair()
        alive, self.alive = os.pipe()
        numbers = map(str, (served.fileno(), alive, self.stack.fileno()))
        words = [sys.executable, "-P", "-m", "uavlab.workers.worker", *numbers]
        home = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            self.process = subprocess.Popen(
                words,
                env={**os.environ, **QUIET, "PYTHONPATH": home},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[served.fileno(), alive, self.stack.fileno(), *([] if memory is None else [memory])],
                process_group=0,  # signals of a terminal are for the process that trains; what it starts ends with it
            )
        except OSError:
            self._release()
            raise
        finally:
            served.close()
            os.close(alive)
        self.rest, self.hangs = b"", False
        call = {"kind": origin.kind, "target": origin.target, "factory": origin.factory}
        task = {"origin": {**call, "arguments": dict(origin.arguments)}, "memory": memory, "copies": copies}
        self.send({**task, "path": sys.path})

    def send(self, message: Any) -> None:
        """Send a message; a worker that is gone is noticed by ``receive``."""
        try:
            self.socket.settimeout(START_S)
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next answer."""
        while b"\n" not in self.rest:
            try:
                self.socket.settimeout(max(deadline - time.monotonic(), 1e-3))
                part = self.socket.recv(1 << 16)
            except TimeoutError:
                self.hangs = True
                raise Lost(f"it did not answer in time{self._place(signal.SIGUSR1)}") from None
            except OSError:
                part = b""
            if not part:
                raise Lost(f"it ended with {_exit_of(self.process)}{self._place()}")
            self.rest += part
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def describe(self, name: str) -> Description:
        """Return what the worker says of the environment that it made."""
        answer = self.receive(time.monotonic() + START_S)
        if "description" not in answer:
            step = "" if "refused" in answer else "; expected an environment: correct its name or its arguments"
            text = f"{name}: {answer.get('refused') or 'making it raised ' + answer['raised']}{step}."
            raise with_notes(ConfigError(text), answer)
        return Description.from_json(answer["description"])

    def _place(self, ask: int = 0) -> str:
        """Return in which line of other code a process is, as it answers to a signal, or was when it crashed."""
        if self.stack.closed:  # by ``close``
            return ""
        deadline, before, text = 0.0, b"", os.pread(self.stack.fileno(), 1 << 16, 0)
        if ask:
            self.process.send_signal(ask)
            deadline = time.monotonic() + STACK_S
        while (text == b"" or text != before) and time.monotonic() < deadline:  # it writes line by line
            time.sleep(0.01)
            before, text = text, os.pread(self.stack.fileno(), 1 << 16, 0)
        frames = [match.groups() for match in FRAME.finditer(text.decode(errors="replace"))]
        frames = [(file, line, name) for file, line, name in frames if not _is_ours(file)]
        return "".join(f", in {name} at {os.path.basename(file)}:{line}" for file, line, name in frames[:1])

    def ask_to_close(self) -> None:
        """Ask the process to close its copies and to end; do not wait for it."""
        with suppress(OSError):  # it has ended
            self.socket.shutdown(socket.SHUT_WR)

    def close(self, deadline: float = 0.0) -> str:
        """End the process and all that it started; return why its copies were not closed before the deadline."""
        why = ""
        if self.alive < 0:  # it was closed before
            return why
        if deadline and not self.hangs and self.process.poll() is None:
            self.ask_to_close()
            try:
                while "closed" not in (answer := self.receive(deadline)):  # others are of steps before
                    pass
                why = answer["closed"] and f"it raised {answer['closed']}"
            except Lost as error:
                why = str(error) if self.hangs else ""  # else it has ended by itself
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._release()
        return why

    def _release(self) -> None:
        self.socket.close()
        self.stack.close()
        if self.alive >= 0:
            os.close(self.alive)
        self.alive = -1


def _is_ours(file: str) -> bool:
    """Return whether a file is one of a worker's own code, or of Python's library."""
    standard = file.startswith(sysconfig.get_path("stdlib")) and "site-packages" not in file
    return standard or Path(file).parent == Path(__file__).parent


def with_notes(error: ConfigError, answer: Mapping[str, Any]) -> ConfigError:
    """Return an error with notes: what an environment printed, and the traceback of what it raised."""
    for key, title in (("printed", "The worker printed, at the end:"), ("trace", "In the worker:")):
        if text := answer.get(key):
            error.add_note(f"{title}\n{printable(text.rstrip())}")
    return error


def _exit_of(process: subprocess.Popen[Any]) -> str:
    try:
        code = process.wait(1)
    except subprocess.TimeoutExpired:
        return "a closed connection"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def describe(origin: Origin) -> Description:
    """Return what an environment is, from a worker that makes one and ends."""
    worker = Worker(origin, None, 0)
    try:
        return worker.describe(origin.name)
    except Lost as error:
        raise _never_ready(origin, error) from None
    finally:
        _close_all(origin, [worker])


def _close_all(origin: Origin, workers: Sequence[Worker]) -> None:
    """Close workers side by side, with one warning if copies of an environment could not be closed."""
    for worker in workers:
        worker.ask_to_close()
    deadline = time.monotonic() + CLOSE_S
    try:
        reasons = [why for worker in workers if (why := worker.close(deadline))]
    finally:  # after an interrupt, too
        for worker in workers:
            worker.close()
    if reasons:
        warnings.warn(
            f"{origin.name}: close of an environment failed, because {reasons[0]}; what it started was killed. "
            f"Expected an end within {CLOSE_S:g} s.",
            FallbackWarning,
            stacklevel=2,
        )


def _never_ready(origin: Origin, error: Lost) -> ConfigError:
    return ConfigError(
        f"{origin.name}: no worker could make it, because {error}; expected an environment within {START_S:g} s. Make "
        "it in Python to see why."
    )


class Workers:
    """W workers and the memory that they share with this process; row r belongs to worker r modulo W."""

    def __init__(self, origin: Origin, description: Description, count: int, copies: int) -> None:
        self.origin, self.description, self.copies = origin, description, copies
        self.file = _shared_file(memory_bytes(description, copies))
        self.memory = mmap.mmap(self.file.fileno(), 0)
        self.rows: Rows = rows_in(self.memory, description, copies)
        self.members: list[Worker] = []
        self.ready: set[int] = set()  # rows whose copies are made
        try:
            self.members = [self._start() for _ in range(count)]
            for number in range(count):
                self._await(number)
        except BaseException:
            self.close()
            raise

    def _start(self) -> Worker:
        try:
            return Worker(self.origin, self.file.fileno(), self.copies)
        except OSError as error:
            raise ResourceError(
                f"{self.origin.name}: no worker could start ({error.strerror}); expected fewer: set workers."
            ) from error

    def _await(self, number: int) -> None:
        """Wait until a worker is ready; one that is lost before is started again."""
        for left in reversed(range(TRIES)):
            try:
                described = self.members[number].describe(self.origin.name)
                break
            except Lost as error:
                if not left:
                    raise _never_ready(self.origin, error) from None
                self.members[number].close()
                self.members[number] = self._start()
        if text := difference(described, self.description):
            raise ConfigError(
                f"{self.origin.name}: worker {number} made one with {text}, as when it was named first. Let its spaces "
                "depend on its arguments alone; after a change of its code, name it again by ul.external."
            )

    def run(self, pairs: Mapping[int, int | None], timeout_s: float) -> tuple[dict[int, str], list[dict[str, Any]]]:
        """Reset rows with a seed, step the others; return why workers were lost, by number, and reported failures."""
        tasks: dict[int, list[tuple[int, int | None]]] = {}
        for row, seed in pairs.items():
            tasks.setdefault(row % len(self.members), []).append((row, seed))
        for number, task in tasks.items():
            self.members[number].send(task)
        more_s = START_S if pairs.keys() - self.ready else 0.0  # copies are made when they are first used
        self.ready |= pairs.keys()
        gone, failures, deadline = {}, [], time.monotonic() + timeout_s + more_s
        for number in tasks:
            try:
                answer = self.members[number].receive(deadline)
            except Lost as error:
                gone[number] = str(error)
                continue
            if answer:
                failures.append({**answer, "worker": number})
        return gone, failures

    def restart(self, number: int) -> None:
        """Start another worker in place of one; its copies are gone."""
        self.members[number].close()
        self.ready = {row for row in self.ready if row % len(self.members) != number}
        self.members[number] = self._start()
        self._await(number)

    def close(self) -> None:
        """End all workers; their memory goes when nothing refers to it."""
        self.file.close()
        workers, self.members = self.members, []
        _close_all(self.origin, workers)


def _shared_file(size: int) -> BinaryIO:
    """Return a file without a name, in memory where the system has such files, so that nothing can be left behind."""
    named = hasattr(os, "memfd_create")
    file: Any = os.fdopen(os.memfd_create("uavlab"), "r+b") if named else tempfile.TemporaryFile()  # noqa: SIM115
    try:
        file.truncate(size)
    except OSError as error:
        file.close()
        raise ResourceError(f"workers: {size:,} bytes of shared memory: {error.strerror}; set fewer copies.") from error
    return file
