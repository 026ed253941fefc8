"""A trial has one name, goes on where it was left, and ends in a result whatever happens to it."""

import os
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from filelock import FileLock

from tests.support.registries import registered
from tests.support.sweeps import SETTINGS, flip_bits, flip_every_file, small
from uavlab.core.errors import ConfigError, DivergedError, FileError
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_status, sign_lock
from uavlab.sweeps import driver
from uavlab.sweeps.driver import RESULT, Result, last_result, parse_request, read_result, run_trial, watch_input
from uavlab.sweeps.spec import Trial


def trial(**changes: Any) -> Trial:
    return Trial("leader_follower", {**SETTINGS, **changes}, 1)


def ended(folder: Path, own: Trial, episodes: int = 3) -> Result:
    """Run a trial to its end."""
    done = run_trial(folder, own, episodes, Event())
    return done


def test_a_grid_is_every_combination_with_every_seed() -> None:
    sweep = small(
        presets=["leader_follower", "pursuit"], settings={"hidden": 8}, grid={"updates": [4, 5]}, seeds=[7, 9]
    )
    trials = sweep.trials(sweep.combinations)
    assert [(trial.preset, trial.varied["updates"], trial.seed) for trial in trials] == [
        (preset, updates, seed) for preset in ("leader_follower", "pursuit") for updates in (4, 5) for seed in (7, 9)
    ]
    assert all(trial.settings == {"hidden": 8, **trial.varied} for trial in trials)


def test_a_name_says_what_is_trained_and_nothing_else() -> None:
    trial = Trial("leader_follower", {"lr": 0.1, "batch": 8}, 1, {"lr": 0.1})
    assert trial.name == Trial("leader_follower", {"batch": 8, "lr": 0.1}, 1).name == "leader_follower-e2a317b2b559-1"
    others = [
        Trial("leader_follower", {"lr": 0.1, "batch": 8}, 2),
        Trial("leader_follower", {"lr": 0.2, "batch": 8}, 1),
        Trial("pursuit", {"lr": 0.1, "batch": 8}, 1),
    ]
    assert len({trial.name, *(other.name for other in others)}) == 4
    assert Trial("a b/ü" * 20, {}, 0).name.startswith("a_b__" * 8 + "-")


def test_a_trial_is_a_run_of_its_settings(tmp_path: Path) -> None:
    done = ended(tmp_path / "t", trial(toggles="plain"))
    assert done == read_result(tmp_path / "t", 3)
    run = Run(trial(toggles="plain").configure())
    for _ in run.train():
        pass
    assert (done["status"], done["digest"], done["updates"]) == ("complete", run.digest, 10)
    assert run.config.toggles.update == "loop"
    assert trial().configure().toggles.update != "loop"
    assert (run.config.run.seed, run.config.run.runs) == (1, 1)
    weighed = sum(weight * done["figures"][name] for name, weight in run.config.evaluation.score.items())
    assert done["score"] == pytest.approx(weighed, rel=1e-6)


def test_a_trial_that_was_stopped_goes_on_to_the_same_digest(tmp_path: Path) -> None:
    whole, stop = ended(tmp_path / "whole", trial()), Event()
    stop.set()
    for update in (1, 2, 3):
        assert run_trial(tmp_path / "t", trial(), 3, stop) is None
        assert read_status(tmp_path / "t")["update"] == update
        assert not (tmp_path / "t" / RESULT).exists()
    done = ended(tmp_path / "t", trial())
    assert {**done, "seconds": 0} == {**whole, "seconds": 0}


def test_a_complete_trial_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = ended(tmp_path / "t", trial())
    trained = []
    monkeypatch.setattr(Run, "_update", lambda *given: trained.append(given))
    assert ended(tmp_path / "t", trial()) == done
    (tmp_path / "t" / RESULT).unlink()  # killed before it was written: scored again
    again = ended(tmp_path / "t", trial())
    assert again == done
    more = ended(tmp_path / "t", trial(), episodes=5)
    assert (more["digest"], more["episodes"]) == (done["digest"], 5)
    assert trained == []


def test_no_flipped_bit_is_another_result(tmp_path: Path) -> None:
    ended(tmp_path / "t", trial())
    refused = flip_every_file(tmp_path / "t", 20)
    assert refused[RESULT] > 15
    assert flip_bits(tmp_path / "t" / RESULT, 200, lambda: last_result(tmp_path / "t")) > 190


def test_a_run_whose_result_is_deleted_is_scored_again(tmp_path: Path) -> None:
    whole = ended(tmp_path / "t", trial())
    (tmp_path / "t" / RESULT).write_text("{")
    with pytest.raises(FileError, match=r"delete .*trial\.json, and the next call scores the run again"):
        ended(tmp_path / "t", trial())
    (tmp_path / "t" / RESULT).unlink()
    assert ended(tmp_path / "t", trial()) == whole == read_result(tmp_path / "t", 3)


def test_a_failure_is_a_result_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ended(tmp_path / "refused", trial(batch=64))
    assert (refused["status"], refused["reason"][:45]) == ("refused", "leader_follower: batch 64 > capacity 32: lowe")
    assert read_result(tmp_path / "refused", 3) is None  # it is tried again

    def fail(error: Exception) -> dict[str, Any]:
        def train(run: Run) -> Any:
            raise error

        monkeypatch.setattr(Run, "train", train)
        return ended(tmp_path / type(error).__name__, trial())

    record = {"tensor": "reward", "value": float("nan"), "expected": "a finite number", "kind": "environment"}
    diverged = fail(DivergedError(record, "Check."))
    assert (diverged["status"], diverged["reason"][:25]) == ("diverged", "training: reward is nan; ")
    assert read_result(tmp_path / "DivergedError", 3) == diverged
    assert fail(ZeroDivisionError("one\ntwo"))["reason"] == "ZeroDivisionError: one\\ntwo"
    monkeypatch.undo()
    mended = ended(tmp_path / "ZeroDivisionError", trial())
    assert mended["status"] == "complete"


def test_a_refused_trial_may_be_mended(tmp_path: Path) -> None:
    ended(tmp_path / "t", trial(batch=64))
    done = ended(tmp_path / "t", trial())
    assert done["status"] == "complete"


def test_code_that_the_sweep_names_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("from tests.support.strangers import Hill as make")
    settings = {"updates": 2, "worlds": 2, "workers": 1, "evaluate_episodes": 2, "rollout_steps": 4}
    named = Trial("mine.py:make,moves=3", settings, 0)
    stop = Event()
    stop.set()
    with registered():
        assert run_trial(tmp_path / "t", named, 2, stop) is None
    with registered():  # as another process, which knows nothing of it
        other = ended(tmp_path / "t", trial())
        assert (other["status"], "must not start by itself" in other["reason"]) == ("refused", True)
        done = ended(tmp_path / "t", named, episodes=2)
    assert (done["status"], done["updates"], done["not_exact"]) == ("complete", 2, [])
    absent = ended(tmp_path / "u", replace(named, preset="absent.py:make"), episodes=2)
    assert (absent["status"], "absent.py" in absent["reason"]) == ("refused", True)


def test_two_processes_do_not_train_one_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "WAIT", 0.05)
    with FileLock(path := tmp_path / ".t.lock"):
        sign_lock(path)
        with pytest.raises(ConfigError, match=rf"still in use by process {os.getpid()} on .* since .*; stop it\."):
            ended(tmp_path / "t", trial())
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"preset": 1}', "[" * 100_000, '{"preset": "a", "settings": {}, "seed": 0}']
)
def test_a_request_that_describes_no_trial_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected JSON that `uavlab sweep` writes"):
        parse_request(text)


def test_a_request_is_the_trial_and_its_episodes() -> None:
    own = Trial("a", {"lr": 0.1}, 7)
    assert parse_request(own.request(2)) == (own, 2)


def test_the_end_of_input_stops() -> None:
    out, into = os.pipe()
    stop = Event()
    watch_input(stop.set, out)
    assert not stop.wait(0.2)
    os.close(into)
    assert stop.wait(30)
    os.close(out)
