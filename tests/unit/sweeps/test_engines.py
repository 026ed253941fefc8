"""A process starts as a command would, prints into its log, and ends when its pipe closes."""

import os
import signal
import threading
import time
from pathlib import Path
from threading import Event

import psutil
import pytest

from tests.support.sweeps import small
from uavlab.core import installation
from uavlab.core.errors import ResourceError
from uavlab.storage.machine import usable_cores
from uavlab.sweeps.driver import open_engine, run_process

SCRIPT = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[2])
print(sys.argv[1], os.environ["OMP_NUM_THREADS"], os.getcwd(), sys.argv[3], flush=True)
folder.with_suffix(".pid").write_text(str(os.getpid()))
print(sys.stdin.read() + "ended", flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    (tmp_path / "s.py").write_text(SCRIPT)
    return [str(tmp_path / "s.py")]


def wait_for(path: Path) -> int:
    while not (path.exists() and path.read_text()):
        time.sleep(0.01)
    return int(path.read_text())


def test_a_process_is_asked_to_stop_and_waited_for(script: list[str], tmp_path: Path) -> None:
    stop, place = Event(), tmp_path / "trials" / "t"
    thread = threading.Thread(target=run_process, args=(script, str(tmp_path), place, "the request", stop))
    thread.start()
    child = psutil.Process(wait_for(place.with_suffix(".pid")))
    assert os.getpgid(child.pid) != os.getpgid(0)  # Ctrl-C of a terminal does not reach it
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert not child.is_running()
    assert (tmp_path / "trials" / "t.log").read_text() == f"sweep-trial 1 {tmp_path} the request\nended\n"


def test_a_process_that_is_killed_has_ended(script: list[str], tmp_path: Path) -> None:
    thread = threading.Thread(target=run_process, args=(script, str(tmp_path), tmp_path / "t", "x", Event()))
    thread.start()
    os.kill(wait_for(tmp_path / "t.pid"), signal.SIGKILL)
    thread.join(30)
    assert not thread.is_alive()


def test_a_process_that_reads_nothing_has_ended(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("")
    run_process([str(tmp_path / "s.py")], str(tmp_path), tmp_path / "t", "x", Event())


class Interrupted(Event):
    """An event at whose second look a Ctrl-C arrives."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        if self.looks > 1:
            raise KeyboardInterrupt
        return False


def test_a_process_ends_if_its_waiting_is_cut(script: list[str], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_process(script, str(tmp_path), tmp_path / "t", "x", Interrupted())
    assert (tmp_path / "t.log").read_text().endswith("ended\n")


def test_what_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="cannot start a process"):
        run_process(["s.py"], str(tmp_path / "absent"), tmp_path / "t", "x", Event())
    with pytest.raises(ResourceError, match=r"cannot start a process \(Argument list too long\)"):
        run_process(["s.py"], str(tmp_path), tmp_path / "t", "x" * 1_000_000, Event())


def test_the_local_engine_has_a_worker_for_each_core(
    script: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "command_line", True)
    monkeypatch.setattr("sys.argv", script)  # which a user's own command line is
    monkeypatch.chdir(tmp_path)
    with open_engine(small(workers=3)) as engine:
        assert engine.workers == 3
    with open_engine(small(workers=None)) as engine:
        assert engine.workers == usable_cores()
        (stop := Event()).set()
        engine.run(tmp_path / "t", "x", stop)
    assert (tmp_path / "t.log").read_text() == f"sweep-trial 1 {tmp_path} x\nended\n"
