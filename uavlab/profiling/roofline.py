"""What this machine does at best, measured: matrix products, memory, and the launch of one small operator.

Peaks come from large operands. A program of small operators reaches them on no machine, so each ceiling can also be
measured at the sizes of a given call. All are those of torch's present number of threads, and kept for the process.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from uavlab.runtime.process_flags import fp32_products
from uavlab.runtime.stage_timer import Work, synchronize
from uavlab.runtime.wrappers import DTYPES

PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "bf16", "fp16")}
SIDE = {"cpu": 512, "cuda": 8192}  # square matrices that show a device's rate
LARGE = {"cpu": 2**27, "cuda": 2**29}  # bytes that no cache holds
ROUNDS, ROUND = 5, 0.005  # the best of some rounds is the least disturbed; seconds that one should last

Products = tuple[tuple[tuple[int, int, int, int], int], ...]


@dataclass(frozen=True)
class Ceilings:
    """The most that can be had.

    Attributes:
        rate: Matrix products (FLOP/s).
        bandwidth: Bytes read and written (per s).
        launch: Cost of one small operator from Python (s).
    """

    rate: float
    bandwidth: float
    launch: float


def ceilings(device: torch.device | str, precision: str = "fp32", work: Work | None = None) -> Ceilings:
    """Measure the ceilings of a device, in about half a second the first time.

    Args:
        device: Where.
        precision: Of matrix products: one of ``PRECISIONS`` for the device.
        work: Measure products of this call's shapes, and a copy of as many bytes as it moves; else the peaks.
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
    """Run batched products N x K times K x M one after the other, as a call would (FLOP/s)."""
    dtype, flops, factors = DTYPES[precision], 0, []
    for (G, N, K, M), count in products:
        pair = torch.ones(G, N, K, device=device, dtype=dtype), torch.ones(G, K, M, device=device, dtype=dtype)
        factors += [pair] * count
        flops += count * 2 * G * N * K * M
    with fp32_products("tf32" if precision == "tf32" else "ieee"):
        return flops / _best(lambda: [torch.bmm(*pair) for pair in factors], device)


@lru_cache
def _bandwidth(device: torch.device, size: int, threads: int) -> float:
    """Copy, reading half of ``size`` bytes and writing the other half (bytes/s)."""
    source = torch.zeros(size // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return size / _best(lambda: target.copy_(source), device)


@lru_cache
def _launch(device: torch.device, threads: int) -> float:
    """Add two numbers: all but the cost of a launch is nothing (s)."""
    x = torch.ones(1, device=device)
    return _best(lambda: x + x, device)


def _best(call: Callable[[], object], device: torch.device) -> float:
    """Time a call, in rounds of as many repetitions as show on a clock (s)."""
    _seconds(call, device, 1)  # the first call also prepares
    repeats = max(1, math.ceil(ROUND / max(_seconds(call, device, 1), 1e-6)))
    return min(_seconds(call, device, repeats) for _ in range(ROUNDS)) / repeats


def _seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    synchronize(device)
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize(device)
    return time.perf_counter() - began
