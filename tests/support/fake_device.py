"""A GPU that is none: tensors report a CUDA device, while their numbers lie in the memory of the CPU.

Whole runs work on it, with real numbers. It refuses what a GPU refuses or pays for: operators on tensors of several
devices, generators of another device, and host syncs, where the host waits for the device: a value that Python reads, a
shape that depends on values, a copy between host and device. A function that waits on purpose declares it by the words
"host sync" in its docstring or in a comment; its waits are counted, by place. Streams and events do nothing, threads
run at once, and a compiled function is called as the compiler would trace it, so neither overlapping work nor
compilation is emulated.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial, wraps
from types import CodeType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._C import TensorBase, _functorch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import cuda_graph_emulator
from tests.support.cuda_graph_emulator import Emulator, written
from uavlab.collectors import off_policy
from uavlab.replay import prefetch
from uavlab.runtime import cuda_graph

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
DECLARED = "host sync"
PACKAGES = (torch.__path__[0], __file__, cuda_graph_emulator.__file__)
WAITING = {"tolist", "numpy", "__array__", "__repr__"}  # methods that read values without an operator
BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
COPIES = {aten.copy_.default, aten._to_copy.default}
NO_DATA = {aten.detach.default, aten.set_.source_Storage, aten.is_pinned.default}
SCALARS = {aten.fill_.Tensor, aten.masked_fill.Tensor, aten.masked_fill_.Tensor, aten.where.self, aten.where.self_out}


class WaitError(RuntimeError):
    """The host waits for the device where no function declares it."""


class MixedDevicesError(RuntimeError):
    """An operator reads tensors of several devices."""


class Generator(torch.Generator):
    """A generator that reports its device."""

    def __new__(cls, device: Any = "cpu") -> "Generator":
        own = super().__new__(cls, "cpu")
        own.place = torch.device(device)
        return own

    @property
    def device(self) -> torch.device:
        return self.place


class Stream:
    """A stream, or an event, that never has work left."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def _nothing(self, *args: Any) -> None:
        return

    wait_stream = wait_event = record = record_stream = _nothing

    def record_event(self, event: Any = None) -> "Stream":
        return self

    def synchronize(self) -> None:
        wait("synchronize")


class Immediately:
    """An executor that runs its work when it is submitted."""

    def __init__(self, *args: Any) -> None:
        pass

    def submit(self, fn: Callable, *args: Any) -> Future:
        future: Future = Future()
        future.set_result(fn(*args))
        return future


def where(tensor: Tensor) -> torch.device:
    """Return the device that a tensor stands for."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return getattr(TensorBase.untyped_storage(tensor), "fake_device", CPU)


def place(tree: Any, device: torch.device) -> Any:
    """Move tensors, in name only."""
    for leaf in tensors_of(tree):
        inner = leaf
        while _functorch.is_functorch_wrapped_tensor(inner):
            inner = _functorch.get_unwrapped(inner)
        TensorBase.untyped_storage(inner).fake_device = device
    return tree


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of an operator's arguments or results."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from tensors_of(part)


class Operators(TorchDispatchMode):
    """Give results the device of their arguments, and refuse several."""

    checks = True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if not self.checks:
            return func(*args, **kwargs)
        tensors = [*tensors_of(args), *tensors_of(tuple(kwargs.values()))]
        device = operator_device(func, args, kwargs, tensors)
        given = {TensorBase.untyped_storage(leaf)._cdata for leaf in tensors}
        result = func(*args, **kwargs)
        if device.type == "cuda":
            place([leaf for leaf in tensors_of(result) if TensorBase.untyped_storage(leaf)._cdata not in given], CUDA)
        return result


def operator_device(func: Any, args: tuple, kwargs: dict, tensors: list[Tensor]) -> torch.device:
    """Return where an operator runs; it may wait, or be refused."""
    devices = list(map(where, tensors))
    if CUDA not in devices:
        return CPU
    if func in COPIES:
        target = next(iter(written(func, args, kwargs)), args[0])
        if len(set(devices)) > 1 and not kwargs.get("non_blocking", len(args) > 2 and args[2]):
            wait(f"a copy between devices ({func})")
        return where(target)
    indices = [i for i in args[1] if i is not None] if func in INDEXING else []
    if BY_VALUE & set(func.tags) and not indices:
        wait(str(func))
    if any(i.dtype in (torch.bool, torch.uint8) or where(i) == CPU for i in indices):
        wait(f"{func} by a mask, or by numbers of the host")
    scalar = torch.Tag.pointwise in func.tags or func in SCALARS
    for tensor, device in zip(tensors, devices, strict=True):
        allowed = (scalar and tensor.dim() == 0) or any(tensor is i for i in indices)
        if device == CPU and not allowed:
            raise MixedDevicesError(f"{func}: tensors on {sorted(set(map(str, devices)))}; expected one device")
    return CUDA


class Functions(TorchFunctionMode):
    """Build tensors on the device that a call names, and copy them there."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if isinstance(func, torch._ops.OpOverload):  # an operator that another mode passes on
            return func(*args, **(kwargs or {}))
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in WAITING and where(args[0]) == CUDA:
            wait(name)
        if name in ("to", "cpu", "cuda") and args and isinstance(args[0], Tensor):
            return move(name, *args, **kwargs)
        kwargs.pop("pin_memory", None)
        generator = kwargs.get("generator")
        device = kwargs.pop("device", None)
        drawn = device is not None and isinstance(generator, Generator)
        if drawn and generator.device.type != torch.device(device).type:
            raise MixedDevicesError(f"{name}: a generator on {generator.device} for numbers on {device}")
        result = func(*args, **kwargs)
        if device is not None:
            device = CUDA if torch.device(device).type == "cuda" else CPU
            if name in ("tensor", "as_tensor") and device == CUDA:
                wait(f"torch.{name} of numbers of the host")
            place(result, device)
        return result


def move(name: str, tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
    """Copy a tensor as ``Tensor.to`` does."""
    if name == "to":
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device, dtype, free, _ = torch._C._nn._parse_to(*args, **kwargs)
    else:
        device, dtype, free = torch.device(name), None, kwargs.get("non_blocking", False)
    source = where(tensor)
    target = source if device is None else CUDA if device.type == "cuda" else CPU
    result = tensor if dtype is None else TensorBase.to(tensor, dtype)
    if target != source:
        if not free:
            wait(f"a copy from {source.type} to {target.type}")
        return place(TensorBase.clone(result), target)
    return TensorBase.clone(result) if copy and result is tensor else result


class Waits(Counter[str]):
    """Host syncs by place; with ``strict``, those that no function declares are refused."""

    strict = False


WAITS = Waits()


def wait(what: str) -> None:
    """Count a wait of the nearest function outside torch.

    Raises:
        WaitError: The function does not declare it.
    """
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename.startswith(PACKAGES) or frame.f_code.co_filename.startswith("<"):
        frame = frame.f_back
    site = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_name}"
    if WAITS.strict and not declares(frame.f_code):
        raise WaitError(f"{site}, line {frame.f_lineno}: the host waits for the device: {what}")
    WAITS[site] += 1


@cache
def declares(code: CodeType) -> bool:
    return DECLARED in inspect.getsource(code)


def traced(fn: Callable | None = None, **options: Any) -> Callable:
    """Call a function as a compiler traces it: its own code sees that it is compiled."""
    if fn is None:
        return partial(traced, **options)

    @wraps(fn)
    def call(*args: Any) -> Any:
        with patch.object(torch.compiler, "is_compiling", lambda: True):
            return fn(*args)

    return call


def autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
    return AUTOCAST("cpu", *args, **kwargs)


AUTOCAST = torch.autocast


@contextmanager
def fake_device(strict: bool = True) -> Iterator[Waits]:
    """Run code on the device; yield how often the host waited, by file and function."""
    WAITS.clear()
    WAITS.strict = strict
    gpu = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda *device: "a fake device",
        "mem_get_info": lambda *device: (2**40, 2**40),
        "memory_allocated": lambda *device: 0,
        "max_memory_allocated": lambda *device: 0,
        "set_per_process_memory_fraction": lambda *given: None,
        "synchronize": lambda *device: wait("synchronize"),
        "current_stream": Stream,
        "stream": lambda stream: nullcontext(),
        "Stream": Stream,
        "Event": Stream,
        "is_current_stream_capturing": lambda: False,
    }
    views = {
        "device": property(where),
        "is_cuda": property(lambda tensor: where(tensor) == CUDA),
        "is_cpu": property(lambda tensor: where(tensor) == CPU),
        "record_stream": lambda tensor, stream: None,
        "pin_memory": lambda tensor: tensor,
    }
    with ExitStack() as stack:
        for target, values in ((torch.cuda, gpu), (Tensor, views)):
            for name, value in values.items():
                stack.enter_context(patch.object(target, name, value))
        for target, name, value in (
            (torch, "Generator", Generator),
            (torch, "autocast", autocast),
            (torch.amp, "autocast", autocast),
            (torch, "compile", traced),
            (torch.autograd, "has_torch_function", lambda given: False),  # or recomputation would leave the modes
            (off_policy, "ThreadPoolExecutor", Immediately),
            (prefetch, "ThreadPoolExecutor", Immediately),
            (cuda_graph, "CudaBackend", Emulator),
            (cuda_graph_emulator, "aside", lambda: patch.object(Operators, "checks", False)),
        ):
            stack.enter_context(patch.object(target, name, value))
        stack.enter_context(Operators())
        stack.enter_context(Functions())
        yield WAITS
