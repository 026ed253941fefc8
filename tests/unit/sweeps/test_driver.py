"""Every trial gets a row whatever becomes of its processes, and a folder has one driver."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.support.sweeps import result, scripted, small
from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.experiment.names import own_digest
from uavlab.experiment.run_dir import lock_run_dir
from uavlab.sweeps.driver import MOST_KILLS, RESULT, run_sweep

Request = dict[str, Any]


def rows(folder: Path, stop: Event | None = None, **keys: Any) -> list[dict[str, Any]]:
    return sorted(run_sweep(small(**keys), folder, stop or Event()), key=lambda row: row["number"])


def by_seed(folder: Path, request: Request) -> dict[str, Any]:
    return result(request["seed"] / 10)


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
        return by_seed(folder, request) if request["seed"] else None

    folder = tmp_path / "s" / "trials"
    folder.mkdir(parents=True)
    (tmp_path / "s" / "sweep.json").write_text("{}")
    log = scripted(monkeypatch, work)
    lost, fine = rows(tmp_path / "s", seeds=2)
    assert (lost["status"], fine["status"]) == ("killed", "complete")
    assert lost["reason"].endswith(f"{lost['trial']}.log has what it printed")
    assert len(log) == MOST_KILLS + 1
    assert [row["status"] for row in rows(tmp_path / "s", seeds=2)] == ["killed", "complete"]
    assert len(log) == 2 * MOST_KILLS + 1  # the next call tries again


@pytest.mark.parametrize(("status", "again"), [("diverged", 0), ("failed", 1), ("refused", 1)])
def test_a_failure_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, again: int) -> None:
    def work(folder: Path, request: Request) -> dict[str, Any]:
        bad = request["seed"] == 0
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
        if request["seed"] == 1:
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


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "score": lambda stored: {**stored, "score": 0.99},
    "text": lambda stored: {**stored, "score": "high"},
    "no score": lambda stored: {name: value for name, value in stored.items() if name != "score"},
    "nan": lambda stored: {**stored, "score": float("nan")},
    "list": lambda stored: {**stored, "figures": [1]},
    "digest": lambda stored: {**stored, "digest": "0" * 64},
    "another trial": lambda stored: {**stored, "trial": "../../x", "number": 7},
    "episodes": lambda stored: {**stored, "episodes": 4},
    "status": lambda stored: {**stored, "status": ["complete"]},
    "no object": lambda stored: [stored],
}


@pytest.mark.parametrize("signed", [False, True], ids=["edited", "forged"])
@pytest.mark.parametrize("edit", EDITS)
def test_a_damaged_result_is_refused_until_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str, signed: bool
) -> None:
    """Where its digest was made to match, too, only other scores and episodes of the right type are believed."""
    log = scripted(monkeypatch, by_seed)
    (row,) = rows(tmp_path / "s", seeds=1)
    path = tmp_path / "s" / "trials" / row["trial"] / RESULT
    changed = EDITS[edit](json.loads(path.read_text()))
    if signed and isinstance(changed, dict):
        changed["sha256"] = own_digest(changed)
    path.write_text(json.dumps(changed))
    if signed and edit in ("score", "episodes"):
        return
    with pytest.raises(FileError, match=rf"{RESULT}") as refusal:
        rows(tmp_path / "s", seeds=1)
    assert len(log) == 1
    path.unlink()
    if "delete the folder" in str(refusal.value):
        shutil.rmtree(path.parent)
    assert rows(tmp_path / "s", seeds=1) == [row]
    assert len(log) == 2


@pytest.mark.parametrize("lost", ["run.json", "checkpoints"])
def test_a_result_without_its_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    log = scripted(monkeypatch, by_seed)
    (row,) = rows(tmp_path / "s", seeds=1)
    place = tmp_path / "s" / "trials" / row["trial"]
    (place / lost).rename(tmp_path / lost)
    with pytest.raises(FileError, match="delete the folder, and the next call trains it again"):
        rows(tmp_path / "s", seeds=1)
    shutil.rmtree(place)
    assert rows(tmp_path / "s", seeds=1) == [row]
    assert len(log) == 2
