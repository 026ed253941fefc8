"""A search is the same under its seed, whatever runs at once, and goes on where it was ended."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.support.sweeps import result, scripted, small
from uavlab.sweeps.driver import run_sweep
from uavlab.sweeps.spec import Sweep
from uavlab.sweeps.trials import Trial, search_trials

SEARCH: dict[str, Any] = {
    "ranges": {
        "lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "hidden": {"low": 8, "high": 64, "step": 8},
        "gamma": {"low": 0.5, "high": 1},
        "precision": {"values": ["fp32", "bf16"]},
    },
    "trials": 30,
    "batch": 5,
}


Outcome = Callable[[Trial], float | None]


def search(**changes: Any) -> Sweep:
    return small(search={**SEARCH, **changes}, settings={}, seeds=2)


def score(settings: dict[str, Any]) -> float:
    return -abs(settings["gamma"] - 0.8) - (settings["precision"] == "bf16")


def work(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    return result(score(request["settings"]))


def values(sweep: Sweep, outcome: Outcome = lambda trial: score(trial.settings)) -> list[dict[str, Any]]:
    """Return the settings of each trial of a search without a driver; one whose ``outcome`` is None fails."""
    plan, seen = search_trials(sweep), []
    batch = next(plan)
    while batch:
        seen += [dict(trial.varied) for trial in batch]
        try:
            scores = map(outcome, batch)
            batch = plan.send([result(s, "complete" if s is not None else "diverged") for s in scores])
        except StopIteration:
            batch = []
    return seen


def test_values_are_of_their_ranges_and_kinds() -> None:
    seen = values(search())
    assert len(seen) == 60
    assert seen[::2] == seen[1::2]  # two seeds
    assert all(1e-4 <= each["lr"] <= 1e-1 for each in seen)
    assert sum(each["lr"] < 1e-2 for each in seen) > 30  # two thirds of the factors
    assert all(each["hidden"] % 8 == 0 and type(each["hidden"]) is int for each in seen)
    assert {each["precision"] for each in seen} == {"fp32", "bf16"}
    assert all(type(each["gamma"]) is float and 0.5 <= each["gamma"] <= 1 for each in seen)
    assert all(len(f"{each['lr']:.10g}".replace("0", "").replace(".", "")) <= 4 for each in seen)  # digits


def test_later_proposals_are_better() -> None:
    scores = [score(each) for each in values(search())]
    assert sum(scores[-20:]) > sum(scores[:20])
    assert sum(each["precision"] == "fp32" for each in values(search())[-20:]) > 14


def test_a_seed_makes_the_search() -> None:
    assert values(search()) == values(search())
    assert values(search()) != values(search(seed=1))
    first = [values(search(batch=batch)) for batch in (5, 6)]
    assert first[0] != first[1]


@pytest.mark.parametrize("workers", [1, 7])
def test_it_is_the_same_whatever_runs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    log = scripted(monkeypatch, work, workers)
    rows = sorted(run_sweep(search(trials=12), tmp_path / "s", Event()), key=lambda row: row["number"])
    assert [row["settings"] for row in rows] == values(search(trials=12))
    assert len(log) == 24


def test_it_goes_on_where_it_was_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, done = Event(), []

    def interrupted(folder: Path, request: dict[str, Any]) -> dict[str, Any] | None:
        done.append(folder.name)
        if len(done) == 13:
            stop.set()
        return None if stop.is_set() else work(folder, request)

    scripted(monkeypatch, interrupted, workers=1)
    before = list(run_sweep(search(trials=12), tmp_path / "s", stop))
    assert sum(row["status"] == "complete" for row in before) == 12
    log = scripted(monkeypatch, work)
    rows = sorted(run_sweep(search(trials=12), tmp_path / "s", Event()), key=lambda row: row["number"])
    assert [row["settings"] for row in rows] == values(search(trials=12))
    assert len(log) == 12


def test_a_proposal_that_fails_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
        return result(None, "diverged") if request["settings"]["hidden"] > 32 else work(folder, request)

    scripted(monkeypatch, fails)
    rows = list(run_sweep(search(), tmp_path / "s", Event()))
    assert len(rows) == 60
    assert {row["status"] for row in rows} == {"complete", "diverged"}


def outcome(failed: float | None, seed: int | None = None) -> Outcome:
    """Return outcomes around -2; half of all proposals, with one seed or with both, have ``failed`` in their place."""

    def of(trial: Trial) -> float | None:
        fails = trial.settings["gamma"] > 0.75 and trial.seed in (seed, trial.seed if seed is None else seed)
        return failed if fails else score(trial.settings) - 2

    return of


@pytest.mark.parametrize("seed", [None, 1])
def test_a_proposal_that_fails_does_not_count_as_a_score(seed: int | None) -> None:
    """As a score of 0 it would be the best one, and later proposals would follow it."""
    assert values(search(), outcome(None, seed)) != values(search(), outcome(0.0, seed))
