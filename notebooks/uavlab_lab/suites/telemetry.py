"""Throughput of loading windows of logs on each path, and of the network that learns from them."""

from collections.abc import Callable, Mapping
from typing import Any

from uavlab.benchmarks import Record, suite
from uavlab.experiment import build
from uavlab.experiment.config import Device, RunConfig, configure
from uavlab.profiling.timing import ratio, time_in_turn
from uavlab.telemetry.flights import ROW, FlightDataset
from uavlab.telemetry.window_source import WindowCollector
from uavlab_lab.measure.compare import PARTS, loading_calls, rates

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
FLIGHTS = 24


@suite("telemetry", about="loading windows of logs, and learning from them")
def telemetry_suite(
    rounds: int, device: Device, preset: str = "telemetry_quick", sizes: Mapping[str, Any] | None = None
) -> Record:
    """Time on each path: loading a batch, learning from one, and both as in a run.

    ``sizes`` are settings over the preset, by default ``FLIGHTS`` flights. A row has what ``rates`` returns,
    ``over_per_item`` of the loader alone, ``bytes`` (memory for the training flights) and ``raw_bytes`` (in float32).
    """
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    sources: dict[str, WindowCollector] = {}
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


def raw_bytes(flights: FlightDataset) -> int:
    """Count the bytes of all rows of flights in float32."""
    return ROW * int(flights.bounds[-1])


def memory_bytes(source: WindowCollector) -> int:
    """Count the bytes that a source holds in memory for its flights and for the starts of their windows."""
    cached = source.config.cached
    copies = {"stream": int(cached), "device": 1, "per_item": 2 if cached else 3}[source.loader]  # per_item: float64
    return source.starts.nbytes + copies * raw_bytes(source.sets.training)
