"""A run that learns from logs, taken apart: bringing windows alone, learning alone, both together, and how steadily."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil

from uavlab.bench.timing import interleaved, median, ratio
from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import synchronize
from uavlab.telemetry.window_source import Windowed
from uavlab.train import cycling

IN_A_ROW = 10  # batches that a loader brings when it is alone, without a network in between that empties the caches
INTERVALS, CYCLES = 8, 10  # over which throughput is told, and the batches in each
MIB = 2**20


def pieces(
    config: Config, kind: type[Windowed] | None = None
) -> tuple[Runtime, Windowed, dict[str, Callable[[], Any]]]:
    """Make a run's ``loader`` (``IN_A_ROW`` batches), ``model`` (an update on one batch) and ``both`` (a cycle).

    Args:
        config: The run's.
        kind: Another class of what draws windows.
    """
    rt, rng, learner, source = build.assembled(config)
    source = kind(config.env, config.source, rng, rt) if kind else source
    batch = source.next()
    noise = learner.update_noise(rng, batch.index.shape[1])
    calls: dict[str, Callable[[], Any]] = {
        "loader": partial(_in_a_row, source),
        "model": lambda: learner.update(batch, noise),
        "both": cycling(source, learner, rng, rt),
    }
    return rt, source, {name: rt.scope()(call) for name, call in calls.items()}


def per_second(seconds: dict[str, list[float]], windows: int) -> dict[str, Any]:
    """Tell ``loader``, ``model`` and ``both`` in windows per second, and what share of the model's pace both reach.

    Args:
        seconds: Times of ``pieces``, round by round.
        windows: In a batch, of all runs.
    """
    share = ratio(seconds["model"], seconds["both"])
    many = {"loader": IN_A_ROW * windows, "model": windows, "both": windows}
    rates = {name: round(many[name] / median(seconds[name])) for name in many}
    return {**rates, "of_model": share["median"], "low": share["low"], "high": share["high"]}


def pipeline(config: Config, rounds: int, intervals: int = INTERVALS) -> dict[str, Any]:
    """Time a run's pieces in turn, and watch its pace and the disk for a while.

    Returns:
        What ``per_second`` tells; ``intervals``, windows per second of each, by its own time;
        ``disk_mib_per_s``, what storage gave meanwhile, and ``read_mib_per_s``, with what the system's cache gave too;
        both are None where the system does not tell.
    """
    rt, _, calls = pieces(config)
    windows = config.source.batch * config.run.runs
    found = per_second(interleaved(calls, rounds, rt.device), windows)
    before, paces, began = _read(), [], time.perf_counter()
    for _ in range(intervals):
        synchronize(rt.device)
        start = time.perf_counter()
        for _ in range(CYCLES):
            calls["both"]()
        synchronize(rt.device)
        paces.append(round(CYCLES * windows / (time.perf_counter() - start)))
    took = time.perf_counter() - began
    pairs = zip(_read(), before, strict=True)
    rates = [None if a is None or b is None else round((a - b) / MIB / took, 3) for a, b in pairs]
    return {**found, "intervals": paces, "disk_mib_per_s": rates[0], "read_mib_per_s": rates[1]}


def told(found: dict[str, Any]) -> list[str]:
    """Lay ``pipeline`` out for reading."""
    share = f"{found['of_model']:.0%} of the model's pace, {found['low']:.0%} to {found['high']:.0%}"
    alone = f"loader alone {found['loader']:,}, model alone {found['model']:,}"
    paces = " ".join(f"{pace:,}" for pace in found["intervals"])
    lines = [
        f"windows/s: {alone}, both {found['both']:,} ({share})",
        f"windows/s, interval by interval: {paces}",
    ]
    if found["disk_mib_per_s"] is not None:
        lines.append(f"disk: {found['disk_mib_per_s']:.1f} MiB/s")
        if found["read_mib_per_s"] is not None:
            lines[-1] += f"; with the system's cache {found['read_mib_per_s']:.1f} MiB/s read"
    return lines


def _read() -> tuple[int | None, int | None]:
    """Count the bytes that this process had from storage, and those that it asked files for."""
    count = getattr(psutil.Process(), "io_counters", lambda: None)()  # macOS does not tell
    return getattr(count, "read_bytes", None), getattr(count, "read_chars", None)


def _in_a_row(source: Windowed) -> None:
    for _ in range(IN_A_ROW):
        source.next()
