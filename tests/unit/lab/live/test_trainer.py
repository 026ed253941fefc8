"""A trainer trains on one thread, takes orders between updates alone, answers each, and leaves the run's bits alone."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_runs import PATIENCE, drift, failing, finish, step, trained, wait_for, wait_until, watch_threads
from tests.support.registries import registered_outside
from uavlab.core.errors import ConfigError
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_status
from uavlab_lab.live.trainer import History, Trainer, stop_all, trainer_in

SHORT = 0.05  # s; for what must not happen meanwhile
RACES = 200


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    with registered_outside(), watch_threads():
        yield


class Gate:
    """An update that waits within, until it is opened."""

    def __init__(self, run: Run) -> None:
        self.within, self.open, self.inside = threading.Event(), threading.Event(), False
        update = run.learner.update

        def wait(*args: Any) -> Any:
            self.inside = True
            self.within.set()
            assert self.open.wait(PATIENCE)
            result = update(*args)
            self.inside = False
            return result

        run.learner.update = wait


class TestStates:
    def test_from_the_beginning_to_the_target(self) -> None:
        each = Trainer(Run(drift()))
        seen = [each.state]
        step(each, 1)
        seen.append(each.state)
        assert each.run.number == 1
        step(each, 3)
        assert each.run.number == 4
        gate = Gate(each.run)
        each.start()
        gate.within.wait(PATIENCE)
        seen.append(each.state)
        each.stop()
        seen.append(each.state)
        gate.open.set()
        each.join(PATIENCE)
        seen.append(each.state)
        assert each.run.number == 5
        finish(each)
        assert seen == ["ready", "paused", "training", "stopping", "ready"]
        assert (each.state, each.run.number, each.run.status) == ("complete", 40, "complete")

    def test_pause_holds_and_start_goes_on(self) -> None:
        each = Trainer(Run(drift(updates=10**6)))
        each.start()
        each.pause()
        wait_for(each, "paused")
        each.order(lambda: None).result(PATIENCE)  # the update in progress is over
        number = each.run.number
        time.sleep(SHORT)
        assert each.run.number == number
        each.start()
        assert each.state == "training"
        wait_until(lambda: each.run.number > number)
        each.stop(PATIENCE)

    def test_a_stop_ends_a_pause(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 2)
        each.stop(PATIENCE)
        assert (each.state, each.run.number, each.run.status) == ("ready", 2, "interrupted")

    def test_orders_without_a_thread_change_no_state(self) -> None:
        each = Trainer(Run(drift()))
        each.pause()
        each.stop(PATIENCE)
        each.join()
        assert each.order(lambda: 3).result(0) == 3
        assert each.state == "ready"

    def test_a_run_at_its_target_does_not_start(self) -> None:
        each = Trainer(trained(drift()))
        for begin in (each.start, each.step, lambda: each.play([])):
            with pytest.raises(ConfigError, match="at its target, update 40; set a farther one, such as updates=80"):
                begin()
        each.change(updates=42)
        finish(each)
        assert each.run.number == 42

    @pytest.mark.parametrize("updates", [0, -1])
    def test_a_step_is_at_least_one_update(self, updates: int) -> None:
        with pytest.raises(ConfigError, match=f"got updates={updates}; expected at least 1"):
            Trainer(Run(drift())).step(updates)

    def test_a_target_ends_a_step(self) -> None:
        each = Trainer(Run(drift(updates=3)))
        each.step(100)
        each.join(PATIENCE)
        assert (each.state, each.run.number) == ("complete", 3)

    def test_a_start_while_it_stops_goes_on_afterwards(self) -> None:
        each = Trainer(Run(drift()))
        gate = Gate(each.run)
        each.start()
        gate.within.wait(PATIENCE)
        each.stop()
        threading.Timer(SHORT, gate.open.set).start()
        finish(each)
        assert each.state == "complete"

    @pytest.mark.parametrize("stop", [Trainer.stop, lambda each: each.run.stop()])
    def test_a_stop_after_the_end_does_not_stop_the_next_start(self, stop: Callable[[Trainer], None]) -> None:
        each = Trainer(Run(drift()))
        step(each, 2)
        each.run.recorder.close = lambda: stop(each)  # the last that a run does
        each.stop(PATIENCE)
        finish(each)
        assert each.run.number == 40


class Hasty(Trainer):
    """A broken trainer: orders are run at once, whatever the training thread does."""

    def order(self, job: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(job())
        return future


class Forgetful(Trainer):
    """A broken trainer: orders that come after the last update are forgotten."""

    def _train(self) -> None:
        for _ in self.run.train():
            self._attend()
        self._running = self._ending = False


def give_orders(kind: type[Trainer]) -> None:
    """Give orders from several threads; each is run between two updates, by the training thread."""
    each = kind(Run(drift(updates=10**6)))
    update, inside, seen = each.run.learner.update, threading.Event(), []

    def slow(*args: Any) -> Any:
        inside.set()
        time.sleep(0.001)
        result = update(*args)
        inside.clear()
        return result

    each.run.learner.update = slow
    each.start()

    def look() -> None:
        seen.append((inside.is_set(), threading.current_thread().name))

    def give() -> None:
        for _ in range(20):
            each.order(look).result(PATIENCE)

    threads = [threading.Thread(target=give) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    each.stop(PATIENCE)
    assert {*seen} == {(False, "train drift_quick")}
    assert len(seen) == 80


def order_at_the_end(kind: type[Trainer]) -> None:
    """Give an order after the last update, while the thread writes the end of the run."""
    each, answers = kind(Run(drift(updates=2))), []
    end = each.run._end

    def order_and_end() -> None:
        thread = threading.Thread(target=lambda: answers.append(each.order(lambda: 3)))
        thread.start()
        thread.join(PATIENCE)
        end()

    each.run._end = order_and_end
    each.start()
    each.join(PATIENCE)
    assert [future.result(SHORT) for future in answers] == [3]


class TestOrders:
    def test_they_wait_for_the_update_in_progress(self) -> None:
        give_orders(Trainer)

    def test_one_during_an_update_is_caught(self) -> None:
        with pytest.raises(AssertionError):
            give_orders(Hasty)

    def test_one_after_the_last_update_is_answered(self) -> None:
        order_at_the_end(Trainer)

    def test_one_without_an_answer_is_caught(self) -> None:
        with pytest.raises(TimeoutError):
            order_at_the_end(Forgetful)

    def test_none_is_lost_in_races_with_the_end(self) -> None:
        """After each end the next start goes on, too: no stop is left over."""
        each = Trainer(Run(drift(updates=10**6, evaluate_every=10**6)))
        for number in range(RACES):
            each.step()
            futures = []

            def give(futures: list[Any] = futures, number: int = number) -> None:
                for delay in range(4):
                    time.sleep((number * 7 + delay * 3) % 11 * 1e-4)
                    futures.append(each.order(lambda: 3))
                    each.stop()

            thread = threading.Thread(target=give)
            thread.start()
            if number % 2:
                each.stop()
            thread.join(PATIENCE)
            each.join(PATIENCE)
            assert not each.alive
            assert [future.result(PATIENCE) for future in futures] == [3, 3, 3, 3]
            before = each.run.number
            step(each, 1)
            each.stop(PATIENCE)
            assert each.run.number == before + 1

    def test_their_errors_come_to_whoever_gave_them(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 1)

        def leave() -> None:
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            each.order(leave).result(PATIENCE)
        assert each.state == "paused"
        each.stop(PATIENCE)

    def test_a_withdrawn_one_is_not_run(self) -> None:
        each, runs = Trainer(Run(drift())), []
        gate = Gate(each.run)
        each.step()
        gate.within.wait(PATIENCE)
        assert each.order(lambda: runs.append(1)).cancel()
        gate.open.set()
        wait_for(each, "paused")
        each.order(lambda: runs.append(2)).result(PATIENCE)
        assert runs == [2]
        each.stop(PATIENCE)

    def test_a_job_may_give_orders(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 1)

        def job() -> None:
            each.change(worlds=3, measure=False)
            each.save()
            each.stop(PATIENCE)
            each.join()

        each.order(job).result(PATIENCE)
        each.join(PATIENCE)
        assert (each.state, each.run.config.source.worlds) == ("ready", 3)

    def test_a_job_does_not_wait_for_itself(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 4)
        change = each.order(lambda: each.change(measure=False, precision="bf16")).result(PATIENCE)
        assert change is not None
        assert each.run.config.toggles.precision == "bf16"
        each.stop(PATIENCE)

    def test_a_long_job_blocks_nobody(self) -> None:
        each, release = Trainer(Run(drift())), threading.Event()
        step(each, 1)
        job = each.order(lambda: release.wait(PATIENCE))
        others = [each.pause, each.step, each.stop, lambda: each.order(lambda: None)]
        threads = [threading.Thread(target=other) for other in others]
        for thread in threads:
            thread.start()
            thread.join(PATIENCE)
        assert not job.done()
        release.set()
        assert job.result(PATIENCE)
        each.join(PATIENCE)


class TestFailure:
    def test_what_ends_training_is_stored_and_raised(self, tmp_path: Path) -> None:
        each = Trainer(Run(drift(), tmp_path / "run"))
        step(each, 2)
        failing(each.run, RuntimeError("boom"))
        each.start()
        with pytest.raises(RuntimeError, match="boom"):
            each.join(PATIENCE)
        assert (each.state, str(each.error), each.alive) == ("failed", "boom", False)
        status = read_status(tmp_path / "run")
        assert (status["status"], status["reason"]) == ("failed", "RuntimeError: boom")
        with pytest.raises(ConfigError, match="an update is in progress"):
            each.change(worlds=3)
        each.start()
        with pytest.raises(ConfigError, match="an update was cut in half"):
            each.join(PATIENCE)

    def test_a_folder_in_use_is_an_error_of_the_thread(self, tmp_path: Path) -> None:
        run = Run(drift(), tmp_path / "run")
        steps = run.train()
        next(steps)
        other = Trainer(Run(drift()))
        other.run.folder = run.folder
        other.start()
        with pytest.raises(ConfigError, match="in use by process"):
            other.join(PATIENCE)
        steps.close()

    def test_an_error_of_the_trainer_leaves_a_state_to_go_on_from(self, monkeypatch: pytest.MonkeyPatch) -> None:
        each = Trainer(Run(drift()))
        with monkeypatch.context() as patch:
            patch.setattr(History, "add", lambda self, run, progress: 1 / 0)
            each.start()
            with pytest.raises(ZeroDivisionError):
                each.join(PATIENCE)
        finish(each)
        assert each.run.digest == trained(drift()).digest

    def test_a_thread_that_cannot_start_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        each = Trainer(Run(drift()))

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                each.start()
        assert not each.alive
        finish(each)


class TestStop:
    def test_a_new_start_ends_in_the_digest_of_one_training(self, tmp_path: Path) -> None:
        whole = trained(drift())
        each = Trainer(Run(drift(), tmp_path / "run"))
        for updates in (3, 9):
            step(each, updates)
            each.stop(PATIENCE)
            assert each.run.last is not None
            assert each.run.last.name.endswith(str(each.run.number))
        assert read_status(tmp_path / "run")["status"] == "interrupted"
        finish(each)
        assert each.run.digest == whole.digest
        assert read_status(tmp_path / "run")["digest"] == whole.digest

    def test_another_run_goes_on_from_the_folder(self, tmp_path: Path) -> None:
        each = Trainer(Run(drift(), tmp_path / "run"))
        step(each, 12)
        each.stop(PATIENCE)
        assert trainer_in(tmp_path / "run") is each
        again = Trainer(Run.resume(tmp_path / "run"))
        again.start()
        again.join(PATIENCE)
        assert again.run.digest == trained(drift()).digest
        assert trainer_in(tmp_path / "run") is again  # the first one does not know how it went on

    def test_save_writes_a_checkpoint_of_the_present_update(self, tmp_path: Path) -> None:
        each = Trainer(Run(drift(), tmp_path / "run"))
        step(each, 5)
        each.save()
        assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["ckpt-000000000005"]
        assert each.state == "paused"
        each.stop(PATIENCE)

    def test_all_are_stopped_at_the_end_of_the_process(self, tmp_path: Path) -> None:
        several = [Trainer(Run(drift(updates=10**6), tmp_path / name)) for name in "ab"]
        idle = Trainer(Run(drift()))
        for each in several:
            each.start()
        stop_all()
        assert [each.state for each in (*several, idle)] == ["ready", "ready", "ready"]
        assert [each.run.last is not None for each in several] == [True, True]
