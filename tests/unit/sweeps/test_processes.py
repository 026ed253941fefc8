"""A trial is a process that starts as a command would, goes on where it was left, and ends in a result."""

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
from filelock import FileLock

from tests.support.registries import registered
from tests.support.sweeps import SETTINGS, flip_every_file, small
from uavlab.core import installation
from uavlab.core.errors import ConfigError, DivergedError
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_status, sign_lock
from uavlab.storage.machine import usable_cores
from uavlab.sweeps import driver
from uavlab.sweeps.driver import (
    PRUNED,
    RESULT,
    Result,
    open_engine,
    parse_request,
    read_result,
    run_process,
    run_trial,
    watch_input,
)
from uavlab.sweeps.spec import Trial

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


def started(script: list[str], place: Path, stop: Event) -> tuple[threading.Thread, psutil.Process]:
    """Start a process on a thread that waits for its end, and return both once it runs."""
    thread = threading.Thread(target=run_process, args=(script, str(place.parent), place, "the request", stop))
    thread.start()
    pid = place.with_suffix(".pid")
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.01)
    return thread, psutil.Process(int(pid.read_text()))


def test_a_process_is_asked_to_stop_and_waited_for(script: list[str], tmp_path: Path) -> None:
    thread, child = started(script, tmp_path / "t", stop := Event())
    assert os.getpgid(child.pid) != os.getpgid(0)  # Ctrl-C of a terminal does not reach it
    stop.set()
    thread.join(60)
    assert (thread.is_alive(), child.is_running()) == (False, False)
    assert (tmp_path / "t.log").read_text() == f"sweep-trial 1 {tmp_path} the request\nended\n"


def test_a_process_that_is_killed_or_reads_nothing_has_ended(script: list[str], tmp_path: Path) -> None:
    thread, child = started(script, tmp_path / "t", Event())
    child.send_signal(signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive()
    (tmp_path / "s.py").write_text("")
    run_process(script, str(tmp_path), tmp_path / "t", "x", Event())


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


def test_the_local_engine_has_a_worker_for_each_core(
    script: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "command_line", True)
    monkeypatch.setattr("sys.argv", script)  # which a user's own command line is
    monkeypatch.chdir(tmp_path)
    with open_engine(small(workers=3)) as (workers, _):
        assert workers == 3
    with open_engine(small(workers=None)) as (workers, run):
        assert workers == usable_cores()
        (stop := Event()).set()
        run(tmp_path / "t", "x", stop)
    assert (tmp_path / "t.log").read_text() == f"sweep-trial 1 {tmp_path} x\nended\n"


def trial(**changes: Any) -> Trial:
    return Trial("leader_follower", {**SETTINGS, **changes}, 1)


def ended(folder: Path, own: Trial | None = None, episodes: int = 3) -> Result:
    """Run a trial to its end."""
    done = run_trial(folder, own or trial(), episodes, Event())
    assert done is not None
    return done


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The result of a trial that nobody disturbed."""
    return ended(tmp_path_factory.mktemp("whole") / "t")


def test_a_name_says_what_is_trained_and_nothing_else() -> None:
    own = Trial("leader_follower", {"lr": 0.1, "batch": 8}, 1, {"lr": 0.1})
    assert own.name == Trial("leader_follower", {"batch": 8, "lr": 0.1}, 1).name == "leader_follower-e2a317b2b559-1"
    others = [replace(own, seed=2), replace(own, settings={"lr": 0.2, "batch": 8}), replace(own, preset="pursuit")]
    assert len({own.name, *(other.name for other in others)}) == 4
    assert Trial("a b/ü" * 20, {}, 0).name.startswith("a_b__" * 8 + "-")


def test_a_trial_is_a_run_of_its_settings(tmp_path: Path) -> None:
    done = ended(tmp_path / "t", trial(toggles="plain"))
    assert done == read_result(tmp_path / "t", 3)
    run = Run(trial(toggles="plain").configure())
    for _ in run.train():
        pass
    assert (done["status"], done["digest"], done["updates"]) == ("complete", run.digest, 10)
    assert (run.config.toggles.update, run.config.run.seed, run.config.run.runs) == ("loop", 1, 1)
    weighed = sum(weight * done["figures"][name] for name, weight in run.config.evaluation.score.items())
    assert done["score"] == pytest.approx(weighed, rel=1e-6)


def test_a_trial_that_was_stopped_goes_on_to_the_same_digest(tmp_path: Path, whole: Result) -> None:
    stop = Event()
    stop.set()
    for update in (1, 2, 3):
        assert run_trial(tmp_path / "t", trial(), 3, stop) is None
        assert read_status(tmp_path / "t")["update"] == update
        assert not (tmp_path / "t" / RESULT).exists()
    assert {**ended(tmp_path / "t"), "seconds": 0} == {**whole, "seconds": 0}


def test_a_pruned_trial_ends_after_its_update_and_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, update = tmp_path / "t", Run._update

    def prune_after_six(run: Run, steps: Any) -> Any:
        if run.number == 5:
            (place / PRUNED).touch()
        return update(run, steps)

    monkeypatch.setattr(Run, "_update", prune_after_six)
    done = ended(place)
    assert (done["status"], done["updates"], done["best_update"]) == ("pruned", 6, 5)
    assert (done["digest"], read_status(place)["status"]) == (read_status(place)["digest"], "interrupted")
    assert ended(place) == read_result(place, 3) == done
    (place / RESULT).unlink()  # killed before it was written: scored again, and not trained
    assert ended(place) == done
    assert set(driver.validations(place, trial())) == {5}


def test_a_complete_trial_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Result) -> None:
    done, trained = ended(tmp_path / "t"), []
    monkeypatch.setattr(Run, "_update", lambda *given: trained.append(given))
    (tmp_path / "t" / RESULT).unlink()  # killed before it was written
    assert ended(tmp_path / "t") == ended(tmp_path / "t") == done
    more = ended(tmp_path / "t", episodes=5)
    assert (more["digest"], more["episodes"], trained) == (whole["digest"], 5, [])
    assert flip_every_file(tmp_path / "t", 20)[RESULT] > 15


def test_a_failure_is_a_result_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ended(tmp_path / "refused", trial(batch=64))
    assert (refused["status"], refused["reason"][:45]) == ("refused", "leader_follower: batch 64 > capacity 32: lowe")
    assert read_result(tmp_path / "refused", 3) is None  # it is tried again

    def fail(error: Exception) -> Result:
        def train(run: Run) -> Any:
            raise error

        monkeypatch.setattr(Run, "train", train)
        return ended(tmp_path / type(error).__name__)

    record = {"tensor": "reward", "value": float("nan"), "expected": "a finite number", "kind": "environment"}
    diverged = fail(DivergedError(record, "Check."))
    assert (diverged["status"], diverged["reason"][:25]) == ("diverged", "training: reward is nan; ")
    assert read_result(tmp_path / "DivergedError", 3) == diverged
    assert fail(ZeroDivisionError("one\ntwo"))["reason"] == "ZeroDivisionError: one\\ntwo"
    monkeypatch.undo()
    assert ended(tmp_path / "refused")["status"] == ended(tmp_path / "ZeroDivisionError")["status"] == "complete"


def test_code_that_the_sweep_names_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("from tests.support.strangers import Hill as make")
    settings = {"updates": 2, "worlds": 2, "workers": 1, "evaluate_episodes": 2, "rollout_steps": 4}
    named, stop = Trial("mine.py:make,moves=3", settings, 0), Event()
    stop.set()
    with registered():
        assert run_trial(tmp_path / "t", named, 2, stop) is None
    with registered():  # as another process, which knows nothing of it
        other = ended(tmp_path / "t")
        assert (other["status"], "must not start by itself" in other["reason"]) == ("refused", True)
        done = ended(tmp_path / "t", named, episodes=2)
    assert (done["status"], done["updates"], done["not_exact"]) == ("complete", 2, [])


def test_two_processes_do_not_train_one_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "WAIT", 0.05)
    with FileLock(path := tmp_path / ".t.lock"):
        sign_lock(path)
        with pytest.raises(ConfigError, match=rf"still in use by process {os.getpid()} on .* since .*; stop it\."):
            ended(tmp_path / "t")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[" * 100_000, '{"preset": "a", "settings": {}, "seed": 0}'])
def test_a_request_that_describes_no_trial_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected JSON that `uavlab sweep` writes"):
        parse_request(text)
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
