"""Wrappers around pure functions of tensors: lower precision, recomputed activations, compilation."""

import atexit
import fcntl
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial, wraps
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import FunctionType
from typing import Any, BinaryIO, TypeVar

import torch
from torch.utils.checkpoint import checkpoint

# A marker, which the system unlocks however its process ends, says which compilation did not end. What was written
# since then may be half of a file, and is removed before the next compilation.
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # names the folder of compiled code
OURS = "uavlab-compiled"  # a folder of this name, and the file in it without which nothing in a folder is removed
MUTEX = "mutex"
WAIT_S = 60.0  # until code is compiled without a marker, because a process that holds the mutex is suspended
MARKERS, LOCKS = "compiling", "locks"  # folders of this module, and of torch's own locks


def keep_compiled_code() -> None:
    """Keep compiled code in the user's cache, so that later processes do not compile it again.

    ``TORCHINDUCTOR_CACHE_DIR`` names another place, in which it is the folder ``uavlab-compiled``. torch's own, among
    temporary files, does not survive a restart of many systems; torch sets the variable to it. A folder with files of
    others is left alone.
    """
    from torch._dynamo.callback import callback_handler  # late: it takes a second

    temporary = str(Path(tempfile.gettempdir(), "torchinductor_"))
    place = os.environ.get(VARIABLE) or temporary
    with suppress(RuntimeError, OSError):  # no home, or none that can be written
        if place.startswith(temporary):
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "uavlab", "compiled")
        else:
            folder = Path(place) if Path(place, OURS).is_file() else Path(place, OURS)
        if _adopt(folder):
            os.environ[VARIABLE] = str(folder)
    if _begin not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_begin)
        callback_handler.register_end_callback(_end)


def use_new_folder() -> None:
    """Compile anew from now on, in a folder that ends with this process, after code on the disk could not be loaded."""
    from torch._inductor.utils import clear_caches

    folder = tempfile.mkdtemp(prefix="uavlab-compiled-")
    _adopt(Path(folder))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[VARIABLE] = folder
    clear_caches()


@contextmanager
def compilation() -> Iterator[None]:
    """Mark that code is compiled within the block; if it raises, what was written since may be half of a file."""
    marker, whole = _mark(), False
    try:
        yield
        whole = True
    finally:
        _unmark(marker, whole)


_MARKERS: list[BinaryIO | None] = []  # of torch's own compilation, the outermost one alone


def _begin(*_: Any) -> None:
    _MARKERS.append(_mark())


def _end(*_: Any) -> None:
    if _MARKERS:
        _unmark(_MARKERS.pop(), sys.exc_info()[0] is None)


def _adopt(folder: Path) -> bool:
    """Return whether a folder is for compiled code alone: a new one, or one of ours."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / OURS).is_file():
        return False
    (folder / OURS).touch()  # first, so that another process does not find a folder of others
    (folder / MARKERS).mkdir(exist_ok=True)
    return True


def _mark() -> BinaryIO | None:
    """Remove what is not whole, and return the marker of a compilation; None where there can be none."""
    folder = Path(os.environ.get(VARIABLE, ""))
    if not (folder / OURS).is_file():
        return None
    with suppress(OSError), _alone(folder):
        _remove_unfinished(folder)
        marker = (folder / MARKERS / f"{os.getpid()}-{time.monotonic_ns()}").open("wb")
        fcntl.flock(marker, fcntl.LOCK_EX)
        return marker
    return None


def _unmark(marker: BinaryIO | None, whole: bool) -> None:
    """End a compilation; its marker stays where it is not whole, as that of a process that was killed."""
    if marker is not None:
        path = Path(marker.name)
        with marker, suppress(OSError), _alone(path.parents[1]):
            if whole:
                path.unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    deadline = time.monotonic() + WAIT_S
    with (folder / MUTEX).open("ab") as mutex:
        while not _locks(mutex):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{folder}: another process holds the mutex")
            time.sleep(0.01)
        yield


def _locks(file: BinaryIO) -> bool:
    """Lock a file until it is closed; return whether nobody else had locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_unfinished(folder: Path) -> None:
    """Remove what was written since the first compilation that did not end, unless another process compiles now."""
    markers = [*(folder / MARKERS).iterdir()]
    left = [marker for marker in markers if _is_left(marker)]
    if left and len(left) == len(markers):
        since = min(marker.stat().st_mtime_ns for marker in left)
        kept = {folder / name for name in (OURS, MUTEX, MARKERS, LOCKS)}
        for path in folder.rglob("*"):
            if path.is_file() and not kept & {path, *path.parents} and path.stat().st_mtime_ns >= since:
                path.unlink()
        for marker in left:
            marker.unlink()


def _is_left(marker: Path) -> bool:
    """Return whether the process of a marker has ended, or its compilation has failed."""
    with marker.open("rb") as file:
        return _locks(file)


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
    """Compile ``fn`` at its first call, which ``announce`` precedes; on failure, ``fall_back`` and run it uncompiled.

    torch compiles before it runs, so on failure a function that writes in place has not started yet. Where code on the
    disk may be the cause, it is compiled once more, in a new folder.
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
