"""Profile of a step by torch.profiler: times of operators, and a trace for Perfetto.

Open a trace at https://ui.perfetto.dev or in chrome://tracing.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, schedule

from uavlab.runtime.stage_timer import PREFIX, Monitor
from uavlab.storage.files import atomic_write

WAIT, WARM_UP, ACTIVE, REPEAT = 1, 1, 3, 2  # steps, and cycles of them
STEPS = (WAIT + WARM_UP + ACTIVE) * REPEAT
PYTHON, GRAPHS = "between operators", "kernels of no operator"


def profile(
    step: Callable[[], Any],
    device: torch.device | str,
    trace: Path | None = None,
    *,
    monitor: Monitor | None = None,
    top: int = 10,
) -> list[dict[str, Any]]:
    """Profile ``step`` in two cycles: a call to wait, a call to warm up, and three calls to record.

    Args:
        step: A step of a loop.
        device: Its device.
        trace: Write a trace to this file, with shapes and memory; compressed if the name ends in ``.gz``.
        monitor: Monitor whose stages the trace shows.
        top: Maximum number of rows.

    Returns:
        A row per operator, the longest first: ``operator``, ``calls`` and own ``cpu_ms`` per step, and ``share`` of all
        own time. One row holds the time between operators, mostly Python. On a GPU there is also ``device_ms``, which
        then decides order and shares, and a row for kernels of graphs.

    Raises:
        ResourceError: The trace cannot be written.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler's library writes to stderr
    cuda = torch.device(device).type == "cuda"
    before = monitor.tracing if monitor else False
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda],
        schedule=schedule(wait=WAIT, warmup=WARM_UP, active=ACTIVE, repeat=REPEAT),
        record_shapes=trace is not None,
        profile_memory=trace is not None,
        acc_events=True,
    ) as profiler:
        if monitor:
            monitor.tracing = True
        try:
            for _ in range(STEPS):
                step()
                profiler.step()
        finally:
            if monitor:
                monitor.tracing = before
    if trace is not None:
        with atomic_write(trace) as temporary:
            profiler.export_chrome_trace(str(temporary))
    return _rows(profiler.key_averages(), cuda)[:top]


def _rows(averages: Any, cuda: bool) -> list[dict[str, Any]]:
    steps, columns = ACTIVE * REPEAT, ("calls", "cpu_ms", "device_ms") if cuda else ("calls", "cpu_ms")
    rows: dict[str, dict[str, Any]] = {}
    kernels = 0.0
    for each in averages:
        if each.device_type != DeviceType.CPU:  # a kernel, whose time counts for its operator too
            kernels += 0 if each.is_user_annotation else each.self_device_time_total / 1e3 / steps
            continue
        ours = each.key.startswith(("ProfilerStep", PREFIX))
        name = PYTHON if ours else each.key
        row = rows.setdefault(name, {"operator": name, **dict.fromkeys(columns, 0.0)})
        row["cpu_ms"] += each.self_cpu_time_total / 1e3 / steps
        if not ours:
            row["calls"] += each.count / steps
        if cuda and not ours:
            row["device_ms"] += each.self_device_time_total / 1e3 / steps
    if cuda:
        rest = max(0.0, kernels - sum(row["device_ms"] for row in rows.values()))
        rows[GRAPHS] = {"operator": GRAPHS, **dict.fromkeys(columns, 0.0), "device_ms": rest}
    by = columns[-1]
    whole = sum(row[by] for row in rows.values()) or 1.0
    return [row | {"share": row[by] / whole} for row in sorted(rows.values(), key=lambda row: -row[by])]
