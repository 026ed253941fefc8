"""Settings of the whole process: threads, TF32, deterministic operators, the share of a GPU's memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch

from uavlab.runtime.toggles import Toggles


@contextmanager
def process_flags(toggles: Toggles, device: torch.device) -> Iterator[None]:
    """Apply the settings that ``toggles`` request, and restore the old ones at the end."""
    with ExitStack() as undo:

        def change(read: Callable[[], object], write: Callable, value: object) -> None:
            before = read()
            if before != value:
                write(value)
                undo.callback(write, before)

        change(torch.get_num_threads, torch.set_num_threads, toggles.threads)
        if toggles.deterministic == "on":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it, and reads it once
            change(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)
        if toggles.precision == "tf32":
            undo.enter_context(fp32_products("tf32"))
        if toggles.memory_fraction < 1:
            torch.cuda.set_per_process_memory_fraction(toggles.memory_fraction, device)
            undo.callback(torch.cuda.set_per_process_memory_fraction, 1.0, device)
        yield


@contextmanager
def fp32_products(precision: str) -> Iterator[None]:
    """Multiply float32 matrices on a GPU in ``tf32`` or ``ieee`` precision, and restore the old setting at the end."""
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = precision
    try:
        yield
    finally:
        settings.fp32_precision = before
