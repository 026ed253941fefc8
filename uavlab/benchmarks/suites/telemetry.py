"""Throughput of loading windows of logs and of the network that learns from them: each alone, both, and over time."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from uavlab.benchmarks.registry import Record, suite
from uavlab.benchmarks.timing import median, ratio, time_call, time_in_turn
from uavlab.experiment import build
from uavlab.experiment.config import Config, Device, RunConfig, configure
from uavlab.runtime.runtime import Runtime
from uavlab.telemetry.dataset import ROW, FlightDataset
from uavlab.telemetry.loaders import DiskDataset
from uavlab.telemetry.window_source import WindowSource
from uavlab.training import make_cycle

ONE_WORKER = {"loader": "per_item", "workers": 1}
PATHS: Mapping[str, Mapping[str, Any]] = {
    "device": {"loader": "device"},
    "stream": {"loader": "stream"},
    "stream, cached": {"loader": "stream", "cached": True},
    "per_item": {"loader": "per_item"},
    "per_item, cached": {"loader": "per_item", "cached": True},
    "per_item, 1 worker": ONE_WORKER,
    "per_item, 1 worker, 8 ahead": {**ONE_WORKER, "prefetch_factor": 8},
    "per_item, 1 worker, started for each pass": {**ONE_WORKER, "persistent_workers": False},
    "per_item, 1 worker, cached": {**ONE_WORKER, "cached": True},
}
"""Settings of a run on each path."""
WITHOUT_PINNING = ("stream", "per_item", "per_item, 1 worker")  # paths that a GPU also has without pinned memory
PARTS = ("loader", "model", "both")
FLIGHTS = 24
IN_A_ROW = 10  # batches per timed call of the loader alone, with no network in between that evicts the caches
INTERVALS, CYCLES = 8, 10  # intervals whose throughput is measured, and the batches in each
MIB = 2**20


@suite("telemetry", about="loading windows of logs, and learning from them")
def telemetry_suite(
    rounds: int, device: Device, preset: str = "telemetry_quick", sizes: Mapping[str, Any] | None = None
) -> Record:
    """Time on each path: loading a batch, learning from one, and both as in a run.

    ``sizes`` are settings over the preset, by default ``FLIGHTS`` flights.

    Returns:
        ``batch``, and for each path a row with what ``rates`` returns, ``over_per_item`` (speed-up of the loader
        alone over ``per_item``), ``bytes`` (memory for the training flights) and ``raw_bytes`` (their size in float32).
    """
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    sources: dict[str, WindowSource] = {}
    for path, settings in paths(device).items():
        config = configure(preset, sizes or {"flights": FLIGHTS}, {"device": device}, settings)
        rt, sources[path], parts = loading_calls(config)
        calls |= {(path, part): call for part, call in parts.items()}
    seconds = time_in_turn(calls, rounds, rt.device)
    rows = [
        {
            "path": path,
            **rates({part: seconds[path, part] for part in PARTS}, config.source.batch),
            "over_per_item": ratio(seconds["per_item", "loader"], seconds[path, "loader"])["median"],
            "bytes": memory_bytes(source),
            "raw_bytes": raw_bytes(source.sets.training),
            "threads": rt.toggles.threads,
        }
        for path, source in sources.items()
    ]
    return {"batch": config.source.batch, "rows": rows}


def paths(device: Device) -> dict[str, Mapping[str, Any]]:
    """Return the paths on a device; pinned memory has an effect on a GPU alone."""
    if build.runtime(RunConfig(device=device)).device.type != "cuda":
        return dict(PATHS)
    return {**PATHS, **{f"{path}, not pinned": {**PATHS[path], "pinned": False} for path in WITHOUT_PINNING}}


def loading_calls(
    config: Config, kind: type[WindowSource] | None = None
) -> tuple[Runtime, WindowSource, dict[str, Callable[[], Any]]]:
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


def raw_bytes(flights: FlightDataset | DiskDataset) -> int:
    """Count the bytes of all rows of flights in float32."""
    return ROW * int(flights.bounds[-1])


def memory_bytes(source: WindowSource) -> int:
    """Count the bytes that a source holds in memory for its flights and for the starts of their windows."""
    cached = source.config.cached
    copies = {"stream": int(cached), "device": 1, "per_item": 2 if cached else 3}[source.loader]  # per_item: float64
    return source.starts.nbytes + copies * raw_bytes(source.sets.training)
