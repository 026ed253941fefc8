"""Measures of claims about learning from telemetry: throughput of loading and learning under each remedy.

The program of the claims normalises each window on request. Its remedies are to normalise all rows once, to keep every
window as a separate tensor, and to compile. They are compared with windows gathered by index from rows on the device.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from uavlab.experiment.config import Config, configure
from uavlab.profiling.timing import ratio, time_in_turn
from uavlab.telemetry.window_source import ItemDataset, WindowCollector
from uavlab_lab.claims.measures import Bench, Estimate, device_share, measure, once
from uavlab_lab.measure import compare
from uavlab_lab.measure.compare import PARTS, Call, loading_calls
from uavlab_lab.suites.telemetry import FLIGHTS, raw_bytes

PRESET = "telemetry_quick"


class CachedItems(ItemDataset):
    """A dataset that caches every window as a separate tensor and returns copies."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.cache: dict[int, list[Tensor]] = {}

    def __getitem__(self, begin: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return a copy of the window that begins at row ``begin``."""
        if begin not in self.cache:
            self.cache[begin] = [leaf.clone() for leaf in super().__getitem__(begin)]
        inputs, truth, tracking_error = (leaf.clone() for leaf in self.cache[begin])
        return inputs, truth, tracking_error


class CachedSource(WindowCollector):
    """Draws cached windows; the cache is filled before the first draw."""

    def items(self, *given: Any) -> ItemDataset:
        """Build the dataset and fill its cache."""
        self.windows = CachedItems(*given)
        for start in self.starts.tolist():
            self.windows[start]
        return self.windows


SOURCES: Mapping[str, type[WindowCollector] | None]
SOURCES = {"per_item": None, "once": None, "cached": CachedSource, "device": None}
"""Class of the window source on each path; None for the run's own."""


def config(bench: Bench, path: str) -> Config:
    """Configure a run for one path of ``SOURCES``."""
    loader = {"loader": "device" if path == "device" else "per_item", "cached": path in ("once", "cached")}
    return configure(PRESET, {"flights": FLIGHTS}, bench.layer(loader, preset=PRESET))


@once
def time_paths(bench: Bench) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Time every path in turn.

    Returns:
        Seconds of ``loader``, ``model`` and ``both`` by names such as ``cached both``, and by path the bytes that
        hold the windows.
    """
    calls: dict[str, Callable[[], Any]] = {}
    sizes = {}
    for path, kind in SOURCES.items():
        _, source, parts = loading_calls(config(bench, path), kind)
        calls |= {f"{path} {name}": call for name, call in parts.items()}
        sizes[path] = raw_bytes(source.sets.training)
        if isinstance(source, CachedSource):
            sizes[path] = sum(leaf.nbytes for window in source.windows.cache.values() for leaf in window)
    sizes["per_item"] *= 2  # float64
    return time_in_turn(calls, bench.rounds, bench.device), sizes


def path_rates(bench: Bench, path: str) -> dict[str, float]:
    """Return ``loader``, ``model`` and ``both`` of a path in windows per second."""
    seconds, batch = time_paths(bench)[0], config(bench, path).source.batch
    rates = compare.rates({part: seconds[f"{path} {part}"] for part in PARTS}, batch)
    return {part: rates[part] for part in PARTS}


@measure
def loading_gain(bench: Bench) -> Estimate:
    """Measure the speed-up of loading windows by normalising all rows once instead of every window."""
    seconds, _ = time_paths(bench)
    gains = {path: ratio(seconds["per_item loader"], seconds[f"{path} loader"], "value") for path in SOURCES}
    cached, device = gains["cached"]["value"], gains["device"]["value"]
    note = f"kept window by window {cached:.3g}x, gathered by index {device:.3g}x"
    return Estimate(**gains["once"], note=note, rounds=bench.rounds)


@measure
def telemetry_utilisation(bench: Bench, path: str) -> Estimate:
    """Measure the share of a cycle in which a kernel runs on the GPU."""
    bench.need_gpu("device utilisation")
    rt, _, calls = loading_calls(config(bench, path), SOURCES[path])
    return device_share(bench, Call(calls["both"], rt))
