"""What bringing windows of logs costs, beside the network that learns from them: each alone, and both."""

from functools import partial
from typing import Any

from uavlab.app import build
from uavlab.app.config import Config, Device, configure
from uavlab.app.machine import describe
from uavlab.app.timing import interleaved, median, ratio
from uavlab.data.spool import Spool
from uavlab.data.telemetry import Series
from uavlab.train import cycling
from uavlab.windows.source import Windowed

PATHS = ("device", "stream", "per_item")
FLIGHTS = 24
FLOAT = 4  # bytes
IN_A_ROW = 10  # batches that a loader brings when it is alone, without a network in between that empties the caches


def telemetry_suite(rounds: int, device: Device) -> dict[str, Any]:
    """Time a batch of ``telemetry_quick`` on each path: brought, learned from, and both as a run does it.

    Each row tells windows per second: ``loader``, ``model`` and ``both``, medians of rounds in which all took turns
    (a loader for ``IN_A_ROW`` batches); ``over_per_item``, how many times as fast the loader is as bringing windows
    one by one; ``of_model``, the share of the model's own pace that both together reach; ``low`` and ``high``, the
    95 % interval of that; ``bytes``, what the training flights take in memory, and ``raw_bytes``, what they are.
    """
    calls: dict[str, Any] = {}
    sources: dict[str, Windowed] = {}
    for path in PATHS:
        config = configure("telemetry_quick", {"device": device, "loader": path, "flights": FLIGHTS})
        rt, *parts = build.assembled(config)
        sources[path] = parts[2]
        calls |= {f"{path} {name}": partial(_scoped, rt, call) for name, call in _calls(config, rt, *parts).items()}
    seconds = interleaved(calls, rounds, rt.device)
    for path in PATHS:
        seconds[f"{path} loader"] = [each / IN_A_ROW for each in seconds[f"{path} loader"]]
    batch = configure("telemetry_quick").source.batch
    rows = []
    for path in PATHS:
        loader, model, both = (seconds[f"{path} {name}"] for name in ("loader", "model", "both"))
        share = ratio(model, both)
        rows.append(
            {
                "path": path,
                **{name: round(batch / median(seconds[f"{path} {name}"])) for name in ("loader", "model", "both")},
                "over_per_item": ratio(seconds["per_item loader"], loader)["median"],
                "of_model": share["median"],
                "low": share["low"],
                "high": share["high"],
                "bytes": held(sources[path]),
                "raw_bytes": raw(sources[path].sets.training),
                "threads": rt.toggles.threads,
            }
        )
    return {"suite": "telemetry", "rounds": rounds, "batch": batch, "machine": describe(rt.device), "rows": rows}


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


def _calls(config: Config, rt: Any, rng: Any, learner: Any, source: Windowed) -> dict[str, Any]:
    batch = source.next()
    noise = learner.update_noise(rng, batch.index.shape[1])
    return {
        "loader": partial(_in_a_row, source),
        "model": lambda: learner.update(batch, noise),
        "both": cycling(source, learner, rng, rt),
    }


def _in_a_row(source: Windowed) -> None:
    for _ in range(IN_A_ROW):
        source.next()


def _scoped(rt: Any, call: Any) -> None:
    with rt.scope():
        call()
