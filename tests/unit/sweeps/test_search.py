"""A search waits for no trial while others can run, goes on with its proposals, and ends those that fall behind."""

import json
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.support.sweeps import result, rows, scripted, small
from uavlab.core import extras
from uavlab.core.errors import ConfigError, MissingPackageError
from uavlab.storage.metrics_log import Recorder
from uavlab.sweeps import driver
from uavlab.sweeps.driver import PRUNED
from uavlab.sweeps.spec import Sweep

SPEC: dict[str, Any] = {
    "ranges": {
        "lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "hidden": {"low": 8, "high": 64, "step": 8},
        "gamma": {"low": 0.5, "high": 1},
        "precision": {"values": ["fp32", "bf16"]},
    },
    "trials": 14,  # the first ten proposals are random
}


def search(**changes: Any) -> Sweep:
    keys = {"settings": {}, "seeds": 2, **{key: changes.pop(key) for key in ("seeds", "presets") if key in changes}}
    return small(search={**SPEC, **changes}, **keys)


def score(settings: dict[str, Any]) -> float:
    return -abs(settings["gamma"] - 0.8) - (settings["precision"] == "bf16")


def work(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    return result(score(request["settings"]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of a search that nobody disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        scripted(patch, work, workers=1)
        return rows(tmp_path_factory.mktemp("whole") / "s", search())


def test_values_are_of_their_ranges_and_kinds_and_get_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, work, workers=1)
    table = rows(tmp_path / "s", search(trials=30))
    assert [row["seed"] for row in table] == [0, 1] * 30
    seen = [row["settings"] for row in table]
    assert seen[::2] == seen[1::2]
    assert all(1e-4 <= each["lr"] <= 1e-1 for each in seen)
    assert sum(each["lr"] < 1e-2 for each in seen) > 30  # two thirds of the factors
    assert all(each["hidden"] % 8 == 0 and type(each["hidden"]) is int for each in seen)
    assert {each["precision"] for each in seen} == {"fp32", "bf16"}
    assert all(type(each["gamma"]) is float and 0.5 <= each["gamma"] <= 1 for each in seen)
    assert all(len(f"{each['lr']:.10g}".replace("0", "").replace(".", "")) <= 4 for each in seen)  # digits
    assert sum(row["score"] for row in table[-20:]) > sum(row["score"] for row in table[:20])


@pytest.mark.parametrize("last", [1, 13, 24])
def test_it_goes_on_where_it_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[dict[str, Any]], last: int
) -> None:
    """One trial at a time, so that its proposals follow from the seed alone."""
    stop, done = Event(), []

    def interrupted(folder: Path, request: dict[str, Any]) -> dict[str, Any] | None:
        done.append(folder.name)
        if len(done) == last:
            stop.set()
        return None if stop.is_set() else work(folder, request)

    scripted(monkeypatch, interrupted, workers=1)
    before = rows(tmp_path / "s", search(), stop)
    assert sum(row["status"] == "complete" for row in before) == last - 1
    log = scripted(monkeypatch, work, workers=1)
    assert rows(tmp_path / "s", search()) == whole
    assert len(log) == 28 - last + 1
    assert rows(tmp_path / "s", search(trials=3)) == whole[:6]
    more = rows(tmp_path / "s", search(trials=15))  # nothing was forgotten
    assert (more[:28], len(more)) == (whole, 30)


def test_the_slowest_trial_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others, ended, waiting = Event(), list[str](), list[str]()

    def slow(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
        if not waiting:
            waiting.append(folder.name)
            assert others.wait(60)
        ended.append(folder.name)
        if len(ended) == 10:
            others.set()
        return work(folder, request)

    scripted(monkeypatch, slow, workers=2)
    table = rows(tmp_path / "s", search(trials=6))
    assert ({row["status"] for row in table}, len(table)) == ({"complete"}, 12)
    assert waiting[0] not in ended[:10]


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
        return rows(tmp_path / failed["status"], search(trials=16))

    fails, scores = outcomes(result(None, "diverged")), outcomes(result(0.0))
    assert {row["status"] for row in fails} == {"complete", "diverged"}
    assert [row["settings"] for row in fails] != [row["settings"] for row in scores]


def test_a_folder_has_one_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = scripted(monkeypatch, work)
    rows(tmp_path / "s", search(trials=2))
    before = (tmp_path / "s" / "sweep.json").read_text()
    with pytest.raises(ConfigError, match=r"of a search over other ranges.*choose another folder, or delete the file"):
        rows(tmp_path / "s", search(ranges={"lr": {"values": [0.1]}}))
    assert (tmp_path / "s" / "sweep.json").read_text() == before
    assert len(log) == 4


def test_a_grid_needs_no_optuna_and_a_search_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda folder, request: result(1.0))
    monkeypatch.setitem(sys.modules, "optuna", None)
    find = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "optuna" else find(name))
    table = rows(tmp_path / "s", grid={"lr": [0.1, 0.2]}, settings={}, seeds=1)
    assert [row["score"] for row in table] == [1, 1]
    with pytest.raises(MissingPackageError, match=r"search: needs optuna, not installed; .*uavlab\[sweep\]"):
        search()


LOGGED = ("eval/completion", "eval/formation_strict", "eval/flight_time")


def training(curves: dict[tuple[int, int], list[float]], patience: float) -> Any:
    """Return the work of trials that log such figures by number of the proposal and seed, and may then be pruned."""
    numbers: dict[str, int] = {}

    def of(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
        number = numbers.setdefault(json.dumps(request["settings"]), len(numbers))
        curve = curves.get((number, request["seed"]), [0.1, 0.5, 0.9])
        if slow := number >= 5:  # until all before have been told
            time.sleep(0.3)
        folder.mkdir(parents=True)
        for at, value in enumerate(curve, 1):
            Recorder(folder).append(10 * at, 0.0, dict.fromkeys(LOGGED, 0.0) | {LOGGED[0]: value})
        until = time.monotonic() + patience
        while slow and not (folder / PRUNED).exists() and time.monotonic() < until:
            time.sleep(0.01)
        return result(curve[-1], PRUNED if (folder / PRUNED).exists() else "complete")

    return of


@pytest.mark.parametrize(
    ("seeds", "curves"),
    [
        (1, {(5, 0): [0.2, 0.3], (6, 0): [0.2, 0.6, 0.9]}),
        (2, {(5, 0): [0.9, 0.4], (5, 1): [0.0, 0.4], (6, 0): [0.0, 0.0, 0.9], (6, 1): [0.2, 1.0, 0.9]}),
    ],
)
def test_what_falls_behind_the_median_is_pruned_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int, curves: dict[tuple[int, int], list[float]]
) -> None:
    """The median of five proposals before is 0.1, 0.5, 0.9; the mean over seeds of the sixth is below it at last."""
    monkeypatch.setattr(driver, "WAKE_S", 0.05)
    log, few = scripted(monkeypatch, training(curves, 2), workers=seeds), search(trials=7, prune=True, seeds=seeds)
    table = rows(tmp_path / "s", few)
    assert [row["status"] for row in table] == ["complete"] * 5 * seeds + ["pruned"] * seeds + ["complete"] * seeds
    assert (table[5 * seeds]["score"], len(log)) == (curves[5, 0][-1], 7 * seeds)
    assert rows(tmp_path / "s", few) == rows(tmp_path / "s", search(trials=7, seeds=seeds)) == table
    assert len(log) == 7 * seeds
    assert {path.parent.name for path in tmp_path.rglob(PRUNED)} == {
        row["trial"] for row in table if row["status"] == "pruned"
    }
