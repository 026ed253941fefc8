"""Timer for the stages of a loop.

The time of a stage excludes that of stages inside it, so no time is counted twice. On a GPU it is the time on the
stream to which stages queue their work, including waits; concurrent work on other streams is not counted.
"""

import threading
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

RECENT = 1024  # durations per stage for percentiles, and segments that may wait for a GPU
PREFIX = "uavlab."  # of stage names in traces
GOLDEN = (5**0.5 - 1) / 2  # the golden ratio, of all numbers the one whose multiples spread most evenly
NOTHING = nullcontext()


class Monitor:
    """A timer for the stages of a loop in one thread, with bounded memory; only ``read`` waits for a GPU.

    ``updates`` counts those that were timed, of those that ``begin_update`` announced.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.active = True  # whether stages are timed now; on a GPU, NVTX ranges show them then
        self.tracing = False  # also show them as ranges in traces of torch.profiler
        self.resets = 0  # each time, it begins to time the thread that resets it
        self._cuda = torch.device(device).type == "cuda"
        self._stream = torch.cuda.current_stream(device) if self._cuda else None
        self._open: list[_Call] = []  # the innermost call last
        self.reset()

    def reset(self) -> None:
        """Drop all measured times, including those of open calls so far, and time the present thread."""
        self._thread, self.resets, self.updates = threading.get_ident(), self.resets + 1, 0
        self._stages: dict[str, _Stage] = {}
        self._segments: deque[tuple[_Call, Any, Any, bool]] = deque()  # call, start, end, whether the call ended
        self._since = self._began = self._mark()
        for call in self._open:
            call.seconds = 0.0

    def scope(self, name: str) -> AbstractContextManager[None]:
        """Add the time inside to stage ``name``, also if it raises; not during a capture, nor in another thread."""
        return _Call(name, self) if self.active else NOTHING

    def begin_update(self, number: int, every: int = 1) -> None:
        """Time update ``number`` if it is one of ``every`` many, by a rule that favours no rhythm of the loop."""
        # multiples of an irrational number spread evenly over the remainders of any period, such as that of an interval
        self.active = number * GOLDEN % 1 < 1 / every
        self.updates += self.active

    def read(self) -> list[dict[str, Any]]:
        """Return a row per stage, the longest first (host sync).

        Returns:
            JSON values: ``name``, ``calls``, ``total_ms``, ``mean_ms``, ``p50_ms`` and ``p95_ms`` per finished call (of
            the last 1024), and ``share`` of the time since the monitor began or was reset. Shares add up to at most 1.
        """
        now = self._mark()
        if self._cuda:
            now.synchronize()
        self._settle()
        window = self._seconds(self._began, now)
        return sorted((stage.row(window) for stage in self._stages.values()), key=lambda row: -row["total_ms"])

    def by_update(self, since: int) -> dict[str, list[float]]:
        """Return the seconds of each stage in the timed updates after the first ``since``, where it ran (host sync)."""
        if self._cuda:
            self._mark().synchronize()
        self._settle()
        return {
            name: [seconds for update, seconds in stage.by_update.items() if update > since]
            for name, stage in self._stages.items()
        }

    def _mark(self) -> Any:
        """Return the current time of the host, or an event on the stream."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def _seconds(self, began: Any, ended: Any) -> float:
        return began.elapsed_time(ended) / 1e3 if self._cuda else ended - began

    def _enter(self, call: "_Call") -> bool:
        """Begin a call of this thread; return whether it is timed."""
        if threading.get_ident() != self._thread or (self._cuda and torch.cuda.is_current_stream_capturing()):
            return False
        self._cut()
        self._open.append(call)
        if self._cuda:
            torch.cuda.nvtx.range_push(PREFIX + call.name)
        if self.tracing:
            call.range = torch.profiler.record_function(PREFIX + call.name)
            call.range.__enter__()
        return True

    def _leave(self, call: "_Call") -> None:
        if call.range is not None:
            call.range.__exit__(None, None, None)
        if self._cuda:
            torch.cuda.nvtx.range_pop()
        self._cut(last=True)
        self._open.pop()

    def _cut(self, last: bool = False) -> None:
        """End the segment of the innermost open call."""
        now, call = self._mark(), self._open[-1] if self._open else None
        if call is not None and self._cuda:
            self._segments.append((call, self._since, now, last))
            if len(self._segments) > RECENT:
                self._settle()
        elif call is not None:
            self._count(call, now - self._since, last)
        self._since = now

    def _settle(self) -> None:
        """Sum the segments that have ended."""
        while self._segments and self._segments[0][2].query():
            call, began, ended, last = self._segments.popleft()
            self._count(call, self._seconds(began, ended), last)

    def _count(self, call: "_Call", seconds: float, last: bool) -> None:
        """Add the time of a segment to its call, and that of a call that ended to its stage."""
        call.seconds += seconds
        if last:
            if call.name not in self._stages:
                self._stages[call.name] = _Stage(call.name)
            self._stages[call.name].add(call.seconds, call.update)


class _Call:
    """One call of a stage, a context; a class of its own costs a third of a generator."""

    __slots__ = ("monitor", "name", "range", "seconds", "timed", "update")

    def __init__(self, name: str, monitor: Monitor) -> None:
        self.name, self.monitor, self.seconds, self.update = name, monitor, 0.0, monitor.updates
        self.range: Any = None  # in a trace

    def __enter__(self) -> None:
        self.timed = self.monitor._enter(self)

    def __exit__(self, *error: object) -> None:
        if self.timed:
            self.monitor._leave(self)


@dataclass
class _Stage:
    name: str
    calls: int = 0
    seconds: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    by_update: dict[int, float] = field(default_factory=dict)  # seconds of all calls in an update, the oldest first

    def add(self, seconds: float, update: int) -> None:
        self.calls += 1
        self.seconds += seconds
        self.recent.append(seconds)
        self.by_update[update] = self.by_update.get(update, 0.0) + seconds
        if len(self.by_update) > RECENT:
            del self.by_update[next(iter(self.by_update))]

    def row(self, window: float) -> dict[str, Any]:
        p50, p95 = (1e3 * float(value) for value in np.percentile(self.recent, (50, 95)))
        return {
            "name": self.name,
            "calls": self.calls,
            "total_ms": 1e3 * self.seconds,
            "mean_ms": 1e3 * self.seconds / self.calls,
            "p50_ms": p50,
            "p95_ms": p95,
            "share": self.seconds / window,
        }


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all queued work; return at once on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
