"""What bringing windows of logs costs, beside the network that learns from them: each alone, and both."""

from typing import Any

from uavlab.bench.dataloader import per_second, pieces
from uavlab.bench.timing import interleaved, ratio
from uavlab.experiment.config import Device, configure
from uavlab.storage.machine import describe
from uavlab.telemetry.dataset import Series
from uavlab.telemetry.disk_dataset import Spool
from uavlab.telemetry.window_source import Windowed

PATHS = ("device", "stream", "per_item")
FLIGHTS = 24
FLOAT = 4  # bytes


def telemetry_suite(rounds: int, device: Device) -> dict[str, Any]:
    """Time a batch of ``telemetry_quick`` on each path: brought, learned from, and both as a run does it.

    Each row tells windows per second: ``loader``, ``model`` and ``both``, medians of rounds in which all took turns
    (a loader for ``pipeline.IN_A_ROW`` batches); ``over_per_item``, how many times as fast the loader is as bringing
    windows one by one; ``of_model``, the share of the model's own pace that both together reach; ``low`` and ``high``,
    the 95 % interval of that; ``bytes``, what the training flights take in memory, and ``raw_bytes``, what they are.
    """
    calls: dict[str, Any] = {}
    sources: dict[str, Windowed] = {}
    for path in PATHS:
        config = configure("telemetry_quick", {"device": device, "loader": path, "flights": FLIGHTS})
        rt, sources[path], some = pieces(config)
        calls |= {f"{path} {name}": call for name, call in some.items()}
    seconds = interleaved(calls, rounds, rt.device)
    rows = []
    for path, source in sources.items():
        own = {name: seconds[f"{path} {name}"] for name in ("loader", "model", "both")}
        rows.append(
            {
                "path": path,
                **per_second(own, config.source.batch),
                "over_per_item": ratio(seconds["per_item loader"], own["loader"])["median"],
                "bytes": held(source),
                "raw_bytes": raw(source.sets.training),
                "threads": rt.toggles.threads,
            }
        )
    return {
        "suite": "telemetry",
        "rounds": rounds,
        "batch": config.source.batch,
        "machine": describe(rt.device),
        "rows": rows,
    }


def raw(flights: Series | Spool) -> int:
    """Count the bytes of flights as they are: float32, nothing twice."""
    widths = flights.widths.values() if isinstance(flights, Spool) else _widths(flights)
    return FLOAT * int(flights.bounds[-1]) * sum(widths)


def held(source: Windowed) -> int:
    """Count the bytes that a source holds in memory for its flights and for where their windows begin."""
    flights = source.sets.training
    starts = source.starts.nbytes
    if isinstance(flights, Spool):
        return starts
    one = sum(leaf.nbytes for leaf in (flights.inputs, flights.truth, flights.astray))
    return starts + (3 * one if source.loader == "per_item" else one)  # one by one: float64 copies beside


def _widths(flights: Series) -> list[int]:
    return [leaf.shape[1] for leaf in (flights.inputs, flights.truth, flights.astray)]
