"""A search waits for no trial while others can run, and goes on with its proposals where it was ended."""

import json
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.support.sweeps import flip_bits, result, scripted, small
from uavlab.core import extras
from uavlab.core.errors import ConfigError, FileError, MissingPackageError
from uavlab.storage.files import json_digest
from uavlab.sweeps.driver import SEARCH, run_sweep
from uavlab.sweeps.spec import Sweep

SPEC: dict[str, Any] = {
    "ranges": {
        "lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "hidden": {"low": 8, "high": 64, "step": 8},
        "gamma": {"low": 0.5, "high": 1},
        "precision": {"values": ["fp32", "bf16"]},
    },
    "trials": 30,
}


def search(**changes: Any) -> Sweep:
    keys = {"settings": {}, "seeds": 2, **{key: changes.pop(key) for key in ("seeds", "workers") if key in changes}}
    return small(search={**SPEC, **changes}, **keys)


def score(settings: dict[str, Any]) -> float:
    return -abs(settings["gamma"] - 0.8) - (settings["precision"] == "bf16")


def work(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    return result(score(request["settings"]))


def rows(sweep: Sweep, folder: Path, stop: Event | None = None) -> list[dict[str, Any]]:
    return sorted(run_sweep(sweep, folder, stop or Event()), key=lambda row: row["number"])


def proposals(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row["settings"] for row in table if row["seed"] == 0]


@pytest.fixture
def scripted_alone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trials run one after the other."""
    return scripted(monkeypatch, work, workers=1)


def test_values_are_of_their_ranges_and_kinds(tmp_path: Path, scripted_alone: list[str]) -> None:
    table = rows(search(), tmp_path / "s")
    assert [row["seed"] for row in table] == [0, 1] * 30
    seen = [row["settings"] for row in table]
    assert seen[::2] == seen[1::2]
    assert all(1e-4 <= each["lr"] <= 1e-1 for each in seen)
    assert sum(each["lr"] < 1e-2 for each in seen) > 30  # two thirds of the factors
    assert all(each["hidden"] % 8 == 0 and type(each["hidden"]) is int for each in seen)
    assert {each["precision"] for each in seen} == {"fp32", "bf16"}
    assert all(type(each["gamma"]) is float and 0.5 <= each["gamma"] <= 1 for each in seen)
    assert all(len(f"{each['lr']:.10g}".replace("0", "").replace(".", "")) <= 4 for each in seen)  # digits


def test_later_proposals_are_better(tmp_path: Path, scripted_alone: list[str]) -> None:
    table = rows(search(), tmp_path / "s")
    assert sum(row["score"] for row in table[-20:]) > sum(row["score"] for row in table[:20])
    assert sum(row["settings"]["precision"] == "fp32" for row in table[-20:]) > 14


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of a search that nobody disturbed, beyond its first ten proposals, which are random."""
    with pytest.MonkeyPatch.context() as patch:
        scripted(patch, work, workers=1)
        return rows(search(trials=14), tmp_path_factory.mktemp("whole") / "s")


def test_a_seed_makes_a_search_whose_trials_run_one_by_one(
    tmp_path: Path, scripted_alone: list[str], whole: list[dict[str, Any]]
) -> None:
    assert rows(search(trials=14), tmp_path / "a") == whole
    assert proposals(rows(search(trials=14, seed=1), tmp_path / "b")) != proposals(whole)


@pytest.mark.parametrize("last", [1, 13, 24])
def test_it_goes_on_where_it_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[dict[str, Any]], last: int
) -> None:
    stop, done = Event(), []

    def interrupted(folder: Path, request: dict[str, Any]) -> dict[str, Any] | None:
        done.append(folder.name)
        if len(done) == last:
            stop.set()
        return None if stop.is_set() else work(folder, request)

    scripted(monkeypatch, interrupted, workers=1)
    before = rows(search(trials=14), tmp_path / "s", stop)
    assert sum(row["status"] == "complete" for row in before) == last - 1
    log = scripted(monkeypatch, work, workers=1)
    assert rows(search(trials=14), tmp_path / "s") == whole
    assert len(log) == 28 - last + 1


def test_more_proposals_may_be_asked_for(tmp_path: Path, scripted_alone: list[str]) -> None:
    table = rows(search(trials=4), tmp_path / "s")
    more = rows(search(trials=6), tmp_path / "s")
    assert (more[:8], len(more)) == (table, 12)
    assert rows(search(trials=3), tmp_path / "s") == table[:6]
    assert rows(search(trials=6), tmp_path / "s") == more  # nothing was forgotten
    assert len(scripted_alone) == 12


def test_the_slowest_trial_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others, ended = Event(), []

    def slow(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
        if not ended and request["seed"] == 0 and not others.is_set() and not waiting:
            waiting.append(folder.name)
            assert others.wait(60)
        ended.append(folder.name)
        if len(ended) == 10:
            others.set()
        return work(folder, request)

    waiting: list[str] = []
    scripted(monkeypatch, slow, workers=2)
    table = rows(search(trials=12, seeds=1), tmp_path / "s")
    assert {row["status"] for row in table} == {"complete"}
    assert waiting[0] not in ended[:10]


def test_several_at_once_go_on_with_the_same_proposals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, done = Event(), []

    def interrupted(folder: Path, request: dict[str, Any]) -> dict[str, Any] | None:
        done.append(folder.name)
        if len(done) > 20:
            stop.set()
        return None if stop.is_set() else work(folder, request)

    scripted(monkeypatch, interrupted, workers=3)
    before = rows(search(), tmp_path / "s", stop)
    scripted(monkeypatch, work, workers=3)
    table = rows(search(), tmp_path / "s")
    assert [row["trial"] for row in table][: len(before)] == [row["trial"] for row in before]
    assert (len(table), {row["status"] for row in table}) == (60, {"complete"})


@pytest.mark.parametrize("seed", [None, 1])
def test_a_proposal_that_fails_does_not_count_as_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    """As a score of 0 it would be the best one, and later proposals would follow it."""

    def outcomes(failed: dict[str, Any]) -> list[dict[str, Any]]:
        def of(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
            fails = request["settings"]["gamma"] > 0.75 and request["seed"] in (seed, request["seed"] * (seed is None))
            return failed if fails else result(score(request["settings"]) - 2)

        scripted(monkeypatch, of, workers=1)
        name = failed["status"]
        return rows(search(trials=16), tmp_path / name)

    fails, scores = outcomes(result(None, "diverged")), outcomes(result(0.0))
    assert {row["status"] for row in fails} == {"complete", "diverged"}
    assert proposals(fails) != proposals(scores)
    assert rows(search(trials=16), tmp_path / "diverged") == fails


def test_no_flipped_bit_of_its_file_is_another_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = scripted(monkeypatch, work, workers=1)
    few = search(trials=3, seeds=1)
    rows(few, tmp_path / "s")
    assert flip_bits(tmp_path / "s" / SEARCH, 200, lambda: rows(few, tmp_path / "s")) > 140  # the rest is white space
    assert len(log) == 3  # nothing else was trained
    path = tmp_path / "s" / SEARCH
    for stored in ({"ranges": {}}, {"ranges": few.search, "proposals": ["x"]}, []):
        path.write_text(json.dumps(stored if isinstance(stored, list) else {**stored, "sha256": json_digest(stored)}))
        with pytest.raises(FileError, match=rf"{SEARCH}.*delete .*, and the next call begins the search anew"):
            rows(few, tmp_path / "s")
    path.unlink()
    rows(few, tmp_path / "s")
    assert len(log) == 3  # the same proposals, which are trained


def test_a_folder_has_one_search(tmp_path: Path, scripted_alone: list[str]) -> None:
    rows(search(trials=2), tmp_path / "s")
    before = (tmp_path / "s" / "sweep.json").read_text()
    with pytest.raises(ConfigError, match=r"of a search over other ranges.*choose another folder, or delete the file"):
        rows(search(ranges={"lr": {"values": [0.1]}}), tmp_path / "s")
    assert (tmp_path / "s" / "sweep.json").read_text() == before
    assert len(scripted_alone) == 4


def test_a_grid_needs_no_optuna_and_a_search_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda folder, request: result(1.0))
    monkeypatch.setitem(sys.modules, "optuna", None)
    find = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "optuna" else find(name))
    assert [row["score"] for row in rows(small(grid={"lr": [0.1, 0.2]}, settings={}, seeds=1), tmp_path / "s")] == [
        1,
        1,
    ]
    with pytest.raises(MissingPackageError, match=r"search: needs optuna, not installed; .*uavlab\[sweep\]"):
        search()
