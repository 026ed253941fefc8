"""The kernel of a headless run: its start, the watchdog that ends it, and limits of the outputs that are kept."""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_output
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, papermill_engines
from traitlets import default

KERNEL_ENV = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PLOTLY_RENDERER": "plotly_mimetype"}
QUIETLY = ["--IPKernelApp.log_level=CRITICAL"]  # a kernel stopped within a cell logs errors of its closed sockets
# ipykernel polls for its parent in a thread, which a long C call in a cell blocks; so Linux ends the kernel, too.
WITH_PARENT = ["--IPKernelApp.exec_lines=if __import__('ctypes').CDLL(None).prctl(1, 9): pass"]
ENGINE = "uavlab"
TIMED_OUT = 124
TEXT, FIGURES = 5_000_000, 50_000_000  # most characters in a cell of each stream or text type, and of each other type
WEIGHT = 20  # characters added to the count of each output, so that many tiny ones reach the limit
CHUNK = 50_000  # characters up to which pieces of a stream are joined
IOPUB_S = 60  # time limit for receiving what a cell has printed (s)


class Watchdog:
    """Decides when the running cell must end: at its time limit, or on SIGINT or SIGTERM.

    A signal raises no exception, so that no file is left half written; the client polls ``expired`` once a second. A
    second signal ends this process at once.

    Attributes:
        code: Exit code for what ended the cell; 0 if nothing did.
    """

    def __init__(self, timeout_s: int | None) -> None:
        """Allow each cell ``timeout_s`` seconds; None sets no limit."""
        self.timeout_s = timeout_s or float("inf")
        self.code, self._signal, self._deadline = 0, 0, float("inf")

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Catch SIGINT and SIGTERM during the block; one that ended no cell is raised again after the block."""
        if current_thread() is not main_thread():
            yield  # Python handles signals only in the main thread
            return
        before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._signal and not self.code:
            signal.raise_signal(self._signal)

    def start_cell(self) -> None:
        """Start the clock of the next cell."""
        self.code, self._deadline = 0, time.monotonic() + self.timeout_s

    def expired(self) -> bool:
        """Return whether the cell must end, and set ``code`` if so."""
        if self._signal:
            self.code = 128 + self._signal
        elif time.monotonic() > self._deadline:
            self.code = TIMED_OUT
        return self.code != 0

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._signal:
            os._exit(128 + number)  # the kernel follows its parent
        self._signal = number


class OwnKernelManager(AsyncKernelManager):
    """Starts the kernel with this interpreter, not an installed kernel spec, with few log messages and one thread."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """Return the spec of this interpreter's kernel; environment variables that are already set take precedence."""
        spec = get_kernel_dict()
        env = {name: os.environ.get(name, value) for name, value in KERNEL_ENV.items()}
        argv = [*spec["argv"], *QUIETLY, *(WITH_PARENT if sys.platform == "linux" else [])]
        return KernelSpec(resource_dir=RESOURCES, **spec | {"argv": argv, "env": env})

    @default("transport_encryption")
    def _encrypt_if_possible(self) -> str:
        return "auto"  # the kernel prints a warning into every run otherwise


class Client(PapermillNotebookClient):
    """Stops when ``watchdog`` demands it, caps the outputs of a cell, and notes in the cell how much was left out."""

    def __init__(self, nb_man: Any, watchdog: Watchdog, **options: Any) -> None:
        """Run the notebook of ``nb_man`` under ``watchdog``; ``options`` are nbclient's."""
        super().__init__(nb_man, on_cell_execute=self._start_cell, **options)
        self.watchdog = watchdog

    def _start_cell(self, **_: Any) -> None:
        self.watchdog.start_cell()
        self._stop_if_expired()

    async def _async_check_alive(self) -> None:  # nbclient calls this once a second
        await super()._async_check_alive()
        self._stop_if_expired()

    def _stop_if_expired(self) -> None:
        if self.watchdog.expired():
            raise DeadKernelError("given up")

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        """Cap one message of the kernel before it becomes an output."""
        if not cell.outputs or self.clear_before_next_output:
            self.received, self.left_out, self.notice = Counter[str](), Counter[str](), new_output("display_data")
        rest: Any = True  # what remains of the message
        content, before = msg["content"], self.left_out.total()
        match msg["msg_type"]:
            case "stream":
                content["text"] = rest = self._cap(content["name"], content["text"], self.received)
            case "error":
                content["evalue"] = self._cap("error", content["evalue"], self.received) or ""
                content["traceback"] = [self._cap("error", line, self.received) or "" for line in content["traceback"]]
            case "display_data" | "execute_result" | "update_display_data" as kind:
                received = Counter() if kind.startswith("update") else self.received  # an update replaces an output
                bundle = ((mime, self._cap(mime, value, received)) for mime, value in content["data"].items())
                content["data"] = rest = {mime: value for mime, value in bundle if value is not None}
        cut = self.left_out.total() > before
        output = super().process_message(msg, cell, cell_index) if rest or not cut else None
        if cut:
            self._update_notice(cell.outputs)
        return output

    def output(self, outs: list[Any], msg: Any, display_id: str | None, cell_index: int) -> Any:
        """Append one output; a short piece of a stream is joined to the piece before it."""
        output = super().output(outs, msg, display_id, cell_index)
        before = outs[-2] if output and len(outs) > 1 else None
        if before and before.get("name") == output.get("name", "") and len(before.text) < CHUNK:
            before.text += outs.pop().text
        return output

    def _cap(self, kind: str, value: Any, received: Counter[str]) -> Any:
        """Cut text to the room that is left; return None for other data that does not fit, or if no room is left."""
        text = value if isinstance(value, str) else json.dumps(value)
        figure = "/" in kind and not kind.startswith("text/")
        room = max(0, (FIGURES if figure else TEXT) - received[kind])
        received[kind] += len(text) + WEIGHT
        if len(text) <= room:
            return value
        start = "" if "/" in kind and kind != "text/plain" else text[:room]
        self.left_out[kind] += len(text) - len(start)
        return start or None

    def _update_notice(self, outs: list[Any]) -> None:
        amounts = ", ".join(f"{count:,} characters of {kind}" for kind, count in self.left_out.items())
        text = f"left out: {amounts}; a cell keeps {TEXT:,} of each kind of text and {FIGURES:,} of each kind of figure"
        if not self.notice.data:
            outs.append(self.notice)
        self.notice.data["text/plain"] = text


class HeadlessEngine(Engine):
    """Papermill's engine with the manager, watchdog and client of this module; registered under ``ENGINE``."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, watchdog: Watchdog, **_: Any) -> None:
        """Run all cells."""
        options = {"kernel_name": kernel_name, "kernel_manager_class": OwnKernelManager, "iopub_timeout": IOPUB_S}
        Client(nb_man, watchdog, **options).execute()


papermill_engines.register(ENGINE, HeadlessEngine)
