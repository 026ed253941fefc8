"""Throughput of loading windows of logs and of the network that learns from them: each alone, both, and over time."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from uavlab.benchmarks.timing import median, ratio, time_call, time_in_turn
from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.runtime.runtime import Runtime
from uavlab.telemetry.window_source import WindowCollector
from uavlab.training import make_cycle

PARTS = ("loader", "model", "both")
IN_A_ROW = 10  # batches per timed call of the loader alone, with no network in between that evicts the caches
INTERVALS, CYCLES = 8, 10  # intervals whose throughput is measured, and the batches in each
MIB = 2**20


def loading_calls(
    config: Config, kind: type[WindowCollector] | None = None
) -> tuple[Runtime, WindowCollector, dict[str, Callable[[], Any]]]:
    """Build the calls ``loader`` (``IN_A_ROW`` batches), ``model`` (an update on one batch) and ``both`` (a cycle).

    ``kind`` replaces the class of the window source.
    """
    rt, rng, learner, source = build.assemble(config)
    source = kind(config.env, config.source, rng, rt) if kind else source
    batch = source.next()
    noise = learner.update_noise(rng, batch.index.shape[1])
    calls: tuple[Callable[[], Any], ...] = (
        lambda: [source.next() for _ in range(IN_A_ROW)],
        lambda: learner.update(batch, noise),
        make_cycle(source, learner, rng, rt),
    )
    return rt, source, {part: rt.scope()(call) for part, call in zip(PARTS, calls, strict=True)}


def rates(seconds: Mapping[str, list[float]], windows: int) -> dict[str, Any]:
    """Compute the throughput of the calls of ``loading_calls`` from their times in each round.

    Returns:
        ``loader``, ``model`` and ``both`` in windows per second (``windows`` in a batch, of all runs), ``of_model``
        (throughput of both over that of the model alone) and its 95 % interval from ``low`` to ``high``.
    """
    counts = {"loader": IN_A_ROW * windows, "model": windows, "both": windows}
    paces = {part: round(count / median(seconds[part])) for part, count in counts.items()}
    return {**paces, **ratio(seconds["model"], seconds["both"], "of_model")}


def throughput(config: Config, rounds: int, intervals: int = INTERVALS) -> dict[str, Any]:
    """Time a run's loader and model in turn, then record throughput and disk reads over some intervals.

    Returns:
        What ``rates`` returns; ``intervals``, windows per second in each interval; ``disk_mib_per_s``, read from
        storage meanwhile, and ``read_mib_per_s``, which includes reads from the system's cache; both are None where
        the system does not report them.
    """
    rt, _, calls = loading_calls(config)
    windows = config.source.batch * config.run.runs
    own = rates(time_in_turn(calls, rounds, rt.device), windows)
    before, began = _bytes_read(), time.perf_counter()
    seconds = [time_call(lambda: [calls["both"]() for _ in range(CYCLES)], rt.device) for _ in range(intervals)]
    elapsed = time.perf_counter() - began
    pairs = zip(_bytes_read(), before, strict=True)
    disk, read = (None if a is None or b is None else round((a - b) / MIB / elapsed, 3) for a, b in pairs)
    paces = [round(CYCLES * windows / each) for each in seconds]
    return {**own, "intervals": paces, "disk_mib_per_s": disk, "read_mib_per_s": read}


def format_throughput(record: Mapping[str, Any]) -> list[str]:
    """Format what ``throughput`` returns as lines."""
    share = f"{record['of_model']:.0%} of the model's pace, {record['low']:.0%} to {record['high']:.0%}"
    alone = f"loader alone {record['loader']:,}, model alone {record['model']:,}"
    paces = " ".join(f"{pace:,}" for pace in record["intervals"])
    lines = [
        f"windows/s: {alone}, both {record['both']:,} ({share})",
        f"windows/s, interval by interval: {paces}",
    ]
    if record["disk_mib_per_s"] is not None:
        lines.append(f"disk: {record['disk_mib_per_s']:.1f} MiB/s")
        if record["read_mib_per_s"] is not None:
            lines[-1] += f"; with the system's cache {record['read_mib_per_s']:.1f} MiB/s read"
    return lines


def _bytes_read() -> tuple[int | None, int | None]:
    """Count the bytes that this process read from storage, and those that it read from files."""
    count = getattr(psutil.Process(), "io_counters", lambda: None)()  # macOS has none
    return getattr(count, "read_bytes", None), getattr(count, "read_chars", None)
