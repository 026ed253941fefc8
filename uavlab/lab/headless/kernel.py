"""The kernel behind a headless run: how it starts, how it ends and how much of its output is kept."""

import json
import os
import sys
from collections import Counter
from typing import Any

from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_output
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, papermill_engines
from traitlets import default

from uavlab.lab.headless.watchdog import Watch

KERNEL_ENV = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PLOTLY_RENDERER": "plotly_mimetype"}
QUIETLY = ["--IPKernelApp.log_level=CRITICAL"]  # a kernel stopped within a cell complains of its closed sockets
# ipykernel looks for its parent in a thread, which a cell within one long C call never lets run; Linux is asked too.
WITH_PARENT = ["--IPKernelApp.exec_lines=if __import__('ctypes').CDLL(None).prctl(1, 9): pass"]
ENGINE = "uavlab"
TEXT, FIGURES = 5_000_000, 50_000_000  # characters of each stream and kind of text, and of each other kind, in a cell
WEIGHT = 20  # characters that one more output counts for, so that a flood of tiny ones ends too
CHUNK = 50_000  # characters up to which pieces of a stream are joined
IOPUB_S = 60  # time to hand over what a cell has printed (s)


class ThisPython(AsyncKernelManager):
    """Starts the kernel with this interpreter, whatever kernels are installed, quietly and on one thread."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """Describe this interpreter's kernel; variables that are set already win."""
        spec = get_kernel_dict()
        env = {name: os.environ.get(name, value) for name, value in KERNEL_ENV.items()}
        argv = [*spec["argv"], *QUIETLY, *(WITH_PARENT if sys.platform == "linux" else [])]
        return KernelSpec(resource_dir=RESOURCES, **spec | {"argv": argv, "env": env})

    @default("transport_encryption")
    def _encrypt_if_possible(self) -> str:
        return "auto"  # the kernel prints a warning into every run otherwise


class Client(PapermillNotebookClient):
    """Gives a cell up when ``watch`` says so, keeps so much of what it shows, and tells in it how much was left out."""

    def __init__(self, nb_man: Any, watch: Watch, **options: Any) -> None:
        """Run the notebook of ``nb_man`` under ``watch``; ``options`` are nbclient's."""
        super().__init__(nb_man, on_cell_execute=self._begin, **options)
        self.watch = watch

    def _begin(self, **_: Any) -> None:
        self.watch.begin()
        self._give_up_or_go_on()

    async def _async_check_alive(self) -> None:  # nbclient calls this once a second
        await super()._async_check_alive()
        self._give_up_or_go_on()

    def _give_up_or_go_on(self) -> None:
        if self.watch.over():
            raise DeadKernelError("given up")

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        """Shorten one message of the kernel before it is kept."""
        if not cell.outputs or self.clear_before_next_output:
            self.seen, self.left_out, self.notice = Counter[str](), Counter[str](), new_output("display_data")
        kept: Any = True
        content, before = msg["content"], self.left_out.total()
        match msg["msg_type"]:
            case "stream":
                content["text"] = kept = self._fit(content["name"], content["text"], self.seen)
            case "error":
                content["evalue"] = self._fit("error", content["evalue"], self.seen) or ""
                content["traceback"] = [self._fit("error", line, self.seen) or "" for line in content["traceback"]]
            case "display_data" | "execute_result" | "update_display_data" as kind:
                seen = Counter() if kind.startswith("update") else self.seen  # an update takes the place of another
                fitted = ((mime, self._fit(mime, value, seen)) for mime, value in content["data"].items())
                content["data"] = kept = {mime: value for mime, value in fitted if value is not None}
        lost = self.left_out.total() > before
        output = super().process_message(msg, cell, cell_index) if kept or not lost else None
        if lost:
            self._tell(cell.outputs)
        return output

    def output(self, outs: list[Any], msg: Any, display_id: str | None, cell_index: int) -> Any:
        """Keep one output; a short piece of a stream is joined to the piece before it."""
        output = super().output(outs, msg, display_id, cell_index)
        before = outs[-2] if output and len(outs) > 1 else None
        if before and before.get("name") == output.get("name", "") and len(before.text) < CHUNK:
            before.text += outs.pop().text
        return output

    def _fit(self, kind: str, value: Any, seen: Counter[str]) -> Any:
        """Cut text to the room that is left; give None for anything else that does not fit, and where there is none."""
        text = value if isinstance(value, str) else json.dumps(value)
        figure = "/" in kind and not kind.startswith("text/")
        room = max(0, (FIGURES if figure else TEXT) - seen[kind])
        seen[kind] += len(text) + WEIGHT
        if len(text) <= room:
            return value
        kept = "" if "/" in kind and kind != "text/plain" else text[:room]
        self.left_out[kind] += len(text) - len(kept)
        return kept or None

    def _tell(self, outs: list[Any]) -> None:
        amounts = ", ".join(f"{count:,} characters of {kind}" for kind, count in self.left_out.items())
        text = f"left out: {amounts}; a cell keeps {TEXT:,} of each kind of text and {FIGURES:,} of each kind of figure"
        if not self.notice.data:
            outs.append(self.notice)
        self.notice.data["text/plain"] = text


class Papermill(Engine):
    """Papermill's engine with `ThisPython`, `Watch` and `Client` in it; registered under `ENGINE`."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, watch: Watch, **_: Any) -> None:
        """Run all cells.

        Raises:
            RuntimeError: The kernel did not start, died, or was given up by ``watch``.
        """
        options = {"kernel_name": kernel_name, "kernel_manager_class": ThisPython, "iopub_timeout": IOPUB_S}
        Client(nb_man, watch, **options).execute()


papermill_engines.register(ENGINE, Papermill)
