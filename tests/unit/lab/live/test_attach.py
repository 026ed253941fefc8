"""A run, and a folder, have one trainer, whoever asks for it."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_runs import PATIENCE, drift, failing, step, wait_for, watch_threads
from tests.support.registries import registered_outside
from uavlab.experiment.run import Run
from uavlab_lab.live import trainer
from uavlab_lab.live.trainer import Trainer, trainer_in, trainer_of

SHORT = 0.05  # s; for what must not happen meanwhile


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    with registered_outside(), watch_threads():
        yield


def test_a_run_has_one() -> None:
    run = Run(drift())
    each = trainer_of(run)
    assert trainer_of(run) is each
    step(each, 1)
    assert trainer_of(run) is each
    each.stop(PATIENCE)
    assert trainer_of(run) is each
    assert trainer_of(Run(drift())) is not each


def test_a_folder_has_one_that_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = trainer_of(Run(drift(), tmp_path / "run"))
    other = Run.resume(tmp_path / "run")
    step(each, 1)
    assert trainer_of(other) is each
    monkeypatch.chdir(tmp_path)
    other.folder = Path("run")  # another name of it
    assert trainer_of(other) is trainer_in(Path("run")) is each
    each.stop(PATIENCE)
    assert trainer_of(other) is not each


@pytest.mark.parametrize("broken", [False, True])
def test_threads_that_ask_at_once_get_one(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = Run(drift()), []
    barrier, create = threading.Barrier(8), Trainer.__init__

    def slow(self: Trainer, run: Run) -> None:
        time.sleep(SHORT)
        create(self, run)

    monkeypatch.setattr(Trainer, "__init__", slow)
    if broken:
        monkeypatch.setattr(trainer, "LOCK", threading.Semaphore(100))

    def ask() -> None:
        barrier.wait(PATIENCE)
        seen.append(trainer_of(run))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(seen) == 8
    assert (len({*seen}) == 1) is not broken


def test_a_run_that_failed_is_resumed(tmp_path: Path) -> None:
    each = trainer_of(Run(drift(), tmp_path / "run"))
    step(each, 3)
    each.save()
    step(each, 1)
    failing(each.run, RuntimeError("boom"))
    each.start()
    wait_for(each, "failed")
    again = trainer_in(tmp_path / "run")
    assert again is not each
    assert again.run.number == 3
