"""Wrappers around pure functions of tensors: lower precision, recomputed activations, compilation."""

import warnings
from collections.abc import Callable
from functools import partial, wraps
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch._dynamo.exc import TorchDynamoException
from torch.utils.checkpoint import checkpoint

from uavlab.core.errors import FallbackWarning

F = TypeVar("F", bound=Callable)
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OF_ITS_OWN = (  # what torch warns of while it compiles: looking through caches of constants, and its own old parts
    "Dynamo detected a call to a `functools",
    "`torch.jit",
)
FAILURES = (TorchDynamoException, ImportError)  # of compiling; a function of ours raises neither


def in_precision(fn: Callable, device: torch.device, precision: str) -> Callable:
    """Run the matrix products of ``fn`` in lower precision; what it returns is as exact as its own code makes it."""
    dtype = DTYPES[precision]

    @wraps(fn)
    def cast(*args: Any) -> Any:
        with torch.autocast(device.type, dtype, cache_enabled=False):  # a cache would outlive a captured graph
            return fn(*args)

    return cast


def recomputed(fn: Callable) -> Callable:
    """Keep no activations of ``fn`` for its backward pass; noise is an argument, so none is drawn twice."""
    return partial(checkpoint, fn, use_reentrant=False, preserve_rng_state=False)


def compiled(fn: F, name: str, mode: str, fall_back: Callable[[str], None]) -> F:
    """Compile ``fn`` when it is first called; where that fails, ``fall_back`` is told why and ``fn`` runs as it is.

    torch compiles before it runs, so a function that writes in place has not begun to when this fails.
    """

    def body(*args: Any) -> Any:
        return fn(*args)

    for about in OF_ITS_OWN:
        warnings.filterwarnings("ignore", about)
    # torch counts recompilations by code object: kernels that shared one would use up each other's share
    code = body.__code__.replace(co_name=name)
    own = FunctionType(code, body.__globals__, name, None, body.__closure__)
    run: Callable = fn

    @wraps(fn)
    def call(*args: Any) -> Any:
        nonlocal run
        try:
            return run(*args)
        except FAILURES as error:
            if run is fn:
                raise
            run = fn
            fall_back(f"{name}: {_said(error)}")
            return fn(*args)

    try:
        run = torch.compile(own, dynamic=False, fullgraph=True, mode=mode)
    except FAILURES as error:
        fall_back(f"{name}: {_said(error)}")
    return call  # type: ignore[return-value]


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]


def tell(name: str, value: Any, reason: str) -> None:
    """Say in one visible line that a toggle is not in effect."""
    warnings.warn(f"{name}={value} fell back: {reason}", FallbackWarning, stacklevel=3)
