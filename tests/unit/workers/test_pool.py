"""A pool steps the live copy of a state once, keeps the copies of worlds that wait, and leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uavlab.core.errors import ConfigError, FallbackWarning
from uavlab.experiment.names import parse_external
from uavlab.workers import pool as module
from uavlab.workers.pool import Pool, Worker, close_all, describe, pool_for, ticket_of
from uavlab.workers.spaces import Rows

HERE = "tests.support.strangers"
LEAVING = """
import time
from tests.unit.workers.test_pool import pool_of, start, step
pool = pool_of("Meadow,fault=hang,at=1", timeout_s=600)
tickets = start(pool, 1, 2)[0]
print(*[worker.process.pid for worker in pool.members], flush=True)
step(pool, tickets[:1])
"""


def pool_of(name: str = "Meadow", workers: int = 2, copies: int = 4, timeout_s: float = 30.0) -> Pool:
    origin = parse_external(f"{HERE}:{name}")
    return Pool(origin, describe(origin), workers, copies, timeout_s)


@pytest.fixture
def pool() -> Iterator[Pool]:
    one = pool_of()
    yield one
    one.close()


def start(pool: Pool, *seeds: int) -> tuple[list[int], Rows]:
    return pool.start(seeds, range(len(seeds)))


def step(pool: Pool, tickets: list[int], moves: Any = (1, 0, 1)) -> tuple[list[int], list[int], Any]:
    actions = np.broadcast_to(np.array(moves)[:, None], (len(tickets), 3, 1))
    return pool.step(tickets, actions, range(len(tickets)), [3] * len(tickets))


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def gone(processes: list[int]) -> bool:
    deadline = time.monotonic() + 30
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, processes))


def test_a_ticket_depends_on_seed_actions_and_their_order() -> None:
    first, other = ticket_of(0, b"a"), ticket_of(0, b"b")
    tickets = [first, other, ticket_of(first, b"x"), ticket_of(other, b"x"), ticket_of(ticket_of(first, b"x"), b"y")]
    tickets += [ticket_of(ticket_of(first, b"y"), b"x")]
    assert len(set(tickets)) == 6
    assert all(-(2**63) <= ticket < 2**63 for ticket in tickets)


def test_worlds_are_started_and_stepped_by_their_seeds(pool: Pool) -> None:
    tickets, rows = start(pool, 7, 7, 8)
    assert np.array_equal(rows.obs[0], rows.obs[1])  # one seed in two workers
    assert not np.array_equal(rows.obs[1], rows.obs[2])
    at, after, stepped = step(pool, [tickets[2], tickets[0]])
    assert at == [0, 1]
    assert after == [ticket_of(ticket, np.array([[1], [0], [1]]).tobytes()) for ticket in (tickets[2], tickets[0])]
    assert not np.array_equal(stepped.obs[1], rows.obs[0])
    assert np.array_equal(step(pool, tickets[:1])[2].obs[0], stepped.obs[1])  # the other copy of that state


def test_a_state_is_stepped_once(pool: Pool) -> None:
    tickets, _ = start(pool, 3, 4)
    assert step(pool, tickets)[0] == [0, 1]
    at, after, rows = step(pool, tickets)
    assert (at, after, rows) == ([], [], None)
    new, _ = start(pool, 5)
    assert step(pool, [tickets[0], new[0]])[0] == [1]


def test_worlds_that_wait_keep_their_copies_beside_another_batch(pool: Pool) -> None:
    waiting, _ = start(pool, *range(6))
    other, _ = start(pool, *range(10, 16))
    for _ in range(3):
        at, other, _ = step(pool, other)
        assert at == [*range(6)]
    assert step(pool, waiting)[0] == [*range(6)]


def test_rows_that_were_thrown_away_are_used_again(pool: Pool) -> None:
    waiting, _ = start(pool, 1, 2)
    waiting = step(pool, waiting)[1]
    start(pool, 3, 4)  # and nobody steps these
    waiting = step(pool, waiting)[1]
    new, _ = start(pool, 5, 6)
    assert len(pool.made) == pool.size == 4
    assert step(pool, waiting)[0] == step(pool, new)[0] == [0, 1]


def test_copies_of_worlds_that_ended_are_free(pool: Pool) -> None:
    tickets, _ = start(pool, 0, 1, 2, 3)
    pool.release([*tickets[:2], 12345])
    start(pool, 8, 9)
    assert len(pool.made) == 4
    assert step(pool, tickets)[0] == [2, 3]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("raise", r"step raised ValueError: the meadow is closed at strangers.py:\d+\. For its traceback: `uavlab"),
        ("die", r"the worker was lost, because it ended with exit code 3; expected an answer within timeout_s=30"),
        ("hang", r"the worker was lost, because it did not answer in time; expected an answer within timeout_s=0.5"),
        ("crash", rf"the worker was lost, because it ended with signal {signal.SIGSEGV:d}; expected"),
    ],
)
def test_what_goes_wrong_is_one_line_and_leaves_no_process(fault: str, text: str) -> None:
    pool = pool_of(f"Meadow,fault={fault},at=1", timeout_s=0.5 if fault == "hang" else 30.0)
    tickets, _ = start(pool, 1, 2, 3)
    processes = [worker.process.pid for worker in pool.members]
    with pytest.raises(ConfigError, match=f"^{HERE}:Meadow,fault={fault},at=1: world 0, step 3, worker 1: {text}"):
        step(pool, [tickets[1]])
    assert gone(processes)
    assert step(pool, tickets) == ([], [], None)
    assert len(start(pool, 1)[0]) == 1  # workers start again
    pool.close()


def test_notes_hold_what_an_environment_printed_and_command_no_terminal() -> None:
    pool = pool_of("Meadow,fault=shout,at=1", 1)
    tickets, _ = start(pool, 1)
    with pytest.raises(ConfigError, match=r"ValueError: closed\\x1b\]0;owned\\x07 at strangers.py:") as caught:
        step(pool, tickets)
    printed, trace = caught.value.__notes__
    assert printed == "The worker printed, at the end:\n" + r"before\x1b[2J \u202e"
    assert trace.startswith("In the worker:\nTraceback")
    assert trace.endswith(r"ValueError: closed\x1b]0;owned\x07")
    assert all(c.isprintable() or c == "\n" for c in printed + trace)


def test_an_interrupt_leaves_no_answer_behind(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    tickets, rows = start(pool, 3)
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            start(pool, 9)
    assert step(pool, tickets)[0] == []
    assert np.array_equal(start(pool, 3)[1].obs, rows.obs)


def test_making_copies_takes_longer_than_steps(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def receive(worker: Worker, deadline: float) -> dict:
        limits.append(deadline - time.monotonic())
        return {}

    tickets, _ = start(pool, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "receive", receive)
        step(pool, tickets)
        start(pool, 2)
    assert [round(limit / 10) for limit in limits] == [3, 15]


def test_an_environment_that_is_another_one_or_none_is_refused() -> None:
    pool = pool_of(workers=1)
    whole = pool.description
    pool.origin = parse_external(f"{HERE}:Meadow,moves=false")
    with pytest.raises(ConfigError, match="worker 0 made one with action=1 of agent grazer_0; expected 0, as"):
        start(pool, 1)
    pool.origin, pool.description = parse_external(f"{HERE}:Meadow"), replace(whole, agents=whole.agents[:1])
    with pytest.raises(ConfigError, match="worker 0 made one with 3 agents; expected 1, as"):
        start(pool, 1)
    with pytest.raises(ConfigError, match="no worker could make it, because it ended with exit code 5; expected"):
        describe(parse_external(f"{HERE}:leave"))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("always", r"reset\(seed=7\) gave other numbers on a used copy; draw all chance from self.np_random"),
        ("used", r"reset\(seed=7\) gave other numbers on a used copy;"),
        ("copies", r"reset\(seed=7\) gave other numbers in another copy;"),
        ("steps", r"a step after reset\(seed=7\) gave other numbers on a used copy;"),
    ],
)
def test_chance_that_does_not_follow_the_seed_is_noticed_before_the_first_step(kind: str, text: str) -> None:
    for workers in (1, 2):
        pool = pool_of(f"Chance,kind={kind}", workers)
        with pytest.warns(FallbackWarning, match=text) as caught:
            pool.check_chance()
        assert len(caught) == 1
        assert "gave other numbers" in pool.reason
        pool.close()


def test_comparing_copies_changes_no_world(pool: Pool) -> None:
    tickets, _ = start(pool, 1, 2)
    pool.check_chance()
    assert pool.reason == ""
    assert step(pool, tickets)[0] == [0, 1]


def test_environments_with_equal_settings_share_their_workers() -> None:
    close_all()  # the workers of other tests
    origin = parse_external(f"{HERE}:Meadow")
    first, second = (pool_for(origin, describe(origin), 1, 8, 30.0) for _ in range(2))
    assert first is second
    assert pool_for(origin, first.description, 2, 8, 30.0) is not first
    start(first, 0)
    (process,) = module.worker_ids()
    close_all()
    assert not alive(process)


def test_a_worker_imports_neither_torch_nor_what_needs_it() -> None:
    code = "import sys, uavlab.workers.worker, uavlab.workers.pool; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker notices within a second")
def test_workers_end_with_a_process_that_is_killed_also_in_the_middle_of_a_step() -> None:
    parent = subprocess.Popen([sys.executable, "-c", LEAVING], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    processes = [int(word) for word in parent.stdout.readline().split()]
    time.sleep(0.2)  # worker 0 is in its step, worker 1 waits
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(processes) == 2
    assert gone(processes)


@pytest.mark.parametrize("closing", ["", "raise", "hang", "forget"])
def test_closing_closes_each_copy_and_ends_what_it_started(
    closing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 1.0)

    def pids(word: str) -> list[int]:
        return [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith(word)]

    log = tmp_path / "log"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pool = pool_of(f"Simulator,log={log},closing={closing or 'kill'}")
        assert len(pids("started")) == len(pids("closed")) == 1
        start(pool, 1, 2, 3)
        assert len(pids("started")) == 4  # three copies in use, and none beside them
        pool.close()
    assert len(pids("closed")) == (3 if closing == "hang" else 4)  # the first of two in a worker hangs
    assert gone(pids("started"))
    texts = [str(each.message) for each in caught if each.category is FallbackWarning]
    expected = {"raise": "it raised ValueError: the simulator is gone", "hang": "it did not answer in time"}
    assert len(texts) == (2 if closing in expected else 0)
    assert all(expected[closing] in text for text in texts)


def test_what_a_killed_worker_started_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pool = pool_of(f"Simulator,log={log}", 1)
    tickets, _ = start(pool, 1)
    os.kill(pool.members[0].process.pid, signal.SIGKILL)
    with pytest.raises(ConfigError, match="the worker was lost, because it ended with signal 9"):
        pool.step(tickets, np.zeros((1, 1, 2), np.float32), [0], [0])
    assert gone([int(line.split()[1]) for line in log.read_text().splitlines()])
