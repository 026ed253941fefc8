"""Every trial gets a row whatever becomes of its processes; damage is refused; a folder has one driver."""

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

from tests.support.sweeps import flip_bits, result, rows, scripted
from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.experiment.names import DIGEST
from uavlab.experiment.run_dir import lock_run_dir
from uavlab.sweeps.driver import MOST_KILLS, RESULT, SEARCH, write_signed

Request = dict[str, Any]


def by_seed(folder: Path, request: Request) -> dict[str, Any]:
    return result(request["seed"] / 10)


def test_each_combination_has_a_row_and_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = scripted(monkeypatch, by_seed)
    two: dict[str, Any] = {"presets": ["leader_follower", "pursuit"], "settings": {}, "seeds": 3}
    table = rows(tmp_path / "s", **two, grid={"lr": [0.1, 0.2]})
    assert [(row["preset"], row["settings"], row["seed"], row["score"], row["status"]) for row in table] == [
        (preset, {"lr": lr}, seed, seed / 10, "complete")
        for preset in two["presets"]
        for lr in (0.1, 0.2)
        for seed in range(3)
    ]
    assert sorted(log) == sorted(row["trial"] for row in table)
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["grid"] == {"lr": [0.1, 0.2]}
    assert rows(tmp_path / "s", **two, grid={"lr": [0.1, 0.2]}) == table
    assert len(log) == 12  # nothing was trained again
    more = rows(tmp_path / "s", **{**two, "presets": ["pursuit"], "seeds": [5, 1]}, grid={"lr": [0.2]})
    assert ([row["score"] for row in more], len(log)) == ([0.5, 0.1], 13)


def test_a_process_that_is_killed_is_started_again_while_it_gets_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(folder: Path, request: Request) -> dict[str, Any] | None:
        if request["seed"]:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        status = folder / "run.json"
        update = json.loads(status.read_text())["update"] + 1 if status.exists() else 1
        status.write_text(json.dumps({"update": update}))
        return None if update < 3 * MOST_KILLS else result(1.0)

    log = scripted(monkeypatch, work)
    went_on, lost = rows(tmp_path / "s", seeds=2)
    assert (went_on["status"], lost["status"], len(log)) == ("complete", "killed", 4 * MOST_KILLS)
    assert lost["reason"].endswith(f"{lost['trial']}.log has what it printed")
    rows(tmp_path / "s", seeds=2)
    assert len(log) == 5 * MOST_KILLS  # the next call tries again


@pytest.mark.parametrize(("status", "again"), [("diverged", 0), ("failed", 1), ("refused", 1), ("raised", 1)])
def test_a_failure_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, again: int) -> None:
    def work(folder: Path, request: Request) -> dict[str, Any]:
        if request["seed"] == 0 and status == "raised":
            raise ResourceError("why")
        return by_seed(folder, request) if request["seed"] else result(None, status, reason="why")

    log = scripted(monkeypatch, work)
    bad, good = rows(tmp_path / "s", seeds=2)
    shown = "failed" if status == "raised" else status
    assert (bad["status"], bad["reason"], good["status"]) == (shown, "why", "complete")
    assert rows(tmp_path / "s", seeds=2) == [bad, good]
    assert len(log) == 2 + again


def test_a_stop_leaves_the_rest_for_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Event()

    def work(folder: Path, request: Request) -> dict[str, Any] | None:
        if request["seed"] == 1:
            stop.set()
        return None if stop.is_set() else by_seed(folder, request)

    log = scripted(monkeypatch, work, workers=1)
    table = rows(tmp_path / "s", stop=stop, seeds=4)
    assert [row["status"] for row in table] == ["complete", "interrupted", "interrupted", "interrupted"]
    assert len(log) == 2
    scripted(monkeypatch, by_seed)
    assert [row["status"] for row in rows(tmp_path / "s", seeds=4)] == ["complete"] * 4


def test_an_interrupt_stops_trials_before_it_ends_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, begun = Event(), threading.Barrier(2)

    def work(folder: Path, request: Request) -> None:
        if not stop.is_set():
            begun.wait(30)
            os.kill(os.getpid(), signal.SIGINT)
            stop.wait(30)

    log = scripted(monkeypatch, work)
    with pytest.raises(KeyboardInterrupt):
        rows(tmp_path / "s", stop=stop, seeds=9)
    assert stop.is_set()
    assert len(log) == 2  # those that ran; the others did not begin
    with lock_run_dir(tmp_path / "s"):
        pass


def test_a_folder_of_something_else_or_of_another_driver_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = scripted(monkeypatch, by_seed)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "thesis.txt").write_text("")
    with pytest.raises(ConfigError, match="not empty"):
        rows(tmp_path / "t")
    assert (log, os.listdir(tmp_path / "t")) == ([], ["thesis.txt"])
    rows(tmp_path / "s", seeds=1)
    with lock_run_dir(tmp_path / "s"), pytest.raises(ConfigError, match=f"s: in use by process {os.getpid()} on"):
        rows(tmp_path / "s", seeds=2)
    assert len(log) == 1


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(change(json.loads(path.read_text()))))


def signed_again(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], object]:
    return lambda path: write_signed(path, change(without(json.loads(path.read_text()), DIGEST)))


def without(stored: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in stored.items() if name != key}


def replaced(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "score": (RESULT, edited(lambda stored: {**stored, "score": 0.99})),
    "status": (RESULT, edited(lambda stored: {**stored, "status": ["complete"]})),
    "no score": (RESULT, edited(lambda stored: without(stored, "score"))),
    "no object": (RESULT, edited(lambda stored: [stored])),
    "cut": (RESULT, lambda path: path.write_text(path.read_text()[:40])),
    "binary": (RESULT, lambda path: path.write_bytes(b"\xff" * 9)),
    "folder": (RESULT, replaced),
    "another run": ("run.json", edited(lambda stored: {**stored, "digest": "0"})),
    "no run": ("run.json", Path.unlink),
    "no checkpoints": ("checkpoints", shutil.rmtree),
    "proposals": (SEARCH, edited(lambda stored: {**stored, "proposals": []})),
    "signed again, another type": (RESULT, signed_again(lambda stored: {**stored, "score": "high"})),
    "signed again, no status": (RESULT, signed_again(lambda stored: without(stored, "status"))),
    "signed again, no proposals": (SEARCH, signed_again(lambda stored: without(stored, "proposals"))),
    "no proposals": (SEARCH, lambda path: path.write_text("")),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file, damage = DAMAGE[name]
    one: dict[str, Any] = {"search": {"ranges": {"lr": {"values": [0.1]}}, "trials": 1}, "settings": {}}
    search = one if file == SEARCH else {}
    log = scripted(monkeypatch, by_seed)
    (row,) = rows(tmp_path / "s", seeds=1, **search)
    place = tmp_path / "s" if search else tmp_path / "s" / "trials" / row["trial"]
    damage(place / file)
    advice = "begins the search anew" if search else "scores the run again" if file == RESULT else "trains it again"
    with pytest.raises(FileError, match=rf"^[^\n]*delete [^\n]*, and the next call {advice}\.$"):
        rows(tmp_path / "s", seeds=1, **search)
    assert len(log) == 1
    bad = place / file if file in (RESULT, SEARCH) else place
    shutil.rmtree(bad) if bad.is_dir() else bad.unlink()
    assert rows(tmp_path / "s", seeds=1, **search) == [row]
    assert len(log) == (1 if search else 2)


def test_no_flipped_bit_of_what_a_search_proposed_is_another_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = scripted(monkeypatch, lambda folder, request: result(request["settings"]["lr"]), workers=1)
    keys: dict[str, Any] = {
        "search": {"ranges": {"lr": {"low": 0.1, "high": 0.9}}, "trials": 3},
        "settings": {},
        "seeds": 1,
    }
    rows(tmp_path / "s", **keys)
    assert flip_bits(tmp_path / "s" / SEARCH, 100, lambda: rows(tmp_path / "s", **keys)) > 60  # others are white space
    assert len(log) == 3  # nothing else was trained
