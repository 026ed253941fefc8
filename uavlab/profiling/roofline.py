"""A roofline model: the measured ceilings of this machine, the bottleneck of a loop, and predicted speed-ups.

Small operators cannot reach peaks, which need large operands, so each ceiling can also be measured at the sizes of a
given call. Ceilings hold for torch's current number of threads, and are cached.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from uavlab.core.errors import ConfigError
from uavlab.runtime.runtime import fp32_products
from uavlab.runtime.stage_timer import Work, synchronize
from uavlab.runtime.wrappers import DTYPES

PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "bf16", "fp16")}
SIDE = {"cpu": 512, "cuda": 8192}  # rows of square matrices that reach the peak
LARGE = {"cpu": 2**27, "cuda": 2**29}  # bytes, more than any cache
ROUNDS, ROUND = 5, 0.005  # rounds, of which the fastest counts as the least disturbed; seconds of one round

Products = tuple[tuple[tuple[int, int, int, int], int], ...]


@dataclass(frozen=True)
class Ceilings:
    """Upper limits of a device.

    Attributes:
        rate: Matrix products (FLOP/s).
        bandwidth: Bytes read and written (per s).
        launch: Time of one small operator from Python (s).
    """

    rate: float
    bandwidth: float
    launch: float


def ceilings(device: torch.device | str, precision: str = "fp32", work: Work | None = None) -> Ceilings:
    """Measure the ceilings of a device, in about half a second the first time.

    Args:
        device: The device.
        precision: Precision of matrix products, one of ``PRECISIONS`` for the device.
        work: The work of a call, to measure products of its shapes and a copy of its bytes; None for the peaks.
    """
    device, threads = torch.device(device), torch.get_num_threads()
    size = LARGE[device.type]
    moved = min((work and work.bytes) or size, size)
    return Ceilings(
        matrix_rate(device, precision, work.products if work else ()),
        _bandwidth(device, 1 << max(moved, 8).bit_length() - 1, threads),  # similar calls share a measurement
        _launch(device, threads),
    )


def matrix_rate(device: torch.device, precision: str, products: Products = ()) -> float:
    """Measure the rate of matrix products (FLOP/s), by default that of one product of two large square matrices."""
    side = SIDE[device.type]
    return _product_rate(device, precision, products or (((1, side, side, side), 1),), torch.get_num_threads())


@lru_cache
def _product_rate(device: torch.device, precision: str, products: Products, threads: int) -> float:
    """Measure a sequence of batched products N x K times K x M (FLOP/s)."""
    dtype, flops, factors = DTYPES[precision], 0, []
    for (G, N, K, M), count in products:
        pair = torch.ones(G, N, K, device=device, dtype=dtype), torch.ones(G, K, M, device=device, dtype=dtype)
        factors += [pair] * count
        flops += count * 2 * G * N * K * M
    with fp32_products("tf32" if precision == "tf32" else "ieee"):
        return flops / _best(lambda: [torch.bmm(*pair) for pair in factors], device)


@lru_cache
def _bandwidth(device: torch.device, size: int, threads: int) -> float:
    """Measure a copy that reads half of ``size`` bytes and writes the other half (bytes/s)."""
    source = torch.zeros(size // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return size / _best(lambda: target.copy_(source), device)


@lru_cache
def _launch(device: torch.device, threads: int) -> float:
    """Time the sum of two numbers, which is almost only the launch (s)."""
    x = torch.ones(1, device=device)
    return _best(lambda: x + x, device)


def _best(call: Callable[[], object], device: torch.device) -> float:
    """Time a call (s), repeated often enough for the resolution of the clock."""
    _seconds(call, device, 1)
    repeats = max(1, math.ceil(ROUND / max(_seconds(call, device, 1), 1e-6)))
    return min(_seconds(call, device, repeats) for _ in range(ROUNDS)) / repeats


def _seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    synchronize(device)
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize(device)
    return time.perf_counter() - began


def find_bottleneck(
    shares: Mapping[str, float], update_seconds: float, work: Work, ceilings: Ceilings
) -> tuple[str, str]:
    """Find what binds a training loop: ``environment``, ``copy``, ``load``, ``launch``, ``arithmetic`` or ``memory``.

    A stage (the environment, copies between host and device, loading windows of logs) binds if it takes more than half
    of the time. Otherwise an update is compared with three lower bounds of its time on this machine: matrix products at
    the arithmetic ceiling (flops / rate), other operators at the memory ceiling (bytes / bandwidth), and the launches
    of its operators (operators x launch). Measured time beyond the first two also counts as launches: Python, the
    dispatcher, gaps between kernels. The largest of the three binds. Bounds may exceed the measured time, because
    caches are faster than memory; shares are then those of the sum of the bounds.

    Args:
        shares: Shares of the loop's time by stage, as in ``Monitor.read``.
        update_seconds: Time of one update (s), the fastest of several, as for ceilings.
        work: Work of one uncompiled update.
        ceilings: Ceilings at the precision and the sizes of the update.

    Returns:
        The kind of bottleneck, and a sentence with the shares.
    """
    if not update_seconds > 0:
        raise ConfigError(f"update_seconds: expected a time above 0 s, got {update_seconds}; measure an update first.")
    environment, copy, load = (shares.get(stage, 0.0) for stage in ("environment", "copy", "load"))
    if environment > 0.5:
        return "environment", f"environment-bound: stepping the worlds takes {environment:.0%} of the time."
    if copy > 0.5:
        return "copy", f"copy-bound: copies between host and device take {copy:.0%} of the time."
    if load > 0.5:
        return "load", f"load-bound: bringing windows of logs takes {load:.0%} of the time."
    bounds = {"arithmetic": work.flops / ceilings.rate, "memory": work.bytes / ceilings.bandwidth}
    bounds["launch"] = max(work.operators * ceilings.launch, update_seconds - sum(bounds.values()))
    whole = max(update_seconds, sum(bounds.values()))
    kind = max(bounds, key=lambda name: bounds[name])
    words = {
        "arithmetic": "matrix products",
        "memory": "reading and writing memory",
        "launch": f"starting {work.operators:,} operators",
    }
    texts = {name: f"{words[name]} {seconds / whole:.0%}" for name, seconds in bounds.items()}
    first = texts.pop(kind)
    return kind, (
        f"{kind}-bound: of an update's {1e3 * update_seconds:.3g} ms, {first}, {' and '.join(texts.values())}; "
        f"of the loop, {'loading' if load else 'the environment'} takes {load or environment:.0%} and copies "
        f"{copy:.0%}."
    )


def predict_speedup(whole: float, parts: Iterable[tuple[float, float]]) -> float:
    """Predict the speed-up of a call if parts of it become faster: Amdahl's law for several parts.

    Args:
        whole: Time of the call (s).
        parts: Time of each part before and after the change (s). If measured parts exceed the whole, the rest of the
            call counts as 0 s.

    Raises:
        ConfigError: A time is negative, or no time remains after the change.

    Source:
        Amdahl 1967, "Validity of the single processor approach to achieving large scale computing capabilities".
    """
    pairs = list(parts)
    before, after = (sum(each) for each in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    whole = max(whole, before)
    if min([whole, *(second for pair in pairs for second in pair)]) < 0 or not whole - before + after > 0:
        raise ConfigError(f"speed-up: expected times above 0 s, got {whole} for the whole and parts {pairs}.")
    return whole / (whole - before + after)
