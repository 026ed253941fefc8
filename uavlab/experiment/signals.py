"""Signals: the first asks a run to end, the second ends the process, and none cuts an update in half."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def at_once() -> Iterator[None]:
    """Let a signal end the process at once, where there is nothing to finish.

    Python's own KeyboardInterrupt, raised at any point of an import, may be swallowed there or end in a C++ error.
    """
    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.signal(number, _leave) for number in ENDING}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, f"\nended by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


@contextmanager
def first_asks(stop: Callable[[], None]) -> Iterator[list[int]]:
    """Turn the first SIGINT or SIGTERM into ``stop``; a second one ends the process at once.

    Yields:
        The signals received so far.
    """
    received: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            os.write(2, b"\nended at once; the last checkpoint stands\n")
            sys.exit(128 + number)
        stop()

    before = {number: signal.signal(number, handler) for number in ENDING}
    try:
        yield received
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def uncut() -> Iterator[None]:
    """Hold Python's own Ctrl-C back until the block is done; a handler that somebody set is left to its own ways.

    A notebook's Interrupt is such a Ctrl-C: without this it would leave half an update in memory.
    """
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if held:
        raise KeyboardInterrupt
