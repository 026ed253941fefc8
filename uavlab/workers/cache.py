"""Copies of an environment as a cache of states: a state is a seed and the actions since, and can always be rebuilt."""

import atexit
import os
import shlex
import threading
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from uavlab.core.errors import ConfigError, FallbackWarning
from uavlab.core.installation import program
from uavlab.experiment.names import Origin
from uavlab.storage.machine import usable_cores
from uavlab.workers.processes import TRIES, Workers, with_notes
from uavlab.workers.spaces import Description, Rows

SHOWN = 2  # worlds in one message
MOST = 4  # environments whose workers run at the same time in this process
INEXACT = "an episode that was played again with its seed and actions went another way"
SEED = 7  # of the episodes by which copies are compared before they are used


def key_of(before: int, numbers: bytes) -> int:
    """Return the fingerprint of a state from that of the state before and an action; of a start, from 0 and a seed."""
    mixed = blake2b(before.to_bytes(8, "little", signed=True) + numbers, digest_size=8).digest()
    return int.from_bytes(mixed, "little", signed=True)


@dataclass(frozen=True)
class World:
    """A world to be brought to its next state; what is None is not there where it starts."""

    number: int  # in its batch, for messages
    seed: int  # of its start
    after: int  # fingerprint of the state to reach
    before: int | None = None  # fingerprint of its present state
    action: np.ndarray | None = None  # the next one
    past: Callable[[], np.ndarray] | None = None  # returns the actions before (k A D), to rebuild it
    seen: Callable[[], np.ndarray] | None = None  # returns what its agents observe now (A O), to compare it then


class Cache:
    """Live copies of an environment in worker processes, each in the state of one world.

    A copy whose world is stepped goes on; a world without a copy, such as that of a resumed run or of a worker that
    was lost, is rebuilt in a free copy, or in the one that was used longest ago. Threads take turns.
    """

    def __init__(self, origin: Origin, description: Description, workers: int, copies: int, timeout_s: float) -> None:
        self.origin, self.description, self.timeout_s = origin, description, timeout_s
        self.count = workers or usable_cores()
        self.copies = copies
        self.counts: Counter[str] = Counter()  # restarts of workers, worlds rebuilt, and those that came out otherwise
        self.reason = ""  # why worlds cannot be repeated bit for bit
        self.lock = threading.Lock()
        self.workers: Workers | None = None
        self.live: OrderedDict[int, int] = OrderedDict()  # rows by fingerprint, the one used longest ago first
        self.free: list[deque[int]] = []  # rows of each worker

    def bring(self, worlds: Sequence[World]) -> Rows:
        """Start or step worlds, and return a copy of their rows, in their order."""
        with self.lock:
            workers = self._ready(len(worlds))
            try:
                places = self._place(workers, worlds)
            except BaseException:  # also an interrupt: copies are between states, and answers are on their way
                self._end()
                raise
            index = [places[world.number] for world in worlds]
            for world in worlds:
                if (row := self.live.pop(world.after, None)) is not None:  # two worlds in one state
                    self._release(row)
                self.live[world.after] = places[world.number]
            return Rows(*(array[index] for array in workers.rows))

    def check_chance(self) -> None:
        """Compare start and first step of an episode with those on a used copy and in another one, from one seed.

        An environment that fails here fails again where it is stepped, which says what it was doing.
        """
        with self.lock:
            workers, load = self._ready(2), Counter[int]()
            copy, second = self._take(load), self._take(load)
            results = []
            try:
                for pairs in ({copy: SEED, second: SEED}, {copy: None, second: None}, {copy: SEED}, {copy: None}):
                    if any(workers.run(pairs, self.timeout_s)):
                        return self._end()
                    for row in pairs:
                        _, *after = (array[row] for array in workers.rows)
                        results.append(np.concatenate([array.ravel() for array in after]))
                        workers.rows.action[row] = workers.rows.legal[row].argmax(-1)[:, None] if after[1].size else 0
            except BaseException:  # also an interrupt: answers are on their way
                self._end()
                raise
            self._release(copy)
            self._release(second)
        start, start_there, step, step_there, start_again, step_again = results
        for what, first, there, again in (
            (f"reset(seed={SEED})", start, start_there, start_again),
            (f"a step after reset(seed={SEED})", step, step_there, step_again),
        ):
            for place, numbers in (("on a used copy", again), ("in another copy", there)):
                if not np.array_equal(first, numbers, equal_nan=True):
                    return self.notice(f"{what} gave other numbers {place}")
        return None

    def notice(self, text: str) -> None:
        """Count that numbers cannot be repeated; the first time is a warning."""
        self.counts["inexact"] += 1
        if not self.reason:
            self.reason = text
            advice = "draw all chance from self.np_random. The run goes on, and is listed as not exact."
            warnings.warn(f"{self.origin.name}: {text}; {advice}", FallbackWarning, stacklevel=2)

    def release(self, keys: Sequence[int]) -> None:
        """Free the copies of worlds that have ended."""
        with self.lock:
            for key in keys:
                if (row := self.live.pop(key, None)) is not None:
                    self._release(row)

    def close(self) -> None:
        """End the workers; they start again when they are needed."""
        with self.lock:
            self._end()

    def _end(self) -> None:
        workers, self.workers = self.workers, None
        self._forget()
        if workers is not None:
            workers.close()

    def _ready(self, batch: int) -> Workers:
        """Return running workers with rows for a batch."""
        if self.workers is not None and batch > self.workers.copies:
            self._end()
        if self.workers is None:
            per = -(-max(self.copies, batch) // self.count)
            self.workers = Workers(self.origin, self.description, self.count, per * self.count)
            self._forget()
        return self.workers

    def _forget(self) -> None:
        """Mark all copies as free."""
        self.live.clear()
        copies = 0 if self.workers is None else self.workers.copies
        self.free = [deque(range(number, copies, self.count)) for number in range(self.count)]

    def _release(self, row: int) -> None:
        self.free[row % self.count].appendleft(row)  # used again before a copy that was never made

    def _place(self, workers: Workers, worlds: Sequence[World]) -> dict[int, int]:
        """Bring worlds to their next states; return the row of each by its number."""
        places: dict[int, int] = {}
        pending, number, why = list(worlds), 0, ""
        for _ in range(TRIES):
            rows, load = {}, Counter[int]()
            for world in pending:
                row = None if world.before is None else self.live.pop(world.before, None)
                if row is not None:
                    rows[world.number] = row
                    load[row % self.count] += 1
            plans = {}
            for world in pending:
                rebuilt = world.number not in rows
                row = rows[world.number] if world.number in rows else self._take(load)
                places[world.number] = row
                plans[row] = _plan(world, rebuilt)
                self.counts["rebuilt"] += rebuilt and world.before is not None
            gone = self._play(workers, plans, {places[world.number]: world for world in pending})
            pending = [world for world in worlds if places[world.number] % self.count in gone]  # also those of before
            if not pending:
                return places
            number, why = next(iter(gone.items()))
        lost = [world for world in pending if places[world.number] % self.count == number]
        where = ", ".join(f"world {world.number} at step {_step(world)}" for world in lost[:SHOWN])
        more = f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
        raise ConfigError(
            f"{self.origin.name}: {TRIES} workers were lost one after the other, the last one, worker {number} with "
            f"{where}{more}, because {why}; expected an answer within timeout_s={self.timeout_s:g}. Set a longer one, "
            "or step the environment alone to see why."
        )

    def _take(self, load: Counter[int]) -> int:
        """Return a free row of the worker with the fewest worlds of this batch, or the one used longest ago."""
        ready = [number for number in range(self.count) if self.free[number]]
        if ready:
            number = min(ready, key=load.__getitem__)
            load[number] += 1
            return self.free[number].popleft()
        _, row = self.live.popitem(last=False)
        load[row % self.count] += 1
        return row

    def _play(self, workers: Workers, plans: dict[int, Iterator[Any]], of: dict[int, World]) -> dict[int, str]:
        """Run the plans of all rows side by side; restart workers that are lost, and return why, by their numbers."""
        gone: dict[int, str] = {}
        while plans:
            pairs: dict[int, int | None] = {}
            for row in [*plans]:
                if row % self.count in gone or (command := next(plans[row], None)) is None:
                    del plans[row]
                    continue
                kind, value = command
                if kind == "compare":
                    if not np.array_equal(workers.rows.obs[row], value(), equal_nan=True):
                        self.notice(INEXACT)
                    kind, value = next(plans[row])
                pairs[row] = value if kind == "seed" else None
                if kind == "action":
                    workers.rows.action[row] = value
            lost, failures = workers.run(pairs, self.timeout_s) if pairs else ({}, [])
            for failure in failures:
                raise with_notes(ConfigError(self._text(failure, of)), failure)
            for number, why in lost.items():
                gone[number] = why
                self._restart(workers, number, why)
        return gone

    def _restart(self, workers: Workers, number: int, why: str) -> None:
        self.counts["restarts"] += 1
        if self.counts["restarts"] == 1:
            warnings.warn(
                f"{self.origin.name}: worker {number} was started again, because {why}; its worlds are rebuilt from "
                "their seeds and actions. Further ones are counted in run.json.",
                FallbackWarning,
                stacklevel=2,
            )
        self.live = OrderedDict((key, row) for key, row in self.live.items() if row % self.count != number)
        self.free[number] = deque(range(number, workers.copies, self.count))
        workers.restart(number)

    def _text(self, failure: dict[str, Any], of: dict[int, World]) -> str:
        world = of[failure["row"]]
        where = f"{self.origin.name}: world {world.number}, step {_step(world)}, worker {failure['worker']}"
        if "refused" in failure:
            return f"{where}: {failure['refused']}."
        return (
            f"{where}: {failure['doing']} raised {failure['raised']}. For its traceback: "
            f"`{program()} --traceback check {shlex.quote(self.origin.name)}`."
        )


def _step(world: World) -> int:
    """Return how many steps a world has made."""
    return 0 if world.past is None else len(world.past())


def _plan(world: World, rebuilt: bool) -> Iterator[tuple[str, Any]]:
    """Yield what a copy has to do for a world."""
    if rebuilt:
        yield "seed", world.seed
        if world.past is not None and world.seen is not None:
            for action in world.past():
                yield "action", action
            yield "compare", world.seen
    if world.action is not None:
        yield "action", world.action


_CACHES: OrderedDict[tuple[Any, ...], Cache] = OrderedDict()  # the one used longest ago first


def cache_for(origin: Origin, description: Description, workers: int, copies: int, timeout_s: float) -> Cache:
    """Return the cache that environments with these settings share in this process; others may lose their workers."""
    key = (os.getpid(), origin.name, description.text, workers, copies, timeout_s)
    if key not in _CACHES:
        _CACHES[key] = Cache(origin, description, workers, copies, timeout_s)
    _CACHES.move_to_end(key)
    for unused in [*_CACHES.values()][:-MOST]:
        unused.close()
    return _CACHES[key]


def worker_ids() -> list[int]:
    """Return the ids of all worker processes of this process; those of the environment used last come last."""
    caches = [cache for (process, *_), cache in _CACHES.items() if process == os.getpid() and cache.workers]
    return [worker.process.pid for cache in caches for worker in cache.workers.members]  # type: ignore[union-attr]


@atexit.register
def close_all(name: str = "") -> None:
    """End all workers of this process, or those of one environment; they start again where they are needed."""
    for (process, env, *_), cache in _CACHES.items():
        if process == os.getpid() and name in ("", env):  # not those of a process that was copied
            cache.close()
            cache.reason = "" if name else cache.reason  # its code has changed
