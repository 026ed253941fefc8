"""Signal handling: the first signal stops a run after its update, the second ends the process."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], None]
ENDING = (signal.SIGINT, signal.SIGTERM)


def exit_immediately() -> AbstractContextManager[None]:
    """End the process at once on SIGINT or SIGTERM: imports may suppress a KeyboardInterrupt, or crash by it."""
    return _handling(_exit_process, *ENDING) if current_thread() is main_thread() else nullcontext()


def _exit_process(number: int, frame: FrameType | None) -> None:
    os.write(2, f"\nended by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


@contextmanager
def graceful_stop(stop: Callable[[], None], end: Callable[[int], Any] = sys.exit) -> Iterator[list[int]]:
    """Call ``stop`` on the first SIGINT or SIGTERM, ``end`` on the second; yield the signals received so far."""
    received: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            os.write(2, b"\nended at once; what was saved stands\n")
            end(128 + number)
        stop()

    with _handling(handler, *ENDING):
        yield received


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Defer a KeyboardInterrupt, which could leave half an update in memory; a custom handler of SIGINT stays."""
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    received: list[int] = []
    with _handling(lambda number, frame: received.append(number), signal.SIGINT):
        yield
    if received:
        raise KeyboardInterrupt


@contextmanager
def _handling(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
