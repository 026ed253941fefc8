"""Workers answer all at once, are replaced where they fail, and leave nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from uavlab.core.errors import ConfigError, FallbackWarning
from uavlab.experiment.names import parse_external
from uavlab.workers import processes as module
from uavlab.workers.processes import Lost, Worker, Workers, describe, with_notes

HERE = "tests.support.strangers"


def pids(log: Path, word: str = "started") -> list[int]:
    return [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith(word)]


def gone(processes: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, processes))


LEAVING = """
import sys, time
from uavlab.experiment.names import parse_external
from uavlab.workers.processes import Workers, describe
origin = parse_external("tests.support.strangers:Meadow,fault=hang,at=1")
workers = Workers(origin, describe(origin), 2, 4)
print(*[worker.process.pid for worker in workers.members], flush=True)
workers.run({0: 1, 1: 1}, 30)
workers.run({0: None}, 600)
"""


@contextmanager
def started(name: str, count: int = 2, copies: int = 4) -> Iterator[Workers]:
    origin = parse_external(f"{HERE}:{name}")
    workers = Workers(origin, describe(origin), count, copies)
    try:
        yield workers
    finally:
        workers.close()


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def test_rows_of_all_workers_are_reset_and_stepped() -> None:
    with started("Meadow") as workers:
        assert workers.run({0: 7, 1: 7, 3: 8}, 30) == ({}, [])
        assert np.array_equal(workers.rows.obs[0], workers.rows.obs[1])  # one seed in two workers
        assert not np.array_equal(workers.rows.obs[1], workers.rows.obs[3])  # two copies of one worker
        assert not workers.rows.obs[2].any()
        before = workers.rows.obs.copy()
        workers.rows.action[:] = 1
        assert workers.run({0: None, 3: None}, 30) == ({}, [])
        changed = [not np.array_equal(a, b) for a, b in zip(workers.rows.obs, before, strict=True)]
        assert changed == [True, False, False, True]


def test_a_failure_names_what_was_raised_and_where() -> None:
    with started("Meadow,fault=raise,at=1") as workers:
        workers.run({0: 1, 1: 1}, 30)
        workers.rows.action[:] = 1
        gone, failures = workers.run({1: None}, 30)
    assert gone == {}
    [failure] = failures
    assert (failure["row"], failure["worker"], failure["doing"]) == (1, 1, "step")
    assert failure["raised"].startswith("ValueError: the meadow is closed at strangers.py:")
    [note] = with_notes(ConfigError(""), failure).__notes__
    assert note.startswith("In the worker:\nTraceback")
    assert 'raise ValueError("the meadow is closed")' in note


def test_notes_hold_what_an_environment_printed_and_command_no_terminal() -> None:
    with started("Meadow,fault=shout,at=1", 1) as workers:
        workers.run({0: 1}, 30)
        _, [failure] = workers.run({0: None}, 30)
    assert failure["raised"].startswith(r"ValueError: closed\x1b]0;owned\x07 at strangers.py:")
    printed, trace = with_notes(ConfigError(""), failure).__notes__
    assert printed == "The worker printed, at the end:\n" + r"before\x1b[2J \u202e"
    assert trace.endswith(r"ValueError: closed\x1b]0;owned\x07")
    assert all(c.isprintable() or c == "\n" for c in printed + trace)


def test_a_worker_whose_environment_is_another_one_is_refused_in_one_line() -> None:
    with started("Meadow", 1) as workers:
        workers.origin = parse_external(f"{HERE}:Meadow,moves=false")
        with pytest.raises(ConfigError, match="worker 0 made one with action=1 of agent grazer_0; expected 0, as"):
            workers.restart(0)
    origin = parse_external(f"{HERE}:Meadow")
    whole = describe(origin)
    with pytest.raises(ConfigError, match="worker 0 made one with 3 agents; expected 1, as"):
        Workers(origin, replace(whole, agents=whole.agents[:1]), 1, 4)  # in memory for one agent


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("die", "it ended with exit code 3"),
        ("hang", r"it did not answer in time, in misbehave at strangers.py:\d+"),
        ("crash", rf"it ended with signal {signal.SIGSEGV:d}, in misbehave at strangers.py:\d+"),
    ],
)
def test_a_worker_that_is_lost_is_replaced(fault: str, why: str) -> None:
    with started(f"Meadow,fault={fault},at=1") as workers:
        workers.run({0: 1, 1: 1}, 30)
        workers.rows.action[:] = 1
        before = workers.members[0].process.pid
        gone, failures = workers.run({0: None, 1: None}, 0.5)
        assert [re.fullmatch(why, text) is not None for text in gone.values()] == [True, True]
        assert failures == []
        workers.restart(0)
        assert workers.members[0].process.pid != before
        assert not alive(before)
        assert workers.run({0: 5, 2: 6}, 30) == ({}, [])


def test_making_copies_takes_longer_than_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def receive(worker: Worker, deadline: float) -> dict:
        limits.append(deadline - time.monotonic())
        return {"closed": ""}

    with started("Meadow", 1) as workers:
        monkeypatch.setattr(Worker, "receive", receive)
        for pairs in ({0: 1, 1: 1}, {0: None, 1: 4}, {2: 5}):
            workers.run(pairs, 10.0)
        assert [round(limit / 10) for limit in limits] == [13, 1, 13]


def test_a_killed_worker_is_noticed_by_its_signal() -> None:
    with started("Meadow", 1) as workers:
        os.kill(workers.members[0].process.pid, signal.SIGKILL)
        assert workers.run({0: 1}, 30)[0] == {0: "it ended with signal 9"}


def test_a_worker_that_is_killed_while_it_starts_is_started_again() -> None:
    with started("Meadow", 1) as workers:
        workers.members[0].close()
        workers.members[0] = workers._start()
        os.kill(workers.members[0].process.pid, signal.SIGKILL)
        workers._await(0)
        assert workers.run({0: 1}, 30) == ({}, [])


def test_workers_that_never_start_are_an_error() -> None:
    with started("Meadow", 1) as workers:
        workers.origin = parse_external(f"{HERE}:leave")
        with pytest.raises(ConfigError, match="no worker could make it, because it ended with exit code 5; expected"):
            workers.restart(0)


def test_an_environment_that_cannot_be_made_is_one_error() -> None:
    for name, text in (("absent", f"{HERE}:absent: {HERE} has no absent"), ("many_moves", "agent acts in MultiBinary")):
        with pytest.raises(ConfigError, match=text):
            describe(parse_external(f"{HERE}:{name}"))
    with pytest.raises(ConfigError, match=r"making it raised .*NameNotFound.*expected an environment"):
        describe(parse_external("gymnasium:Absent-v1"))


def test_a_worker_imports_neither_torch_nor_what_needs_it() -> None:
    code = "import sys, uavlab.workers.worker, uavlab.workers.processes; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_closing_ends_all_processes() -> None:
    with started("Meadow") as workers:
        processes = [worker.process.pid for worker in workers.members]
        assert [alive(process) for process in processes] == [True, True]
    assert [alive(process) for process in processes] == [False, False]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker notices within a second")
def test_workers_end_with_a_process_that_is_killed_also_in_the_middle_of_a_step() -> None:
    parent = subprocess.Popen([sys.executable, "-c", LEAVING], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    processes = [int(word) for word in parent.stdout.readline().split()]
    time.sleep(0.2)  # worker 0 is in its step, worker 1 waits
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [alive(process) for process in processes] == [False, False]


def test_an_answer_that_does_not_come_is_lost() -> None:
    worker = Worker(parse_external(f"{HERE}:Meadow"), None, 0)
    worker.describe("Meadow")
    with pytest.raises(Lost, match="did not answer"):
        worker.receive(time.monotonic() + 0.01)
    worker.close()
    worker.send([])  # nobody is there, which ``receive`` says


@pytest.mark.parametrize("closing", ["", "raise", "hang", "forget"])
def test_closing_closes_each_copy_and_ends_what_it_started(
    closing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 1.0)
    log = tmp_path / "log"
    origin = parse_external(f"{HERE}:Simulator,log={log},closing={closing or 'kill'}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        description = describe(origin)
        assert len(pids(log)) == len(pids(log, "closed")) == 1
        workers = Workers(origin, description, 2, 4)
        workers.run({0: 1, 1: 1, 2: 1}, 30)
        assert len(pids(log)) == 4  # three copies in use, and none beside them
        workers.close()
    assert len(pids(log, "closed")) == (3 if closing == "hang" else 4)  # the first of two in a worker hangs
    assert gone(pids(log))
    texts = [str(each.message) for each in caught if each.category is FallbackWarning]
    expected = {"raise": "it raised ValueError: the simulator is gone", "hang": "it did not answer in time, in close"}
    assert len(texts) == (2 if closing in expected else 0)
    assert all(expected[closing] in text for text in texts)


@pytest.mark.parametrize("replace_it", [True, False])
def test_what_a_lost_worker_started_ends(replace_it: bool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(f"Simulator,log={log}", 1) as workers:
        workers.run({0: 1}, 30)
        workers.members[0].process.kill()
        if replace_it:
            workers.restart(0)
            assert gone(pids(log)[:2])
            assert alive(pids(log)[2])
    assert gone(pids(log))
