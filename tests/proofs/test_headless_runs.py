"""Headless runs in real kernels end as they say, leave no process behind, and keep what ran."""

import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import papermill
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import start_new_kernel

from tests.support.processes import left_behind
from tests.support.tiny_notebook import PARAMETERS, Write
from uavlab.core.errors import ResourceError
from uavlab_lab.headless.runner import NotebookRun, run_notebook


@pytest.fixture
def clean(tmp_path: Path) -> Iterator[None]:
    """Check that a run leaves neither a kernel nor a half-written file."""
    yield
    assert left_behind() == []
    assert not list(tmp_path.rglob(".o.ipynb.*"))


def statuses(run: NotebookRun) -> list[str]:
    nb = nbformat.read(run.out, as_version=4)
    return [cell.metadata.papermill.status for cell in nb.cells if cell.cell_type == "code"]


@pytest.mark.usefixtures("clean")
class TestRuns:
    def test_a_good_run(self, write: Write, tmp_path: Path) -> None:
        show = (
            "import json, os, sys\n"
            "keys = ('OMP_NUM_THREADS', 'OMP_WAIT_POLICY', 'PLOTLY_RENDERER')\n"
            "print(json.dumps([lr, device, sizes, sys.executable, os.getcwd(), [os.environ[k] for k in keys]]))"
        )
        meant = ("1 / 0", "raises-exception")
        path = write(PARAMETERS, show, meant, "assert lr < 1", meant, name="{good}.ipynb")
        before = path.read_bytes()
        nasty = 'a"; import os\n\\ </script> {x}'
        values = {"lr": 1e-3, "device": nasty, "sizes": [1, "b", None]}
        run = run_notebook(path, values, tmp_path / "new" / "{seed}.ipynb")
        assert (run.exit_code, run.reason) == (0, "all 6 cells ran")
        assert path.read_bytes() == before
        nb = nbformat.read(run.out, as_version=4)
        assert [cell.cell_type for cell in nb.cells] == ["code"] * 6  # no red marker for an error that is meant
        printed = nb.cells[2].outputs
        assert [o.name for o in printed] == ["stdout"]  # no warning on stderr
        assert json.loads(printed[0].text) == [
            1e-3, nasty, [1, "b", None], sys.executable, str(tmp_path), ["1", "PASSIVE", "plotly_mimetype"]
        ]  # fmt: skip
        assert nb.metadata.papermill.exception is False
        assert str(tmp_path) not in json.dumps(nb.metadata)

    def test_this_interpreter_serves_whatever_python3_is_installed(
        self, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "data" / "kernels" / "python3"
        folder.mkdir(parents=True)
        spec = {"argv": ["/bin/false"], "display_name": "other", "language": "python"}
        (folder / "kernel.json").write_text(json.dumps(spec))
        monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "data"))
        assert KernelSpecManager().get_kernel_spec("python3").argv == ["/bin/false"]  # the trap is set
        assert run_notebook(write("1"), {}, tmp_path / "o.ipynb").exit_code == 0

    @pytest.mark.parametrize(
        ("bad", "code", "reason"),
        [
            ("raise ValueError('no <wind>')", 1, r"cell 2 of 3 failed: ValueError: no <wind>"),
            ("import sys; sys.exit(0)", 1, r"cell 2 of 3 failed: SystemExit: 0"),
            ("input()", 1, r"cell 2 of 3 failed: StdinNotImplementedError: .*"),
            ("import os; os._exit(0)", 1, r"the kernel died in cell 2 of 3"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 1, r"the kernel died in cell 2 of 3"),
            ("import time; time.sleep(60)", 1, r"no end within 10 s in cell 2 of 3"),
        ],
    )
    def test_faults_are_told_as_they_are(self, write: Write, tmp_path: Path, bad: str, code: int, reason: str) -> None:
        run = run_notebook(write("print('kept')", bad, "print('never')"), {}, tmp_path / "o.ipynb", timeout_s=10)
        assert run.exit_code == code
        assert re.fullmatch(reason, run.reason)
        nb = nbformat.read(run.out, as_version=4)
        cells = [cell for cell in nb.cells if cell.cell_type == "code"]
        assert cells[0].outputs[0].text == "kept\n"
        assert cells[2].outputs == []
        assert statuses(run) == [
            "completed",
            "failed",
            "pending",
        ]  # papermill itself says completed after a dead kernel
        assert nb.metadata.papermill.exception is True

    @pytest.mark.parametrize("after", [[], ["1"]])
    def test_a_failure_that_hides_its_error_is_a_failure(self, write: Write, tmp_path: Path, after: list[str]) -> None:
        hide = "get_ipython().showtraceback = lambda *args, **kwargs: None"
        run = run_notebook(write(hide, "1 / 0", *after), {}, tmp_path / "o.ipynb")
        assert (run.exit_code, run.reason) == (1, f"cell 2 of {2 + len(after)} failed without showing an error")
        assert statuses(run) == ["completed", "failed", *("pending" for _ in after)]

    def test_quitting_is_not_completing(self, write: Write, tmp_path: Path) -> None:
        run = run_notebook(write("exit()", "import time; time.sleep(3)", "1"), {}, tmp_path / "o.ipynb", timeout_s=20)
        assert (run.exit_code, run.reason[:15]) == (1, "the kernel died")

    def test_a_range_that_only_the_kernel_knows_is_a_failure(self, write: Write, tmp_path: Path) -> None:
        check = "from uavlab_lab.headless.parameters import parameters\nlow = 0\n"
        check += "P = parameters(globals(), seed=(int, low, 9))"
        run = run_notebook(write(("seed: int = 0", "parameters"), check), {"seed": 10}, tmp_path / "o.ipynb")
        assert run.exit_code == 1
        assert "ConfigError: Parameters of this notebook: seed = 10, expected int in [0, 9]." in run.reason

    @pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
    def test_a_signal_ends_the_cell_and_keeps_what_ran(
        self, write: Write, tmp_path: Path, name: str, code: int
    ) -> None:
        disturb = f"import os, signal, time; os.kill(os.getppid(), signal.{name}); time.sleep(60)"
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        run = run_notebook(write("print('kept')", disturb, "1"), {}, tmp_path / "o.ipynb")
        assert (run.exit_code, run.reason) == (code, "interrupted in cell 2 of 3")
        assert statuses(run) == ["completed", "failed", "pending"]
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before

    def test_a_kernel_that_does_not_start(self, write: Write, tmp_path: Path) -> None:
        (tmp_path / "ipykernel_launcher.py").write_text("raise SystemExit(3)")
        run = run_notebook(write("1"), {}, tmp_path / "o.ipynb")
        assert (run.exit_code, run.reason) == (1, "the kernel died before cell 1 of 1")
        assert statuses(run) == ["pending"]

    def test_a_cell_that_is_not_to_run_is_not_called_complete(self, write: Write, tmp_path: Path) -> None:
        run = run_notebook(write("1", ("1 / 0", "skip-execution")), {}, tmp_path / "o.ipynb")
        assert (run.exit_code, run.reason) == (0, "all 1 cells ran")
        assert statuses(run) == ["completed", "pending"]

    def test_a_disk_that_fills_up_leaves_what_was_there(
        self, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "o.ipynb").write_text("before")
        path = write("1")

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(nbformat, "write", full)
        with pytest.raises(ResourceError) as caught:
            run_notebook(path, {}, tmp_path / "o.ipynb")
        assert "cannot be run to" in str(caught.value)
        assert (tmp_path / "o.ipynb").read_text() == "before"


def test_papermill_alone_tells_untruths(write: Write, tmp_path: Path) -> None:
    """The mutant of `run_notebook`: without it, leaving early would pass."""
    nb = papermill.execute_notebook(
        str(write("import sys; sys.exit(0)", "1")), str(tmp_path / "o.ipynb"), kernel_name="python3",
        language="python", progress_bar=False,
    )  # fmt: skip
    assert nb.cells[1].execution_count is None  # never ran, and nothing was raised


ENDLESS = """
import time
from uavlab_lab.widgets import Stop, stoppable
stop = Stop()
def steps():
    try:
        while True:
            time.sleep(0.01)
            yield
    finally:
        print("closed")
print("begun")
async for _ in stoppable(steps(), stop):
    pass
print("went on")
"""


def test_jupyters_interrupt_ends_the_loop_gracefully() -> None:
    manager, client = start_new_kernel()
    try:
        heard: list[str] = []

        def hear(message: dict) -> None:
            if message["msg_type"] == "stream":
                heard.append(message["content"]["text"])
                if "begun" in message["content"]["text"]:
                    manager.interrupt_kernel()

        reply = client.execute_interactive(ENDLESS, output_hook=hear, timeout=60)
        assert reply["content"]["status"] == "ok"
        assert "".join(heard).split() == ["begun", "closed", "went", "on"]
        assert client.execute_interactive("1", output_hook=hear, timeout=60)["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
