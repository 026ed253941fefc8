"""A run on a thread takes orders between updates, is measured, undone and told as it is, and keeps its bits."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.exc import Unsupported

from tests.support.fixtures_config import sizes, tiny
from tests.support.live_runs import PATIENCE, drift, failing, finish, followed, step, trained, wait_for, watch_threads
from tests.support.registries import registered_outside
from uavlab.core.errors import ConfigError, FallbackWarning, ResourceError
from uavlab.experiment.change import alternates
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config, read_status
from uavlab.experiment.run_state import Change, Progress
from uavlab.runtime.runtime import Runtime
from uavlab_lab.live import trainer as live
from uavlab_lab.live.trainer import History, Sample, Trainer, follow, speed_ratio, trainer_in, trainer_of

E = math.e


@pytest.fixture(autouse=True)
def quick_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slices of one update, of which the first one is left out; no thread stays, and no error is lost."""
    monkeypatch.setattr(live, "SLICE", 1e-9)
    with registered_outside(), watch_threads():
        yield


class Hasty(Trainer):
    """A broken trainer: orders are run at once, whatever the training thread does."""

    def order(self, job: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(job())
        return future


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

    def give() -> None:
        for _ in range(20):
            each.order(lambda: seen.append((inside.is_set(), threading.current_thread().name))).result(PATIENCE)

    threads = [threading.Thread(target=give) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    each.stop(PATIENCE)
    assert {*seen} == {(False, "train drift_quick")}
    assert len(seen) == 80


# States and orders


def test_start_step_pause_and_stop(tmp_path: Path) -> None:
    each = Trainer(Run(drift(updates=10**6), tmp_path / "run"))
    assert (each.state, each.order(lambda: 3).result(0)) == ("ready", 3)
    step(each, 3)
    assert (each.state, each.run.number) == ("paused", 3)
    each.start()
    for _ in range(3):
        each.order(lambda: None).result(PATIENCE)  # after an update
    each.pause()
    wait_for(each, "paused")
    each.order(lambda: None).result(PATIENCE)  # the update in progress is over
    number = each.run.number
    time.sleep(0.05)
    assert each.run.number == number
    each.save()
    assert each.run.last is not None
    each.stop(PATIENCE)
    assert (each.state, each.run.status) == ("ready", "interrupted")
    assert Run.resume(tmp_path / "run").number == number
    with pytest.raises(ConfigError, match="got updates=0; expected at least 1"):
        each.step(0)


def test_orders_wait_for_the_update_in_progress() -> None:
    give_orders(Trainer)
    with pytest.raises(AssertionError):
        give_orders(Hasty)


def test_an_order_after_the_last_update_is_answered() -> None:
    each, answers = Trainer(Run(drift(updates=2))), []
    end = each.run._end

    def order_and_end() -> None:
        thread = threading.Thread(target=lambda: answers.append(each.order(lambda: 3)))
        thread.start()
        thread.join(PATIENCE)
        end()

    each.run._end = order_and_end
    finish(each)
    assert [future.result(1) for future in answers] == [3]


def test_errors_of_jobs_come_to_whoever_gave_them_and_jobs_may_give_orders() -> None:
    each = Trainer(Run(drift()))
    step(each, 1)

    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        each.order(leave).result(PATIENCE)
    each.order(lambda: (each.change(worlds=3, measure=False), each.stop())).result(PATIENCE)
    each.join(PATIENCE)
    assert (each.state, each.run.config.source.worlds) == ("ready", 3)


def test_a_failure_is_stored_raised_and_told(tmp_path: Path) -> None:
    each = Trainer(Run(drift(), tmp_path / "run"))
    step(each, 2)
    each.save()
    failing(each.run, RuntimeError("boom"))
    each.start()
    with pytest.raises(RuntimeError, match="boom"):
        each.join(PATIENCE)
    assert (each.state, each.alive) == ("failed", False)
    status = read_status(tmp_path / "run")
    assert (status["status"], status["reason"]) == ("failed", "RuntimeError: boom")
    again = trainer_in(tmp_path / "run")
    assert (again is each, again.run.number) == (False, 2)


def test_a_run_and_a_folder_have_one_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = trainer_of(run := Run(drift(), tmp_path / "run"))
    other = Run.resume(tmp_path / "run")
    step(each, 1)
    monkeypatch.chdir(tmp_path)
    assert trainer_of(run) is trainer_of(other) is trainer_in(Path("run")) is each
    each.stop(PATIENCE)
    assert trainer_of(other) is not each
    alone, seen, barrier = Run(drift()), [], threading.Barrier(8)

    def ask() -> None:
        barrier.wait(PATIENCE)
        seen.append(trainer_of(alone))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (len(seen), len({*seen})) == (8, 1)


# Changes


def test_a_refused_change_leaves_run_thread_and_comparison() -> None:
    each = Trainer(Run(drift()))
    step(each, 4)
    each.change(precision="bf16")
    before = each.run.config, each.run.learner, each.comparison
    for settings in ({"worlds": 0}, {"seed": 3}, {"nope": 1}, {"graph": "update"}):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            each.change(**settings)
    assert before == (each.run.config, each.run.learner, each.comparison)
    each.stop(PATIENCE)


def test_a_change_goes_to_and_fro_and_ends_with_the_new_setting() -> None:
    each = Trainer(Run(drift(updates=200)))
    step(each, 3)
    each.change(precision="bf16")
    step(each, 3)  # a slice takes 2 updates
    assert (each.run.config.toggles.precision, each.values["precision"]) == ("fp32", "bf16")
    step(each, 197)
    first, *slices = each.run.changes
    assert [each.by for each in slices] == ["comparison"] * 12  # 6 to, 6 fro
    assert [entry.update for entry in each.run.changes] == [3 + 2 * n for n in range(13)]
    assert each.run.config.toggles.precision == "bf16"
    assert (first.measured["how"], first.measured["slices"]) == ("interleaved", 6)
    assert live.measured_rows(each.run.changes)[0]["setting"] == "precision=bf16"


def test_a_checkpoint_in_a_slice_of_before_has_the_setting_after(tmp_path: Path) -> None:
    each = Trainer(Run(drift(), tmp_path / "run"))
    step(each, 3)
    each.change(precision="bf16")
    step(each, 3)
    each.stop(PATIENCE)
    assert read_config(tmp_path / "run").toggles.precision == "bf16"
    assert each.run.changes[0].measured == {"stopped": "training ended"}


def test_a_change_that_is_undone_or_falls_back_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    each = Trainer(Run(drift()))
    step(each, 3)

    def break_it() -> None:
        each._change({"precision": "bf16"}, "python", True)
        failing(each.run, RuntimeError("boom"))

    each.order(break_it).result(PATIENCE)
    step(each, 2)
    assert ([entry.undone for entry in each.run.changes], each.comparison) == (["RuntimeError: boom"], None)

    def refuse(*args: Any) -> None:
        raise Unsupported("a learner that cannot be compiled")

    monkeypatch.setattr(torch, "compile", lambda fn, **options: refuse)
    each.change(compile="default")
    with pytest.warns(FallbackWarning, match="compile=default fell back"):
        finish(each)
    _, compiled, back = each.run.changes
    assert compiled.measured["stopped"].startswith("compile fell back: environment: Unsupported: a learner that")
    assert (back.by, back.settings) == ("fallback", {"compile": ("default", "off")})
    assert each.run.digest == trained(drift()).digest


# Bits: a run that is watched, or changed by hand, is one that was not, or one that follows its script

FEW = {"updates": 24, "log_every": 4, "evaluate_every": 8, "evaluate_episodes": 1, "checkpoint_every": 100}
TASKS: dict[str, dict[str, Any]] = {
    "leader_follower": {**sizes("leader_follower"), **FEW},
    "telemetry": {**sizes("telemetry"), **FEW},
}
CHANGES: dict[str, list[tuple[int, dict[str, Any]]]] = {  # after so many updates; those of the first one alternate
    "leader_follower": [(5, {"precision": "bf16"}), (9, {"batch": 12}), (6, {"adam": "single", "acting": "loop"})],
    "telemetry": [(3, {"precision": "bf16", "loader": "per_item"}), (9, {"batch": 12})],
}


@pytest.mark.parametrize("preset", TASKS)
def test_a_changed_run_is_its_script(preset: str) -> None:
    config = configure(preset, TASKS[preset])
    each = Trainer(Run(config))
    for updates, settings in CHANGES[preset]:
        step(each, updates)
        each.change(**settings)
    finish(each)
    assert {change.by for change in each.run.changes} == {"python", "comparison"}
    assert each.run.digest == followed(config, each.run.changes).digest
    slices = [change for change in each.run.changes if change.by == "comparison"]
    without = [change for change in each.run.changes if change is not slices[0]]
    if preset == "leader_follower":  # a slice that is left out is seen
        assert each.run.digest != followed(config, without).digest


# Scripts

NONSENSE = [
    *(
        (None, "1: got None"),
        ([[3, {"worlds": 3}], 4], "2: got 4"),
        ([[3]], "1: got [3]"),
        ([[-1, {}]], "1: got [-1, "),
    ),
    *(([[True, {}]], "1: got [True, {}]"), ([[3, {4: 3}]], "1: got {4: 3}; expected a mapping of names")),
]


@pytest.mark.parametrize(("value", "message"), NONSENSE)
def test_a_script_that_is_none_is_refused_before_training(value: Any, message: str) -> None:
    run = Run(drift())
    with pytest.raises(ConfigError) as error:
        next(follow(run, value))
    assert f"script, entry {message}" in str(error.value)
    with pytest.raises(ConfigError, match="script, entry"):
        Trainer(run).play(value)
    assert run.status == "new"


def test_a_script_is_what_holds_of_the_changes() -> None:
    assert live.parse_script([[5, {"a": 3}], (2, {}), [5, {"a": 4}]]) == [(2, {}), (5, {"a": 3}), (5, {"a": 4})]
    changes = [Change(2, {"worlds": (2, 3), "lr": (0.1, 0.2)}), Change(4, {"adam": ("x", "y")}, undone="boom")]
    assert live.script_of(changes) == [(2, {"worlds": 3, "lr": 0.2})]
    run = Run(drift())
    numbers = [each.number for each in follow(run, [(0, {"lr": 0.1}), (17, {"worlds": 4}), (40, {"worlds": 2})])]
    assert numbers == list(range(1, 41))
    assert [(change.update, change.by) for change in run.changes] == [(at, "script") for at in (0, 17, 40)]


def test_what_a_played_script_cannot_do_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    each, change = Trainer(Run(drift(updates=60)), pairs=2), Run.change

    def refuse(run: Run, by: str = "python", /, **settings: Any) -> Any:
        if "worlds" in settings:
            raise ResourceError("no memory")
        return change(run, by, **settings)

    monkeypatch.setattr(Run, "change", refuse)
    monkeypatch.setattr(live, "EVERY", 1e-9)
    each.play([(20, {"worlds": 3}), (20, {"precision": "bf16"}), (90, {"lr": 0.003})])
    each.join(PATIENCE)
    mine = [entry for entry in each.run.changes if entry.by == "script"]
    undone = [entry.undone for entry in mine]
    assert (mine[1].measured["slices"], live.unmeasured(mine)) == (2, [f"{mine[0]}", f"{mine[2]}"])
    assert undone == ["no memory", "", "training ended before it"]
    monkeypatch.undo()
    each = Trainer(Run(drift()))
    each.play([(1, {"worlds": 0}), (2, {"worlds": 3})])
    with pytest.raises(ConfigError, match="worlds"):
        each.join(PATIENCE)
    finish(each)
    assert (each.state, each.run.changes) == ("complete", [])


# Speeds by hand


class FakeRun(SimpleNamespace):
    """A run whose updates take what a test says."""

    def __init__(self) -> None:
        super().__init__(number=0, seconds=0.0, late=0.0, score_seconds=0.0, pauses=[], rt=Runtime())

    def update(self, seconds: float, score: float = 0.0, save: float = 0.0) -> Progress:
        """Make an update of some seconds, with a score and a save after it, which count with the next update."""
        self.number, self.seconds, self.late = self.number + 1, self.seconds + self.late + seconds, score + save
        self.score_seconds = score or self.score_seconds
        self.pauses += [save] if save else []
        return Progress(self.number, None, self.seconds, score={"eval/x": 1.0} if score else None)


def test_scores_and_saves_are_left_out_of_the_speed() -> None:
    run: Any = FakeRun()
    each = History(run)
    spent = [each.add(run, run.update(0.25)), each.add(run, run.update(0.25, score=8.0))]
    spent.append(each.add(run, run.update(0.25, save=4.0)))
    run.pauses.append(2.0)  # a save between two updates
    each.skip(run)
    spent.append(each.add(run, run.update(0.25, score=1.0, save=1.0)))
    run.late = 0.0  # training ended, and begins again
    each.begin(run)
    spent.append(each.add(run, run.update(0.25)))
    assert spent == pytest.approx([0.25] * 5)
    assert each.net == pytest.approx(1.25)
    samples = [Sample(0, 0, 0), Sample(2, 1, 4), Sample(5, 1.5, 10), Sample(9, 1.5, 10), Sample(10, 2.5, 13)]
    assert live.rates(samples) == [(2, 4.0), (5, 12.0), (10, 3.0)]  # none where no time passed


def test_ratios_have_students_intervals() -> None:
    """Logarithms of pairs 0, 1, 1, 2, 1, 1: mean 1, variance 2 / 5; of two sides of two each, reach t / sqrt(2)."""
    reach = 2.5705818 * math.sqrt(0.4 / 6)
    got = speed_ratio([1.0] * 6, [E**n for n in (0, 1, 1, 2, 1, 1)], paired=True)
    assert [*got.values()] == pytest.approx([E, E ** (1 - reach), E ** (1 + reach)], abs=1e-4)
    got = speed_ratio([E**-0.5, E**0.5], [E**0.5, E**1.5], paired=False)
    assert [got["ratio"], got["low"]] == pytest.approx([E, E ** (1 - 12.706205 / math.sqrt(2))], abs=1e-4)
    slower = [E**-n for n in range(6)]  # a machine that slows down cancels in pairs alone
    assert [*speed_ratio(slower, [2 * rate for rate in slower], paired=True).values()] == pytest.approx([2, 2, 2])
    assert speed_ratio(slower, [2 * rate for rate in slower], paired=False)["low"] < 1
    assert speed_ratio([1.0], [1.0, 2.0], paired=False) == {}


@pytest.mark.parametrize(
    ("settings", "alternate", "per_update"),
    [
        ({"precision": "bf16"}, True, {}),
        ({"worlds": 8}, False, {"agent-steps": 2.0}),
        ({"batch": 12}, False, {"rows": 1.5}),
        ({"ratio": 4}, False, {"agent-steps": 0.25}),
    ],
)
def test_what_an_update_stands_for(settings: Any, alternate: bool, per_update: dict[str, float]) -> None:
    run = Run(tiny())
    change = run.change(**settings)
    assert change is not None
    each = live.Comparison(run, change, [Sample(n, n, 10 * n) for n in range(9)], pairs=2)
    assert (alternates([*settings]), each.before) == (alternate, [] if alternate else [10.0, 10.0])
    assert each.outcome()["per_update"] == per_update
