"""Where a change would begin to compile, another thread does so first, and training goes on meanwhile."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.live_runs import PATIENCE, drift, finish, followed, step, trained, wait_until, watch_threads
from tests.support.registries import registered_outside
from uavlab.core.errors import ConfigError
from uavlab.experiment import change
from uavlab.experiment.run import Run
from uavlab.live import comparison, trainer
from uavlab.live.trainer import Trainer


@pytest.fixture(autouse=True)
def quick_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slices of one update, and other settings in place of code that takes long to compile."""
    monkeypatch.setattr(comparison, "SLICE", 1e-9)
    monkeypatch.setattr(trainer, "begins_to_compile", lambda run, settings: bool({"precision", "worlds"} & {*settings}))
    with registered_outside(), watch_threads():
        yield


class Gate:
    """A stand-in for ``prepare`` that waits until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.ready = threading.Event(), threading.Event()
        self.runs: list[Run] = []
        self.real = trainer.prepare
        monkeypatch.setattr(trainer, "prepare", self.prepare)

    def prepare(self, run: Run, settings: Any) -> Run:
        prepared = self.real(run, settings)
        self.ready.set()
        assert self.open.wait(PATIENCE)
        self.runs.append(prepared)
        return prepared


def test_training_goes_on_while_code_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, each = Gate(monkeypatch), Trainer(Run(drift(updates=10**6)))
    each.start()
    future = each.ask({"precision": "bf16"}, "panel")
    begun = each.run.number
    wait_until(lambda: each.run.number > begun + 20)
    assert each.preparing
    assert each.run.changes == []
    gate.open.set()
    result = future.result(PATIENCE)
    assert result is not None
    assert (result.settings, result.by) == ({"precision": ("fp32", "bf16")}, "panel")
    assert result.update > begun + 20
    assert not each.preparing
    wait_until(lambda: each.comparison is None)
    each.stop(PATIENCE)
    assert each.run.config.toggles.precision == "bf16"


def test_it_ends_in_the_bits_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, each = Gate(monkeypatch), Trainer(Run(drift(updates=60)))
    gate.open.set()
    step(each, 4)
    future = each.ask({"worlds": 3}, "panel")
    each.start()
    finish(each)
    future.result(PATIENCE)
    assert len(gate.runs) == 1
    assert each.run.digest == followed(drift(updates=60), each.run.changes).digest
    assert each.run.digest != trained(drift(updates=60)).digest


def test_a_prepared_run_is_used_and_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, each = Gate(monkeypatch), Trainer(Run(drift()))
    gate.open.set()
    step(each, 4)
    future = each.ask({"precision": "bf16"}, "panel", measure=False)
    future.result(PATIENCE)
    assert each.run.parts is gate.runs[0]
    each.stop(PATIENCE)


def test_what_is_refused_while_compiling_leaves_the_run_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: Run, settings: Any) -> Run:
        raise ConfigError("precision=bf16 fell back: no compiler")

    monkeypatch.setattr(trainer, "prepare", refuse)
    each = Trainer(Run(drift()))
    step(each, 4)
    with pytest.raises(ConfigError, match="no compiler"):
        each.change(precision="bf16")
    assert (each.preparing, each.state, each.run.changes) == (False, "paused", [])
    finish(each)
    assert each.run.digest == trained(drift()).digest


def test_another_change_meanwhile_holds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prepared run is of other settings then, so it is not used."""
    gate, each = Gate(monkeypatch), Trainer(Run(drift()))
    step(each, 4)
    future = each.ask({"precision": "bf16"}, "panel", measure=False)
    assert gate.ready.wait(PATIENCE)
    each.change(measure=False, lr=1e-4)
    gate.open.set()
    future.result(PATIENCE)
    assert (each.run.config.toggles.precision, each.run.config.learner.lr) == ("bf16", 1e-4)
    assert each.run.spare is not gate.runs[0]
    finish(each)
    assert each.run.digest == followed(drift(), each.run.changes).digest


def test_a_stop_meanwhile_ends_training_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, each = Gate(monkeypatch), Trainer(Run(drift()))
    step(each, 4)
    future = each.ask({"precision": "bf16"}, "panel")
    each.stop(PATIENCE)
    assert not each.alive
    gate.open.set()
    future.result(PATIENCE)
    assert each.run.config.toggles.precision == "bf16"  # from the next start on
    finish(each)
    assert each.run.digest == followed(drift(), each.run.changes).digest


def test_a_job_does_not_wait_for_itself() -> None:
    each = Trainer(Run(drift()))
    step(each, 4)
    change = each.order(lambda: each.change(measure=False, precision="bf16")).result(PATIENCE)
    assert change is not None
    assert each.run.config.toggles.precision == "bf16"
    each.stop(PATIENCE)


def test_a_script_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, each = Gate(monkeypatch), Trainer(Run(drift(updates=10**6)), pairs=2)
    each.play([(3, {"precision": "bf16"}), (3, {"worlds": 3})])
    wait_until(lambda: each.run.number > 30)
    assert each.run.changes == []
    gate.open.set()
    each.join(PATIENCE)
    assert not each.alive
    chosen = [list(entry.settings) for entry in each.run.changes if entry.by == "script"]
    assert chosen == [["precision"], ["worlds"]]
    assert all(entry.measured for entry in each.run.changes if entry.by == "script")


def test_a_refused_change_of_a_script_is_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    each = Trainer(Run(drift()))
    each.play([(3, {"worlds": 0})])
    with pytest.raises(ConfigError, match="worlds"):
        each.join(PATIENCE)


@pytest.mark.parametrize(
    ("now", "settings", "begins"),
    [
        ("off", {"compile": "default"}, True),
        ("off", {"precision": "bf16"}, False),
        ("off", {"compile": "default", "threads": 2}, False),
        ("default", {"compile": "off"}, False),
    ],
)
def test_where_code_begins_to_be_compiled(now: str, settings: dict[str, Any], begins: bool) -> None:
    run = Run(drift())
    run.config.toggles.__dict__["compile"] = now
    assert change.begins_to_compile(run, settings) is begins
