"""What is claimed of learning from telemetry: the pace of loading and learning, remedy by remedy.

The claims' program scales each window when it is asked for; its remedies scale all rows once, keep every window as a
tensor of its own, and compile. Here each is timed beside windows that are gathered by index from rows on the device.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from uavlab.bench.claims.leader_follower import Bench, Measure, Measured, NotTestable, need_gpu
from uavlab.bench.compare import compare
from uavlab.bench.suites import telemetry
from uavlab.bench.suites.telemetry import CYCLES, loading_calls, raw_bytes
from uavlab.bench.timing import interleaved, median, ratio, timed
from uavlab.experiment.config import Config, configure
from uavlab.profiling.torch_profile import profile
from uavlab.telemetry.dataset import FlightDataset, Scale
from uavlab.telemetry.item_dataset import ItemDataset
from uavlab.telemetry.window_source import WindowSource

FLIGHTS = 24
PATHS = ("per_item", "once", "cached", "device")
PRINTED_EVERY = 20  # batches between two print-outs of the claims' program
EPOCH = round(0.7 * 109_000 / 512)  # its batches: 70 % of its windows are for training


class Once(ItemDataset):
    """Windows one by one, of rows that were normalised at the beginning."""

    def __init__(self, flights: FlightDataset, scale: Scale, window: int, horizon: int) -> None:
        super().__init__(flights, scale, window, horizon)
        self.inputs = self.scaler.transform(self.inputs).astype("float32")
        self.truth, self.tracking_error = self.truth.astype("float32"), self.tracking_error.astype("float32")

    def __getitem__(self, begin: int) -> tuple[Tensor, Tensor, Tensor]:
        """Give the window that begins with a row."""
        end = begin + self.window
        parts = self.inputs[begin:end], self.truth[end - 1 : end], self.tracking_error[end : end + self.horizon]
        inputs, truth, tracking_error = (torch.from_numpy(part) for part in parts)
        return inputs, truth[0], tracking_error


class Cached(Once):
    """Every window a tensor of its own, made the first time that it is asked for, and copied each time."""

    def __init__(self, flights: FlightDataset, scale: Scale, window: int, horizon: int) -> None:
        super().__init__(flights, scale, window, horizon)
        self.kept: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def __getitem__(self, begin: int) -> tuple[Tensor, Tensor, Tensor]:
        """Give the window that begins with a row."""
        if begin not in self.kept:
            inputs, truth, tracking_error = super().__getitem__(begin)
            self.kept[begin] = inputs.clone(), truth.clone(), tracking_error.clone()
        inputs, truth, tracking_error = self.kept[begin]
        return inputs.clone(), truth.clone(), tracking_error.clone()


class OnceWindowSource(WindowSource):
    """Draws windows of rows that were normalised once."""

    items = Once


class CachedWindowSource(WindowSource):
    """Draws windows that are kept, each by itself; all are there before the first is timed."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        for start in self.starts.tolist():
            self.cache[start]

    @property
    def held(self) -> int:
        """Bytes of all windows."""
        return sum(leaf.nbytes for window in self.cache.kept.values() for leaf in window)

    def items(self, *given: object) -> ItemDataset:
        """Make what keeps them."""
        self.cache = Cached(*given)  # type: ignore[arg-type]
        return self.cache


KINDS: Mapping[str, type[WindowSource] | None] = {
    "per_item": None,
    "once": OnceWindowSource,
    "cached": CachedWindowSource,
    "device": None,
}


def config(bench: Bench, path: str) -> Config:
    """Make the settings of a path valid."""
    loader = "device" if path == "device" else "per_item"
    return configure("telemetry_quick", {"loader": loader}, settings(bench))


def settings(bench: Bench) -> dict[str, Any]:
    """Give the sizes of all paths; what the bench sets for other tasks alone is left out."""
    known = configure("telemetry_quick").values
    return {"flights": FLIGHTS, **{name: value for name, value in bench.settings.items() if name in known}}


def paths(bench: Bench) -> dict[str, list[float]]:
    """Time ``loader``, ``model`` and ``both`` of every path in turn (s), by names such as ``cached both``."""
    return _timed(bench)[0]


def held(bench: Bench) -> dict[str, int]:
    """Count the bytes that windows are taken out of, by path."""
    return _timed(bench)[1]


def _timed(bench: Bench) -> tuple[dict[str, list[float]], dict[str, int]]:
    def made() -> tuple[dict[str, list[float]], dict[str, int]]:
        calls: dict[str, Callable[[], Any]] = {}
        sizes = {}
        for path in PATHS:
            _, source, some = loading_calls(config(bench, path), KINDS[path])
            calls |= {f"{path} {name}": call for name, call in some.items()}
            sizes[path] = source.held if isinstance(source, CachedWindowSource) else raw_bytes(source.sets.training)
        sizes["per_item"] *= 2  # float64
        return interleaved(calls, bench.rounds, bench.device), sizes

    return bench.once("telemetry paths", made)


def rates(bench: Bench, path: str) -> dict[str, float]:
    """Give ``loader``, ``model`` and ``both`` of a path in windows per second."""
    seconds, batch = paths(bench), config(bench, path).source.batch
    found = telemetry.rates({name: seconds[f"{path} {name}"] for name in ("loader", "model", "both")}, batch)
    return {name: found[name] for name in ("loader", "model", "both")}


def pace(bench: Bench, path: str) -> Measured:
    """Give windows per second of a loop that loads and learns."""
    found = rates(bench, path)
    alone = f"the loader alone {found['loader']:,}, the model alone {found['model']:,}"
    return Measured(found["both"], note=f"{alone}, on {bench.name}; another network is another pace")


def loading(bench: Bench) -> Measured:
    """Measure loading of windows from rows that were normalised once over windows that are normalised one by one."""
    seconds = paths(bench)
    found = ratio(seconds["per_item loader"], seconds["once loader"])
    rest = {path: ratio(seconds["per_item loader"], seconds[f"{path} loader"])["median"] for path in PATHS[2:]}
    note = f"kept window by window {rest['cached']:.3g}x, gathered by index {rest['device']:.3g}x"
    return Measured(found["median"], found["low"], found["high"], note)


def drop(bench: Bench) -> Measured:
    """Measure the pace at the end of a training over that at its beginning, interval by interval."""
    _, _, calls = loading_calls(config(bench, "per_item"))
    timed(calls["both"], bench.device)

    def interval() -> float:
        return sum(timed(calls["both"], bench.device) for _ in range(CYCLES))

    many = max(4, bench.rounds // 3)
    seconds = [interval() for _ in range(2 * many)]
    found = ratio(seconds[:many], seconds[many:])
    printed = PRINTED_EVERY / EPOCH
    note = f"windows of a whole epoch over the time since it began, as was printed, fall to {printed:.2f} at any pace"
    return Measured(found["median"], found["low"], found["high"], note)


def compiled(bench: Bench) -> Measured:
    """Measure compiled cycles over plain ones, in the mode that is claimed; on a CPU it is the same as the default.

    Raises:
        NotTestable: Nothing can be compiled.
    """
    mode = "reduce-overhead" if bench.device.type == "cuda" else "default"
    either = {"plain": {"compile": "off"}, "compiled": {"compile": mode}}
    before, after = compare("telemetry_quick", either, settings(bench), call="cycle", rounds=bench.rounds)
    if after["fell_back"]:
        raise NotTestable("; ".join(after["fell_back"].values()))
    note = f"compile={mode}; {before['ms']:.3g} ms before, {after['ms']:.3g} ms after; the first call takes "
    return Measured(after["over_first"], after["low"], after["high"], f"{note}{after['first_call_s']:.0f} s")


def busy(bench: Bench, path: str) -> Measured:
    """Give the share of a cycle in which a kernel runs on the GPU.

    Raises:
        NotTestable: There is no GPU.
    """
    need_gpu(bench, "device utilisation")
    _, _, calls = loading_calls(config(bench, path), KINDS[path])
    seconds = median([timed(calls["both"], bench.device) for _ in range(1 + bench.rounds)][1:])
    rows = profile(calls["both"], bench.device, top=10_000).rows
    return Measured(min(1.0, sum(row["device_ms"] for row in rows) / 1e3 / seconds))


MEASURES: dict[str, Measure] = {
    "telemetry_drop": drop,
    "telemetry_per_item": partial(pace, path="per_item"),
    "telemetry_once": partial(pace, path="once"),
    "telemetry_cached": partial(pace, path="cached"),
    "telemetry_loading": loading,
    "telemetry_compiled": compiled,
    "telemetry_busy_per_item": partial(busy, path="per_item"),
    "telemetry_busy_once": partial(busy, path="once"),
    "telemetry_busy_cached": partial(busy, path="cached"),
}
"""Every number of telemetry that can be had, by its name in the ledger."""
