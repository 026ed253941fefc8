"""Wrappers around pure functions of tensors: lower precision, recomputed activations, compilation."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial, wraps
from importlib import import_module
from threading import Thread
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch.utils.checkpoint import checkpoint

from uavlab.runtime.compiled_code import compilation, keep_compiled_code, use_new_folder

F = TypeVar("F", bound=Callable)
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
COMPILER_WARNINGS = (  # about cached functions, and about deprecated parts of torch itself
    "Dynamo detected a call to a `functools",
    "`torch.jit",
    "TensorFloat32 tensor cores",  # precision=tf32 enables them
)
MODES = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Modes without CUDA graphs of the compiler, which overwrite results that the loop still needs; see ``graph``."""


def autocast(fn: Callable, device: torch.device, precision: str) -> Callable:
    """Run the matrix products of ``fn`` in lower precision, except where its own code requires another one."""
    dtype = DTYPES[precision]

    @wraps(fn)
    def cast(*args: Any) -> Any:
        with torch.autocast(device.type, dtype, cache_enabled=False):  # a cache would outlive a captured graph
            return fn(*args)

    return cast


def recompute_activations(fn: Callable) -> Callable:
    """Recompute the activations of ``fn`` in its backward pass; noise is an argument, so no random state is saved."""
    return partial(checkpoint, fn, use_reentrant=False, preserve_rng_state=False)


def compile_function(
    fn: F, name: str, mode: str, fall_back: Callable[[str], None], announce: Callable[[str], Any] = lambda name: None
) -> F:
    """Compile ``fn`` at its first call; on failure, call ``fall_back`` with the reason and run ``fn`` uncompiled.

    torch compiles before it runs, so on failure a function that writes in place has not started yet. Where code on the
    disk may be the cause, it is compiled once more, in a new folder. ``announce`` is called with the name before the
    first call.
    """
    from torch._dynamo.exc import TorchDynamoException  # late: it takes a second

    keep_compiled_code()
    check_vector_instructions()

    errors = (TorchDynamoException, ImportError, OSError)  # not raised by the functions of this package
    announced = again = False

    def body(*args: Any) -> Any:
        return fn(*args)

    for message in COMPILER_WARNINGS:
        warnings.filterwarnings("ignore", message)
    run: Callable = fn

    def compiled() -> Callable:
        # torch limits recompilations per code object, so each function needs its own
        code = body.__code__.replace(co_name=name)
        copy = FunctionType(code, body.__globals__, name, None, body.__closure__)
        return torch.compile(copy, dynamic=False, fullgraph=True, mode=MODES.get(mode, mode))

    @wraps(fn)
    def call(*args: Any) -> Any:
        nonlocal run, announced, again
        if not announced:
            announced = True
            announce(name)
        try:
            return run(*args)
        except errors as error:
            if run is fn:
                raise
            if not again and _is_of_files(error):
                again = True
                use_new_folder()
                run = compiled()
                return call(*args)
            run = fn
            fall_back(f"{name}: {_summary(error)}")
            return fn(*args)

    try:
        run = compiled()
    except errors as error:
        fall_back(f"{name}: {_summary(error)}")
    return call  # type: ignore[return-value]


@cache
def check_vector_instructions() -> Thread:
    """Start the compiler's check of which vector instructions it can use, once; it waits for processes of its own.

    Functions are traced meanwhile; without a GPU, the first one that is traced needs its result.
    """

    def check() -> None:
        with suppress(Exception), compilation():  # the compiler checks again, and reports it
            from torch._inductor.cpu_vec_isa import valid_vec_isa_list

            valid_vec_isa_list()

    thread = Thread(target=check, name="vector instructions")  # no daemon: those may not end within an import
    if not torch.cuda.is_available():
        with suppress(ImportError):  # changes sys.meta_path; if the thread did, an import here could miss its module
            import_module("setuptools")
        thread.start()
    return thread


def _is_of_files(error: Exception) -> bool:
    """Return whether code on the disk that cannot be loaded, or built upon, may have caused an error."""
    from torch._inductor.exc import CppCompileError  # late, as above

    cause = getattr(error, "inner_exception", error)
    return isinstance(cause, (ImportError, OSError, SyntaxError, EOFError, CppCompileError))


def _summary(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]
