"""CUDA's mode for calls that wait for the device, without the warning that comes with it."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PROTOTYPE = "Synchronization debug mode is a prototype"


@contextmanager
def sync_debug(mode: str = "error", device: torch.device | str = "cuda") -> Iterator[None]:
    """Set CUDA's mode for calls that wait (``warn`` or ``error``), and reset it at the end; on a CPU do nothing.

    torch warns once in a process that the mode is a prototype, which the suite's filter would turn into an error.
    """
    if torch.device(device).type != "cuda":
        yield
        return
    _change(mode)
    try:
        yield
    finally:
        _change("default")


def _change(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", PROTOTYPE, UserWarning)
        torch.cuda.set_sync_debug_mode(mode)
