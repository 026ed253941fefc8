"""What ends the cell that runs in a headless notebook: its time, SIGINT or SIGTERM."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

TIMED_OUT = 124


class Watch:
    """Says when the cell that runs is to be given up; the second signal ends this process at once.

    A signal raises nothing, so that it cannot hit a file half written: the client asks once a second.

    Attributes:
        code: Exit code of what ended the cell; 0 for nothing.
    """

    def __init__(self, timeout_s: int | None) -> None:
        """Give every cell ``timeout_s`` seconds, or all the time it wants."""
        self.timeout_s = timeout_s or float("inf")
        self.code, self._signal, self._deadline = 0, 0, float("inf")

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Hear SIGINT and SIGTERM during the block; one that came too late to end a cell takes effect behind it."""
        if current_thread() is not main_thread():
            yield  # Python hears signals in the main thread alone
            return
        before = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._signal and not self.code:
            signal.raise_signal(self._signal)

    def begin(self) -> None:
        """Let the time of one more cell begin."""
        self.code, self._deadline = 0, time.monotonic() + self.timeout_s

    def over(self) -> bool:
        """Look at signals and the clock; once the answer is yes, ``code`` says why."""
        if self._signal:
            self.code = 128 + self._signal
        elif time.monotonic() > self._deadline:
            self.code = TIMED_OUT
        return self.code != 0

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._signal:
            os._exit(128 + number)  # the kernel follows its parent
        self._signal = number
