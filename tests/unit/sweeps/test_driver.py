"""Every trial gets a row whatever becomes of its processes, and a folder has one driver."""

import json
import os
import signal
import threading
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.support.sweeps import result, scripted, small
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.experiment.run_dir import lock_run_dir
from uavlab.sweeps.driver import MOST_KILLS, run_sweep
from uavlab.sweeps.trials import RESULT

Request = dict[str, Any]


def rows(folder: Path, stop: Event | None = None, **keys: Any) -> list[dict[str, Any]]:
    return sorted(run_sweep(small(**keys), folder, stop or Event()), key=lambda row: row["number"])


def by_seed(folder: Path, request: Request) -> dict[str, Any]:
    return result(request["settings"]["seed"] / 10)


def test_each_trial_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = scripted(monkeypatch, by_seed)
    table = rows(tmp_path / "s", seeds=3, grid={"lr": [0.1, 0.2]})
    assert [(row["settings"]["lr"], row["seed"], row["score"]) for row in table] == [
        (lr, seed, seed / 10) for lr in (0.1, 0.2) for seed in range(3)
    ]
    assert {row["status"] for row in table} == {"complete"}
    assert sorted(log) == sorted(row["trial"] for row in table)
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["grid"] == {"lr": [0.1, 0.2]}
    assert rows(tmp_path / "s", seeds=3, grid={"lr": [0.1, 0.2]}) == table
    assert len(log) == 6  # nothing was trained again
    more = rows(tmp_path / "s", seeds=[5, 1], grid={"lr": [0.2]})
    assert [row["score"] for row in more] == [0.5, 0.1]
    assert len(log) == 7


def test_a_process_that_is_killed_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(folder: Path, request: Request) -> dict[str, Any] | None:
        folder.mkdir(parents=True, exist_ok=True)
        status = folder / "run.json"
        update = json.loads(status.read_text())["update"] + 1 if status.exists() else 1
        status.write_text(json.dumps({"update": update}))
        return None if update < 3 * MOST_KILLS else result(1.0)

    log = scripted(monkeypatch, work)
    (row,) = rows(tmp_path / "s", seeds=1)
    assert (row["status"], len(log)) == ("complete", 3 * MOST_KILLS)  # it went on each time


def test_one_that_never_gets_further_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(folder: Path, request: Request) -> dict[str, Any] | None:
        folder.with_name(f"{folder.name}.log").write_text("first\nSegmentation \x1bfault\n\n")
        return by_seed(folder, request) if request["settings"]["seed"] else None

    folder = tmp_path / "s" / "trials"
    folder.mkdir(parents=True)
    (tmp_path / "s" / "sweep.json").write_text("{}")
    log = scripted(monkeypatch, work)
    lost, fine = rows(tmp_path / "s", seeds=2)
    assert (lost["status"], fine["status"]) == ("killed", "complete")
    assert lost["reason"].endswith(".log: Segmentation \\x1bfault")
    assert len(log) == MOST_KILLS + 1
    assert [row["status"] for row in rows(tmp_path / "s", seeds=2)] == ["killed", "complete"]
    assert len(log) == 2 * MOST_KILLS + 1  # the next call tries again


@pytest.mark.parametrize(("status", "again"), [("diverged", 0), ("failed", 1), ("refused", 1)])
def test_a_failure_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, again: int) -> None:
    def work(folder: Path, request: Request) -> dict[str, Any]:
        bad = request["settings"]["seed"] == 0
        return result(None, status, reason="why") if bad else by_seed(folder, request)

    log = scripted(monkeypatch, work)
    bad, good = rows(tmp_path / "s", seeds=2)
    assert (bad["status"], bad["reason"], good["status"]) == (status, "why", "complete")
    assert rows(tmp_path / "s", seeds=2) == [bad, good]
    assert len(log) == 2 + again


def test_a_process_that_cannot_be_started_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(folder: Path, request: Request) -> None:
        raise ResourceError("no memory.")

    scripted(monkeypatch, work)
    (row,) = rows(tmp_path / "s", seeds=1)
    assert (row["status"], row["reason"]) == ("failed", "no memory.")


def test_a_stop_leaves_the_rest_for_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Event()

    def work(folder: Path, request: Request) -> dict[str, Any] | None:
        if request["settings"]["seed"] == 1:
            stop.set()
        return None if stop.is_set() else by_seed(folder, request)

    log = scripted(monkeypatch, work, workers=1)
    table = rows(tmp_path / "s", stop, seeds=4)
    assert [row["status"] for row in table] == ["complete", "interrupted", "interrupted", "interrupted"]
    assert len(log) == 2
    scripted(monkeypatch, by_seed)
    assert [row["status"] for row in rows(tmp_path / "s", seeds=4)] == ["complete"] * 4


def test_an_interrupt_stops_trials_before_it_ends_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, begun = Event(), threading.Barrier(2)

    def work(folder: Path, request: Request) -> None:
        if threading.active_count() and not stop.is_set():
            begun.wait(30)
            os.kill(os.getpid(), signal.SIGINT)
            stop.wait(30)

    log = scripted(monkeypatch, work)
    with pytest.raises(KeyboardInterrupt):
        rows(tmp_path / "s", stop, seeds=9)
    assert stop.is_set()
    assert len(log) == 2  # those that ran; the others did not begin
    with lock_run_dir(tmp_path / "s"):
        pass


def test_a_second_driver_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = scripted(monkeypatch, by_seed)
    rows(tmp_path / "s", seeds=1)
    with lock_run_dir(tmp_path / "s"), pytest.raises(ConfigError, match=f"s: in use by process {os.getpid()} on"):
        rows(tmp_path / "s", seeds=2)
    assert len(log) == 1


def test_a_folder_of_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = scripted(monkeypatch, by_seed)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.txt").write_text("")
    with pytest.raises(ConfigError, match="not empty"):
        rows(tmp_path / "s")
    assert (log, os.listdir(tmp_path / "s")) == ([], ["thesis.txt"])


def test_a_damaged_result_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = scripted(monkeypatch, by_seed)
    (row,) = rows(tmp_path / "s", seeds=1)
    (tmp_path / "s" / "trials" / row["trial"] / RESULT).write_text('{"status": ')
    assert rows(tmp_path / "s", seeds=1) == [row]
    assert len(log) == 2
