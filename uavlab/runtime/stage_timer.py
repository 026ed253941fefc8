"""Where the time of a loop goes, stage by stage, and how much work one call is: operators, FLOPs, bytes.

A stage's time is its own: what stages inside it take is theirs alone, so nothing is counted twice. On a GPU it is the
time of the stream in which stages queue their work, waiting included; work that overlaps on other streams costs none.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

KEPT = 1024  # durations per stage, for percentiles; and segments that a GPU may be behind
PREFIX = "uavlab."  # of stages in traces


class Monitor:
    """A clock for the stages of one thread's loop; its memory is bounded, and only ``read`` waits for a GPU.

    Attributes:
        tracing: Stages also become ranges of torch.profiler's trace; on a GPU, NVTX ranges always show them.
    """

    def __init__(self, device: torch.device | str) -> None:
        """Begin to measure; on a GPU, along the stream that is current now."""
        self.tracing = False
        self._thread = threading.get_ident()
        self._cuda = torch.device(device).type == "cuda"
        self._stream = torch.cuda.current_stream(device) if self._cuda else None
        self._open: list[_Call] = []  # calls under way, the innermost last
        self.reset()

    def reset(self) -> None:
        """Forget what was measured; of calls under way, the part so far."""
        self._stages: dict[str, _Stage] = {}
        self._segments: deque[tuple[_Call, Any, Any, bool]] = deque()  # call, its beginning and end, whether the last
        self._since = self._began = self._mark()
        for call in self._open:
            call.seconds = 0.0

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Count what runs inside as stage ``name``, also when it raises; in a capture or another thread, nothing."""
        if threading.get_ident() != self._thread or (self._cuda and torch.cuda.is_current_stream_capturing()):
            yield
            return
        self._cut()
        self._open.append(_Call(name))
        if self._cuda:
            torch.cuda.nvtx.range_push(PREFIX + name)
        try:
            with torch.profiler.record_function(PREFIX + name) if self.tracing else nullcontext():
                yield
        finally:
            if self._cuda:
                torch.cuda.nvtx.range_pop()
            self._cut(last=True)
            self._open.pop()

    def read(self) -> list[dict[str, Any]]:
        """Give a row per stage, the longest first (host sync).

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

    def _mark(self) -> Any:
        """Note this moment: of the host, or of the stream once it gets here."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def _seconds(self, began: Any, ended: Any) -> float:
        return began.elapsed_time(ended) / 1e3 if self._cuda else ended - began

    def _cut(self, last: bool = False) -> None:
        """End the segment of the innermost call under way; what follows belongs to another, or to none."""
        now = self._mark()
        if self._open:
            self._segments.append((self._open[-1], self._since, now, last))
        self._since = now
        if not self._cuda or len(self._segments) > KEPT:
            self._settle()

    def _settle(self) -> None:
        """Add up the segments that have come to their end."""
        while self._segments and (not self._cuda or self._segments[0][2].query()):
            call, began, ended, last = self._segments.popleft()
            call.seconds += self._seconds(began, ended)
            if last:
                self._stages.setdefault(call.name, _Stage(call.name)).add(call.seconds)


@dataclass
class _Call:
    name: str
    seconds: float = 0.0


class _Stage:
    def __init__(self, name: str) -> None:
        self.name, self.calls, self.seconds = name, 0, 0.0
        self.recent: deque[float] = deque(maxlen=KEPT)

    def add(self, seconds: float) -> None:
        self.calls += 1
        self.seconds += seconds
        self.recent.append(seconds)

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
    """Wait until a GPU has finished what it was given; on a CPU nothing is left to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory(device: torch.device | str) -> dict[str, int]:
    """Tell the memory of this process (bytes).

    Returns:
        On a GPU ``allocated`` by tensors, its ``peak``, and ``reserved`` by torch, which the driver's figure exceeds by
        the context; else ``resident``.
    """
    if torch.device(device).type == "cuda":
        return {
            "allocated": torch.cuda.memory_allocated(device),
            "peak": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
        }
    return {"resident": psutil.Process().memory_info().rss}


@dataclass(frozen=True)
class Work:
    """What one call asks of a device.

    Attributes:
        operators: Operators that reach the device; views, which do no work, left out.
        flops: Floating-point operations of matrix products, a multiplication and an addition counted as two.
        bytes: Sizes of what the other operators read and wrote; what products do is part of their rate.
        products: The matrix products N x K times K x M, in batches of G: ``((G, N, K, M), count)``.
    """

    operators: int = 0
    flops: int = 0
    bytes: int = 0
    products: tuple[tuple[tuple[int, int, int, int], int], ...] = ()


def count_work(call: Callable[[], Any]) -> Work:
    """Count the work of one call, forward and backward; of compiled code and replayed graphs, only what torch sees."""
    with FlopCounterMode(display=False) as flops, _Operators() as seen:
        call()
    return Work(seen.count, flops.get_total_flops(), seen.bytes, tuple(sorted(seen.products.items())))


def count_operators(call: Callable[[], Any]) -> int:
    """Count the operators of one call, forward and backward, views left out."""
    with _Operators() as seen:
        call()
    return seen.count


# Operators whose first argument is a table of which they touch the indexed rows alone.
INDEXED = frozenset(
    {"index", "index_select", "gather", "take", "embedding", "index_put_", "index_copy_", "index_add_", "scatter_"}
)
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # and where their first factor stands


class _Operators(TorchDispatchMode):
    """Counts operators, their bytes and the shapes of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.bytes = 0
        self.products: Counter[tuple[int, int, int, int]] = Counter()

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Tell torch that compiled code may run as it is under this mode, instead of refusing it."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            name = func.overloadpacket.__name__
            self.count += 1
            if name in PRODUCTS:
                a, b = args[PRODUCTS[name] :][:2]
                self.products[(a.shape[0] if a.dim() == 3 else 1, *a.shape[-2:], b.shape[-1])] += 1
            else:
                self.bytes += _bytes(name, args, kwargs, out)
        return out


def _bytes(name: str, args: Any, kwargs: Any, out: Any) -> int:
    """Add up the sizes of what an operator reads and writes, as if nothing stayed in a cache."""
    if name in INDEXED:
        return 2 * sum(_size(leaf) for leaf in tree_leaves((args[1:], kwargs, out)) if leaf is not args[0])
    given = sum(map(_size, tree_leaves((args, kwargs))))
    return given + (given if out is None else sum(map(_size, tree_leaves(out))))  # None: written in place


def _size(value: Any) -> int:
    """Give the bytes that a tensor occupies: a dimension that was expanded occupies none."""
    if not isinstance(value, Tensor):
        return 0
    return value.element_size() * math.prod(n for n, step in zip(value.shape, value.stride(), strict=True) if step)
