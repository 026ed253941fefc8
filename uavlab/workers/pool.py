"""Worker processes with live copies of an environment, as the process that trains sees them.

A copy is known by the ticket of the state that it is in. A step takes the ticket and returns another one, so that a
state is stepped once; where a copy is gone, its ticket is not found.
"""

import atexit
import json
import mmap
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any

import numpy as np

from uavlab.core.errors import ConfigError, FallbackWarning, ResourceError
from uavlab.core.installation import PACKAGE, program
from uavlab.core.text import printable
from uavlab.experiment.names import Origin
from uavlab.workers.spaces import Description, Rows, difference, memory_bytes, rows_in

QUIET = {"OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
START_S = 120.0  # seconds for a worker to import the environment and make a first one
CLOSE_S = 5.0  # seconds for all workers to close their copies
MOST = 4  # environments whose workers run at the same time in this process
SEED = 7  # of the episodes by which copies are compared before they are used


class Worker:
    """A process with copies of an environment."""

    def __init__(self, origin: Origin, memory: int | None) -> None:
        """Start the process; ``describe`` waits until it is ready."""
        self.socket, served = socket.socketpair()
        alive, self.alive = os.pipe()
        words = [sys.executable, "-P", "-m", "uavlab.workers.worker", str(served.fileno()), str(alive)]
        home = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            self.process = subprocess.Popen(
                words,
                env={**os.environ, **QUIET, "PYTHONPATH": home},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[served.fileno(), alive, *([] if memory is None else [memory])],
                process_group=0,  # signals of a terminal are for the process that trains; what it starts ends with it
            )
        except OSError as error:
            self._release()
            raise ResourceError(
                f"{origin.name}: no worker could start ({error.strerror}); expected fewer: set workers."
            ) from error
        finally:
            served.close()
            os.close(alive)
        self.lines, self.hangs = self.socket.makefile("rb"), False
        call = {"kind": origin.kind, "target": origin.target, "factory": origin.factory}
        self.send({"origin": {**call, "arguments": dict(origin.arguments)}, "memory": memory, "path": sys.path})

    def send(self, message: Any) -> None:
        """Send a message; a worker that is gone is noticed by ``receive``."""
        with suppress(OSError):
            self.socket.settimeout(START_S)
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next answer, or why there is none as ``lost``."""
        line = b""
        with suppress(OSError):
            self.socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                line = self.lines.readline()
            except TimeoutError:
                self.hangs = True
                return {"lost": "it did not answer in time"}
        return json.loads(line) if line.endswith(b"\n") else {"lost": f"it ended with {_exit_of(self.process)}"}

    def describe(self, name: str) -> Description:
        """Return what the worker says of the environment that it made."""
        answer = self.receive(time.monotonic() + START_S)
        if "description" in answer:
            return Description.from_json(answer["description"])
        if "lost" in answer:
            raise ConfigError(
                f"{name}: no worker could make it, because {answer['lost']}; expected an environment within "
                f"{START_S:g} s. Make it in Python to see why."
            )
        step = "" if "refused" in answer else "; expected an environment: correct its name or its arguments"
        text = f"{name}: {answer.get('refused') or 'making it raised ' + answer['raised']}{step}."
        raise with_notes(ConfigError(text), answer)

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
            answer: dict[str, Any] = {}
            while not answer.keys() & {"closed", "lost"}:  # others are of steps before
                answer = self.receive(deadline)
            raised = answer.get("closed")
            why = f"it raised {raised}" if raised else answer["lost"] if self.hangs else ""  # else it ended by itself
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.lines.close()
        self._release()
        return why

    def _release(self) -> None:
        self.socket.close()
        os.close(self.alive)
        self.alive = -1


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
    worker = Worker(origin, None)
    try:
        return worker.describe(origin.name)
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


def ticket_of(before: int, numbers: bytes) -> int:
    """Return the ticket of a state from that of the state before and an action; of a start, from 0 and a seed.

    It depends on nothing else, so that runs from one seed have equal digests.
    """
    mixed = blake2b(before.to_bytes(8, "little", signed=True) + numbers, digest_size=8).digest()
    return int.from_bytes(mixed, "little", signed=True)


class Pool:
    """Copies of an environment, of which each is a row of memory that all processes share.

    Row r belongs to worker r modulo W. A world that starts takes a free row, or the one that was used longest ago where
    no row is free. There are rows for ``copies`` worlds, and for twice the largest batch, so that worlds that wait, as
    those in training during an evaluation, keep theirs; the copy of a row is made when it is used. Threads take turns.
    """

    def __init__(self, origin: Origin, description: Description, workers: int, copies: int, timeout_s: float) -> None:
        self.origin, self.description, self.timeout_s = origin, description, timeout_s
        self.count, self.copies = workers, copies
        self.reason = ""  # why worlds cannot be repeated bit for bit
        self.lock = threading.Lock()
        self.members: list[Worker] = []  # none before they are needed
        self._forget()

    def start(self, seeds: Sequence[int], numbers: Sequence[int]) -> tuple[list[int], Rows]:
        """Start worlds, of which ``numbers`` are those in their batch; return tickets, and a copy of rows."""
        with self._turn():
            rows = self._take(len(seeds))
            tickets = [ticket_of(0, seed.to_bytes(8, "little")) for seed in seeds]
            return tickets, self._bring(dict(zip(rows, seeds, strict=True)), tickets, numbers, [0] * len(seeds))

    def step(
        self, tickets: Sequence[int], actions: np.ndarray, numbers: Sequence[int], steps: Sequence[int]
    ) -> tuple[list[int], list[int], Rows | None]:
        """Step worlds; return the places of those that have a copy, their next tickets, and rows, None without any."""
        with self._turn():
            plan = {row: n for n, ticket in enumerate(tickets) if (row := self._claim(ticket)) is not None}
            at = [*plan.values()]
            if not at:
                return [], [], None
            self.rows.action[[*plan]] = actions[at]
            after = [ticket_of(tickets[n], actions[n].tobytes()) for n in at]
            return at, after, self._bring(dict.fromkeys(plan), after, [numbers[n] for n in at], [steps[n] for n in at])

    def release(self, tickets: Sequence[int]) -> None:
        """Free the copies of worlds that have ended."""
        with self.lock:
            self._free([row for ticket in tickets if (row := self._claim(ticket)) is not None])

    def check_chance(self) -> None:
        """Compare start and first step of an episode with those in another copy and on a used one, from one seed."""
        first, other, again = [*self._numbers(2), *self._numbers(1)]
        for n, what in enumerate((f"reset(seed={SEED})", f"a step after reset(seed={SEED})")):
            for place, numbers in (("on a used copy", again[n]), ("in another copy", other[n])):
                if not self.reason and not np.array_equal(first[n], numbers, equal_nan=True):
                    self.reason = f"{what} gave other numbers {place}"
                    warnings.warn(
                        f"{self.origin.name}: {self.reason}; draw all chance from self.np_random. The run goes on, and "
                        "is listed as not exact.",
                        FallbackWarning,
                        stacklevel=2,
                    )

    def _numbers(self, count: int) -> Iterator[list[np.ndarray]]:
        """Start copies from one seed, and step each once; yield what both gave, for each copy."""
        zeros = [0] * count
        tickets, started = self.start([SEED] * count, zeros)
        moves = started.legal.argmax(-1)[..., None] if started.legal.size else np.zeros_like(started.action)
        _, tickets, stepped = self.step(tickets, moves, zeros, zeros)
        self.release(tickets)
        for n in range(count):
            yield [np.concatenate([array[n].ravel() for array in rows[1:]]) for rows in (started, stepped) if rows]

    def close(self) -> None:
        """End the workers; they start again when they are needed."""
        with self.lock:
            self._end()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let other threads wait; after an error or an interrupt, when copies are between states, end the workers."""
        with self.lock:
            try:
                yield
            except BaseException:
                self._end()
                raise

    def _end(self) -> None:
        workers, self.members = self.members, []
        if self.file is not None:
            self.file.close()
        self._forget()
        _close_all(self.origin, workers)

    def _forget(self) -> None:
        self.file: Any = None
        self.rows: Any = None
        self.size = self.largest = 0  # rows, and worlds of the largest batch
        self.live: dict[int, list[int]] = {}  # rows by ticket, those used longest ago first; equal worlds have one
        self.free: list[deque[int]] = [deque() for _ in range(self.count)]  # rows of each worker
        self.made: set[int] = set()  # rows whose copies are made

    def _open(self) -> None:
        """Start the workers."""
        named = hasattr(os, "memfd_create")  # a file in memory, without a name, so that nothing can be left behind
        self.file = os.fdopen(os.memfd_create("uavlab"), "r+b") if named else tempfile.TemporaryFile()  # noqa: SIM115
        for _ in range(self.count):
            self.members.append(Worker(self.origin, self.file.fileno()))
        for number, worker in enumerate(self.members):
            if text := difference(worker.describe(self.origin.name), self.description):
                raise ConfigError(
                    f"{self.origin.name}: worker {number} made one with {text}, as when it was named first. Let its "
                    "spaces depend on its arguments alone; after a change of its code, name it again by ul.external."
                )

    def _grow(self, size: int) -> None:
        """Make rows up to a number; those before keep their places."""
        needed = memory_bytes(self.description, size)
        try:
            self.file.truncate(needed)
        except OSError as error:
            raise ResourceError(
                f"workers: {needed:,} bytes of shared memory: {error.strerror}; set fewer copies."
            ) from error
        self.rows = rows_in(mmap.mmap(self.file.fileno(), 0), self.description)
        for row in range(self.size, size):
            self.free[row % self.count].append(row)
        self.size = size

    def _take(self, count: int) -> list[int]:
        """Return rows for new worlds, spread over the workers."""
        if not self.members:
            self._open()
        self.largest = max(self.largest, count)
        if (size := max(self.copies, 2 * self.largest)) > self.size:
            self._grow(size)
        rows: list[Any] = []
        load = Counter[int]()
        for _ in range(count):
            ready = [number for number in range(self.count) if self.free[number]]
            number = min(ready, key=load.__getitem__, default=-1)
            rows.append(self._claim(next(iter(self.live))) if number < 0 else self.free[number].popleft())
            load[rows[-1] % self.count] += 1
        return rows

    def _claim(self, ticket: int) -> int | None:
        """Return the row of a world, which is nobody's from now on; None if its copy is gone."""
        if (rows := self.live.pop(ticket, None)) is None:
            return None
        row, *others = rows
        if others:
            self.live[ticket] = others
        return row

    def _free(self, rows: Sequence[int]) -> None:
        for row in reversed(rows):
            self.free[row % self.count].appendleft(row)  # used again before a copy that was never made

    def _bring(
        self, plan: Mapping[int, int | None], tickets: Sequence[int], numbers: Sequence[int], steps: Sequence[int]
    ) -> Rows:
        """Reset rows with a seed, and step the others, all workers at once; return copies of rows, or raise."""
        tasks: dict[int, list[tuple[int, int | None]]] = {}
        for row, seed in plan.items():
            tasks.setdefault(row % self.count, []).append((row, seed))
        for number, task in tasks.items():
            self.members[number].send(task)
        more_s = START_S if plan.keys() - self.made else 0.0  # copies are made when they are first used
        self.made |= plan.keys()
        deadline = time.monotonic() + self.timeout_s + more_s
        answers = {number: self.members[number].receive(deadline) for number in tasks}
        for number, answer in answers.items():
            if answer:
                n = [*plan].index(answer.get("row", tasks[number][0][0]))
                where = f"{self.origin.name}: world {numbers[n]}, step {steps[n]}, worker {number}"
                raise with_notes(ConfigError(f"{where}: {self._reason(answer)}"), answer)
        for ticket, row in zip(tickets, plan, strict=True):
            self.live[ticket] = [*self.live.pop(ticket, ()), row]
        return Rows(*(array[[*plan]] for array in self.rows))

    def _reason(self, failure: Mapping[str, Any]) -> str:
        if "refused" in failure:
            return f"{failure['refused']}."
        if "lost" in failure:
            return (
                f"the worker was lost, because {failure['lost']}; expected an answer within "
                f"timeout_s={self.timeout_s:g}. Set a longer one, or step the environment alone to see why."
            )
        return (
            f"{failure['doing']} raised {failure['raised']}. For its traceback: "
            f"`{program()} --traceback check {shlex.quote(self.origin.name)}`."
        )


_POOLS: OrderedDict[tuple[Any, ...], Pool] = OrderedDict()  # the one used longest ago first


def pool_for(origin: Origin, description: Description, workers: int, copies: int, timeout_s: float) -> Pool:
    """Return the pool that environments with these settings share in this process; others may lose their workers."""
    key = (os.getpid(), origin.name, description.text, workers, copies, timeout_s)
    if key not in _POOLS:
        _POOLS[key] = Pool(origin, description, workers, copies, timeout_s)
    _POOLS.move_to_end(key)
    for unused in [*_POOLS.values()][:-MOST]:
        unused.close()
    return _POOLS[key]


def worker_ids() -> list[int]:
    """Return the ids of all worker processes of this process; those of the environment used last come last."""
    pools = [pool for (process, *_), pool in _POOLS.items() if process == os.getpid()]
    return [worker.process.pid for pool in pools for worker in pool.members]


@atexit.register
def close_all(name: str = "") -> None:
    """End all workers of this process, or those of one environment; they start again where they are needed."""
    for (process, env, *_), pool in _POOLS.items():
        if process == os.getpid() and name in ("", env):  # not those of a process that was copied
            pool.close()
            pool.reason = "" if name else pool.reason  # its code has changed
