"""Jupyter's Interrupt, sent to a real kernel while a run trains: everything stays usable, and no bit changes."""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from tests.support.fixtures_config import train_tiny

SETTINGS = {"updates": 500, "evaluate_every": 40, "checkpoint_every": 100}
BEGIN = f"""
import warnings
from pathlib import Path
from tests.support.fixtures_config import tiny
from uavlab.core.errors import TrainingWarning
from uavlab.experiment.run import Run
warnings.simplefilter("ignore", TrainingWarning)  # of a run that is too short to learn
run = Run(tiny(**{SETTINGS}), Path("run"))
"""
LOOPS = {
    "plain": "for progress in run.train():\n    pass",
    "stoppable": (
        "from uavlab_lab.widgets import Stop, stoppable\n"
        "async for progress in stoppable(run.train(), Stop()):\n    pass"
    ),
}


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Callable[..., tuple[str, str]]]:
    """Start a kernel; give a function that runs a cell, interrupts it after a while, and returns its end and text."""
    manager, client = start_new_kernel(
        cwd=str(tmp_path), env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    )

    def run(source: str, interrupt_after: float | None = None) -> tuple[str, str]:
        request = client.execute(source)
        if interrupt_after is not None:
            time.sleep(interrupt_after)
            manager.interrupt_kernel()
        return reply(client, request)

    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def reply(client: BlockingKernelClient, request: str) -> tuple[str, str]:
    """Wait for a cell; return ok or the error's name, and all that it printed."""
    printed = ""
    while True:
        try:
            message = client.get_iopub_msg(timeout=60)
        except Empty:
            raise AssertionError("the kernel does not answer") from None
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "stream":
            printed += message["content"]["text"]
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return answer(client, request), printed


def answer(client: BlockingKernelClient, request: str) -> str:
    """Return ok or the error's name; replies to earlier requests, of a slow start, are passed over."""
    while True:
        message = client.get_shell_msg(timeout=60)
        if message["parent_header"].get("msg_id") == request:
            return message["content"].get("ename", message["content"]["status"])


@pytest.mark.parametrize("loop", ["plain", "stoppable"])
def test_interrupts_leave_a_run_that_goes_on_to_the_same_bits(
    kernel: Callable[..., tuple[str, str]], loop: str, proof: Callable[[str, str], None]
) -> None:
    dice = random.Random(0)
    assert kernel(BEGIN) == ("ok", "")
    ends, began = list[tuple[str, str]](), "False\n"
    while len(ends) < 6 or (began == "False\n" and len(ends) < 60):  # a busy machine takes several to begin
        ends.append(kernel(LOOPS[loop], 0.03 + 0.2 * dice.random()))
        _, began = kernel("print(run.number > 0)")
    assert {name for name, _ in ends} <= {"KeyboardInterrupt", "CancelledError", "ok"}
    ended, printed = kernel("print(run.status, 0 < run.number < 500, (run.folder / 'run.json').exists())")
    assert (ended, printed) == ("ok", "interrupted True True\n")
    assert kernel(LOOPS[loop]) == ("ok", "")
    assert kernel("print(run.status, run.number, run.digest)") == (
        "ok",
        f"complete 500 {train_tiny(**SETTINGS).digest}\n",
    )
    proof(f"a notebook's Interrupt, {loop} loop", f"{len(ends)} interrupts, the run went on to the same bits")
