"""Profile of a step by torch.profiler: times of operators, and a trace for Perfetto.

Open a trace at https://ui.perfetto.dev or in chrome://tracing.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, schedule

from uavlab.runtime.stage_timer import PREFIX, Monitor
from uavlab.storage.files import atomic_write

WAIT, WARM_UP, ACTIVE, REPEAT = 1, 1, 3, 2  # steps, and cycles of them
PYTHON, GRAPHS = "between operators", "kernels of no operator"
DEEPEST = 100  # frames of a stack that are compared
FRAME = re.compile(r"(.*\.py)\((\d+)\): (.*)")
OTHERS = re.compile(r"(.*/)?torch/|<|.*\bcontextlib\.py")  # beginnings of frames that are nobody's own code


def profile(
    step: Callable[[], Any],
    device: torch.device | str,
    trace: Path | None = None,
    *,
    monitor: Monitor | None = None,
    top: int = 10,
    stacks: bool = False,
    once: bool = False,
) -> list[dict[str, Any]]:
    """Profile ``step`` in two cycles: a call to wait, a call to warm up, and three calls to record.

    Args:
        step: A step of a loop.
        device: Its device.
        trace: Write a trace to this file, with shapes and memory; compressed if the name ends in ``.gz``.
        monitor: Monitor whose stages the trace shows.
        top: Maximum number of rows.
        stacks: Name the function that calls an operator, which makes a row for each function, and steps slower.
        once: Record one call instead of six, because a profile of long steps takes gigabytes.

    Returns:
        A row per operator, the longest first: ``operator``, ``calls`` and own ``cpu_ms`` per step, and ``share`` of all
        own time. One row holds the time between operators, mostly Python. On a GPU there is also ``device_ms``, which
        then decides order and shares, and a row for kernels of graphs. With ``stacks``, ``source`` is file, line and
        name of the innermost function outside torch; operators of a backward pass have the one that starts it.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler's library writes to stderr
    cuda = torch.device(device).type == "cuda"
    active, repeat = (1, 1) if once else (ACTIVE, REPEAT)
    before = monitor.tracing if monitor else False
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda],
        schedule=schedule(wait=WAIT, warmup=WARM_UP, active=active, repeat=repeat),
        record_shapes=trace is not None,
        profile_memory=trace is not None,
        with_stack=stacks,
        experimental_config=_ExperimentalConfig(verbose=True) if stacks else None,
        acc_events=True,
    ) as profiler:
        if monitor:
            monitor.tracing = True
        try:
            for _ in range((WAIT + WARM_UP + active) * repeat):
                step()
                profiler.step()
        finally:
            if monitor:
                monitor.tracing = before
    if trace is not None:
        with atomic_write(trace) as temporary:
            profiler.export_chrome_trace(str(temporary))
    return _rows(profiler.key_averages(group_by_stack_n=DEEPEST * stacks), cuda, stacks, active * repeat)[:top]


def source(stack: Iterable[str]) -> str:
    """Return the innermost frame of a stack that is not torch's; empty if there is none.

    >>> source(["<built-in method mm>", "torch/nn/functional.py(9): linear", "mine.py(3): net", "mine.py(1): loss"])
    'mine.py:3 net'
    """
    frames = (match for line in stack if not OTHERS.match(line) and (match := FRAME.fullmatch(line)))
    first = next(frames, None)
    return "{}:{} {}".format(*first.groups()) if first else ""


def _rows(averages: Any, cuda: bool, stacks: bool = False, steps: int = ACTIVE * REPEAT) -> list[dict[str, Any]]:
    columns = ("calls", "cpu_ms", "device_ms") if cuda else ("calls", "cpu_ms")
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    kernels = 0.0
    for average in averages:
        if average.device_type != DeviceType.CPU:  # a kernel, whose time counts for its operator too
            kernels += 0 if average.is_user_annotation else average.self_device_time_total / 1e3 / steps
            continue
        ours = average.key.startswith(("ProfilerStep", PREFIX, "<")) or FRAME.fullmatch(average.key) is not None
        name, caller = (PYTHON, "") if ours else (average.key, source(average.stack) if stacks else "")
        row = rows.setdefault((name, caller), {"operator": name, **dict.fromkeys(columns, 0.0)})
        row["cpu_ms"] += average.self_cpu_time_total / 1e3 / steps
        if not ours:
            row["calls"] += average.count / steps
        if cuda and not ours:
            row["device_ms"] += average.self_device_time_total / 1e3 / steps
    if cuda:
        rest = max(0.0, kernels - sum(row["device_ms"] for row in rows.values()))
        rows[GRAPHS, ""] = {
            "operator": GRAPHS,
            **({"source": ""} if stacks else {}),
            **dict.fromkeys(columns, 0.0),
            "device_ms": rest,
        }
    by = columns[-1]
    whole = sum(row[by] for row in rows.values()) or 1.0
    return [
        {**row, "share": row[by] / whole} | ({"source": caller} if stacks else {})
        for (_, caller), row in sorted(rows.items(), key=lambda item: -item[1][by])
    ]
