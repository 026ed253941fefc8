"""What a run executes: operators with shapes, dtypes, devices, files and numbers, and the flags that hold for them.

Two runs of one program have one trace, whatever their settings say. The compiler only traces; its calls are steps, as
are replays of a CUDA graph, starts of threads and requests of pinned memory. Operators of other threads are none.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.cuda_graph_emulator import Tape
from tests.support.fake_device import traced, where
from uavlab.runtime import wrappers

SMALLEST = np.float32(1e-40)  # flushed to zero where denormal numbers are
FLAGS: dict[str, Callable[[], Any]] = {
    "threads": torch.get_num_threads,
    "dtype": torch.get_default_dtype,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "float32 products": torch.get_float32_matmul_precision,
    "cuDNN benchmark": torch._C._get_cudnn_benchmark,
    "denormals": lambda: bool(SMALLEST * np.float32(1)),
}
FILE = "rows of a file"
CONSTANTS = {torch.ops.aten.lift_fresh.default}  # that may be cached by earlier runs


class Trace:
    """The steps of a run, in order; ``files`` are the addresses of files that are read as memory."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        arrays = [each for each in gc.get_objects() if isinstance(each, np.memmap)]
        self.files = [range(each.ctypes.data, each.ctypes.data + each.nbytes) for each in arrays]
        self._flags: list[Any] = []

    def add(self, *parts: Any) -> None:
        flags = [read() for read in FLAGS.values()]
        if flags != self._flags:
            self._flags = flags
            self.steps.append(("flags", dict(zip(FLAGS, flags, strict=True))))
        self.steps.append(parts)

    def text(self) -> Iterator[str]:
        """Yield the steps as lines."""
        return (" ".join(map(str, step)) for step in self.steps)


class Operators(TorchDispatchMode):
    """Record each operator."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in CONSTANTS:
            shapes = describe(result) if isinstance(result, Tensor | tuple | list) else [type(result).__name__]
            files = [FILE for leaf in args if isinstance(leaf, Tensor) and self._is_in_file(leaf)]
            self.trace.add(func, *describe(args), *(describe(kwargs) if kwargs else ()), *files, "->", *shapes)
        return result

    def _is_in_file(self, tensor: Tensor) -> bool:
        return bool(self.trace.files) and any(tensor.data_ptr() in file for file in self.trace.files)


class Pins(TorchFunctionMode):
    """Record requests of pinned memory, which no operator shows on a device that is none."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "pin_memory" or (kwargs or {}).get("pin_memory"):
            self.trace.add("pinned", name)
        return func(*args, **(kwargs or {}))


def describe(tree: Any) -> Iterator[Any]:
    """Yield dtype, shape and device of tensors; numbers and names as they are."""
    if isinstance(tree, Tensor):
        yield tree.dtype
        yield tuple(tree.shape)
        yield where(tree).type
    elif isinstance(tree, tuple | list) and tree and type(tree[0]) is int:
        yield tuple(tree)
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from describe(part)
    elif isinstance(tree, dict):
        for name, part in tree.items():
            yield name
            yield from describe(part)
    else:
        number = repr(tree) if isinstance(tree, float) else tree  # nan equals nan
        yield number if isinstance(tree, bool | int | float | str | torch.dtype | None) else type(tree).__name__


@contextmanager
def execution_trace() -> Iterator[Trace]:
    """Record what this thread executes."""
    trace, start, replay = Trace(), threading.Thread.start, Tape.replay

    def compiled(fn: Callable | None = None, **options: Any) -> Callable:
        trace.add("compile", getattr(fn, "__name__", ""), sorted(options.items(), key=str))
        return traced(fn, **options)

    def started(thread: threading.Thread) -> None:
        trace.add("thread")
        start(thread)

    def replayed(tape: Tape) -> None:
        trace.add("graph of", len(tape.calls))
        replay(tape)

    with ExitStack() as stack:
        for target, name, value in (
            (torch, "compile", compiled),
            (wrappers, "check_vector_instructions", lambda: None),  # a thread, once in a process
            (threading.Thread, "start", started),
            (Tape, "replay", replayed),
            (torch.cuda, "set_per_process_memory_fraction", lambda *given: trace.add("memory", *given)),
        ):
            stack.enter_context(patch.object(target, name, value))
        stack.enter_context(Operators(trace))
        stack.enter_context(Pins(trace))
        yield trace
