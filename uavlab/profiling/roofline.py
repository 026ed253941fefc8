"""A roofline model: the work of a call, the measured ceilings of this machine, and the bottleneck between them.

Small operators cannot reach peaks, which need large operands, so each ceiling can also be measured at the sizes of a
given call. Ceilings hold for torch's current number of threads, and are cached.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from uavlab.core.errors import ConfigError
from uavlab.profiling.timing import best_time
from uavlab.runtime.runtime import fp32_products
from uavlab.runtime.wrappers import DTYPES

PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "bf16", "fp16")}
SIDE = {"cpu": 512, "cuda": 8192}  # rows of square matrices that reach the peak
LARGE = {"cpu": 2**27, "cuda": 2**29}  # bytes, more than any cache

# operators that touch only the indexed rows of their first argument
INDEXED = frozenset(
    {"index", "index_select", "gather", "take", "embedding", "index_put_", "index_copy_", "index_add_", "scatter_"}
)
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # and the position of their first factor
CONVOLUTIONS = ("convolution", "convolution_backward")

Shape = tuple[int, int, int, int]
Products = tuple[tuple[Shape, int], ...]
"""Shapes of products N x K times K x M in batches of G, with counts; of a convolution of G groups, over patches."""


@dataclass(frozen=True)
class Work:
    """The work of one call."""

    operators: int = 0  # without views
    flops: int = 0  # of matrix products and convolutions; a multiplication and an addition are two
    bytes: int = 0  # read and written by all other operators; the measured rate of products includes theirs
    products: Products = ()


def count_work(call: Callable[[], Any]) -> Work:
    """Count the work of one eager call, forward and backward; torch compiles nothing under its counter of FLOPs."""
    with FlopCounterMode(display=False) as flops, _OperatorCounter() as counter:
        call()
    others = flops.get_flop_counts().get("Global", {}).items()  # torch counts gradients of groups several times
    total = sum(2 * math.prod(shape) * count for shape, count in counter.products.items())
    total += sum(count for operator, count in others if operator.__name__ not in {*PRODUCTS, *CONVOLUTIONS})
    return Work(counter.count, total, counter.bytes, tuple(sorted(counter.products.items())))


def count_operators(call: Callable[[], Any]) -> int:
    """Count the operators of one call, forward and backward, without views; compiled code may run in it."""
    with _OperatorCounter() as counter:
        call()
    return counter.count


class _OperatorCounter(TorchDispatchMode):
    """Counts operators, their bytes and the shapes of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.bytes = 0
        self.products: Counter[Shape] = Counter()

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Allow compiled code under this mode, which torch otherwise refuses."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            name = func.overloadpacket.__name__
            self.count += 1
            products = _products(name, args, out)
            self.products.update(products)
            self.bytes += 0 if products else _bytes(name, args, kwargs, out)
        return out


def _products(name: str, args: Any, out: Any) -> list[Shape]:
    """Return the shapes of an operator's matrix products."""
    if name in PRODUCTS:
        a, b = args[PRODUCTS[name] :][:2]
        return [(a.shape[0] if a.dim() == 3 else 1, *a.shape[-2:], b.shape[-1])]
    if name == CONVOLUTIONS[0]:
        _, weight, *_, groups = args
        return [_over_patches(out, weight, groups)]
    if name == CONVOLUTIONS[1]:
        gradient, _, weight, *_, groups, (inputs, weights, _) = args
        G, N, K, M = _over_patches(gradient, weight, groups)
        return [(G, N, M, K)] * inputs + [(G, K, N, M)] * weights
    return []


def _over_patches(result: Tensor, weight: Tensor, groups: int) -> Shape:
    rows, channels, *size = result.shape
    return groups, rows * math.prod(size), math.prod(weight.shape[1:]), channels // groups


def _bytes(name: str, args: Any, kwargs: Any, out: Any) -> int:
    """Return the bytes that an operator reads and writes, without a cache."""
    if name in INDEXED:
        return 2 * sum(_size(leaf) for leaf in tree_leaves((args[1:], kwargs, out)) if leaf is not args[0])
    read = sum(map(_size, tree_leaves((args, kwargs))))
    return read + (read if out is None else sum(map(_size, tree_leaves(out))))  # None: written in place


def _size(value: Any) -> int:
    """Return the bytes that a tensor occupies; an expanded dimension occupies none."""
    if not isinstance(value, Tensor):
        return 0
    return value.element_size() * math.prod(n for n, step in zip(value.shape, value.stride(), strict=True) if step)


@dataclass(frozen=True)
class Ceilings:
    """Upper limits of a device."""

    rate: float  # of matrix products (FLOP/s)
    bandwidth: float  # bytes read and written (per s)
    launch: float  # time of one small operator from Python (s)


def ceilings(device: torch.device | str, precision: str = "fp32", work: Work | None = None) -> Ceilings:
    """Measure the ceilings of a device, in about half a second the first time.

    With ``work``, that of a call, products of its shapes and a copy of its bytes are measured; without, the peaks.
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
        return flops / best_time(lambda: [torch.bmm(*pair) for pair in factors], device)


@lru_cache
def _bandwidth(device: torch.device, size: int, threads: int) -> float:
    """Measure a copy that reads half of ``size`` bytes and writes the other half (bytes/s)."""
    source = torch.zeros(size // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return size / best_time(lambda: target.copy_(source), device)


@lru_cache
def _launch(device: torch.device, threads: int) -> float:
    """Time the sum of two numbers, which is almost only the launch (s)."""
    x = torch.ones(1, device=device)
    return best_time(lambda: x + x, device)


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

    ``shares`` are those of the loop's time by stage, as in ``Monitor.read``; ``update_seconds`` is the fastest of
    several updates, as for ceilings, and ``work`` that of an uncompiled one. A sentence with the shares comes second.
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

    Parts are times before and after the change (s). If those before exceed the whole, the rest counts as 0 s.

    Source:
        Amdahl 1967, "Validity of the single processor approach to achieving large scale computing capabilities".
    """
    pairs = list(parts)
    before, after = map(sum, zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    whole = max(whole, before)
    if min([whole, *(second for pair in pairs for second in pair)]) < 0 or not whole - before + after > 0:
        raise ConfigError(f"speed-up: expected times above 0 s, got {whole} for the whole and parts {pairs}.")
    return whole / (whole - before + after)
