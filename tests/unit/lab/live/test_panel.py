"""The panel of a live run: what its buttons and controls do, what it says of refusals, and how often it speaks."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import pytest

import uavlab as ul
import uavlab_lab
from tests.support.fixtures_config import sizes
from tests.support.hostile import HARMLESS, HOSTILE, environment, skeleton
from tests.support.live_runs import PATIENCE, QUICK, drift, failing, finish, step, wait_for, wait_until, watch_threads
from tests.support.registries import registered_outside
from tests.support.widget_events import html_of, parts
from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab_lab.headless.strip_outputs import WIDGET
from uavlab_lab.live import panel as module
from uavlab_lab.live import pictures
from uavlab_lab.live import trainer as comparison
from uavlab_lab.live.panel import LAST_EVERY, LivePanel, panel
from uavlab_lab.live.trainer import Trainer, trainer_of

ALERT = "<b role='alert'>"


class Screen:
    """Stands for the notebook: what was displayed, and each state of the copy for a page without a kernel."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.copies: list[str] = []

    def display(self, item: Any, display_id: bool = False) -> "Screen":
        self.shown.append(item)
        if display_id:
            self.update(item)
        return self

    def update(self, item: Any) -> None:
        self.copies.append(item.data)


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    screen = Screen()
    monkeypatch.setattr(module, "display", screen.display)
    monkeypatch.setattr(comparison, "SLICE", 1e-9)
    with registered_outside(), watch_threads():
        yield screen


def shown(**changes: Any) -> LivePanel:
    return LivePanel(Trainer(Run(drift(**changes))))


def enabled(each: LivePanel) -> list[str]:
    each.refresh()
    return [name for name, button in each.buttons.items() if not button.disabled]


def click(each: LivePanel, name: str) -> None:
    each.buttons[name].click()


def text_of(html: widgets.HTML) -> str:
    return html.value.replace("<span role='status'>", "").replace("</span>", "")


class TestButtons:
    def test_those_that_would_do_nothing_are_disabled(self, tmp_path: Path) -> None:
        each = LivePanel(Trainer(Run(drift(updates=10**6), tmp_path / "run")))
        assert enabled(each) == ["Start", "Step", "Save"]
        click(each, "Step")
        wait_for(each.trainer, "paused")
        assert enabled(each) == ["Start", "Step", "Stop", "Save"]
        click(each, "Start")
        assert enabled(each) == ["Pause", "Stop", "Save"]
        click(each, "Stop")
        each.trainer.join(PATIENCE)
        assert enabled(each) == ["Start", "Step", "Save"]
        assert enabled(shown()) == ["Start", "Step"]  # without a folder there is nothing to save to

    def test_at_the_target_only_a_new_target_helps(self) -> None:
        each = shown(updates=3)
        finish(each.trainer)
        assert enabled(each) == []
        each.switches["updates"].control.value = 5
        assert enabled(each) == ["Start", "Step"]

    def test_they_do_what_they_say(self, tmp_path: Path) -> None:
        each = LivePanel(Trainer(Run(drift(updates=10**6), tmp_path / "run")))
        trainer = each.trainer
        click(each, "Step")
        wait_for(trainer, "paused")
        assert trainer.run.number == 1
        click(each, "Start")
        wait_until(lambda: trainer.run.number > 3)
        click(each, "Pause")
        wait_for(trainer, "paused")
        click(each, "Save")
        trainer.order(lambda: None).result(PATIENCE)
        assert trainer.run.last is not None
        click(each, "Stop")
        trainer.join(PATIENCE)
        assert trainer.run.status == "interrupted"

    def test_a_refusal_is_announced_until_something_succeeds(self) -> None:
        each = shown(updates=3)
        finish(each.trainer)
        click(each, "Start")  # on a page that does not know yet
        assert each.alert.value.startswith(f"{ALERT}ConfigError: the run is at its target, update 3")
        assert text_of(each.status) == "complete, update 3 of 3"
        click(each, "Pause")
        assert each.alert.value == ""

    def test_a_save_that_fails_is_announced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        each = LivePanel(Trainer(Run(drift(), tmp_path / "run")))

        def full(run: Run) -> None:
            raise ResourceError("no <space>")

        monkeypatch.setattr(Run, "save", full)
        click(each, "Save")
        assert each.alert.value == f"{ALERT}ResourceError: no &lt;space&gt;</b>"

    def test_the_failure_of_training_is_announced(self) -> None:
        each = shown()
        failing(each.trainer.run, ValueError("<b>boom</b>"))
        click(each, "Start")
        wait_for(each.trainer, "failed")
        each.tick()
        assert each.alert.value == f"{ALERT}ValueError: &lt;b&gt;boom&lt;/b&gt;</b>"
        assert text_of(each.status) == "failed, update 0 of 40"


class TestControls:
    def test_a_choice_changes_the_run_and_is_measured(self) -> None:
        each = shown()
        step(each.trainer, 3)
        each.switches["precision"].control.value = "bf16"
        each.trainer.order(lambda: None).result(PATIENCE)
        assert each.trainer.comparison is not None
        assert [(change.by, change.settings) for change in each.trainer.run.changes] == [
            ("panel", {"precision": ("fp32", "bf16")})
        ]
        each.trainer.stop(PATIENCE)

    def test_measuring_can_be_left_out(self) -> None:
        each = shown()
        step(each.trainer, 3)
        each.measure.value = False
        each.switches["precision"].control.value = "bf16"
        each.trainer.order(lambda: None).result(PATIENCE)
        assert each.trainer.comparison is None
        each.trainer.stop(PATIENCE)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("worlds", 0, "worlds: input should be greater than or equal to 1"),
            ("lr", -1.0, "lr: input should be greater than 0"),
            ("lr", float("nan"), "lr: input should be a finite number"),
            ("threads", 10**30, "threads: input should be less than or equal to 256"),
        ],
    )
    @pytest.mark.parametrize("trains", [False, True])
    def test_a_refused_value_is_announced_and_the_runs_own_is_back(
        self, name: str, value: Any, message: str, trains: bool
    ) -> None:
        each = shown()
        control, before = each.switches[name].control, each.trainer.run.config.values[name]
        if trains:
            step(each.trainer, 1)
        control.value = value
        each.trainer.order(lambda: None).result(PATIENCE)
        each.tick()
        assert each.alert.value.startswith(ALERT)
        assert message in each.alert.value
        assert control.value == before
        assert each.trainer.run.changes == []
        each.switches[name].control.value = before * 2  # a value that can be used
        each.trainer.order(lambda: None).result(PATIENCE)
        each.tick()
        assert each.alert.value == ""
        each.trainer.stop(PATIENCE)

    def test_the_refusal_of_one_order_survives_the_success_of_the_next(self) -> None:
        each = shown()
        step(each.trainer, 1)
        held = each.trainer.order(lambda: wait_until(lambda: len(each._futures) == 2))
        each.switches["worlds"].control.value = 0
        each.switches["lr"].control.value = 0.5
        held.result(PATIENCE)
        each.trainer.order(lambda: None).result(PATIENCE)
        each.tick()
        each.tick()
        assert "worlds: input should be" in each.alert.value
        assert (each.switches["worlds"].control.value, each.switches["lr"].control.value) == (2, 0.5)
        each.trainer.stop(PATIENCE)

    def test_an_order_that_waits_is_not_forgotten_when_another_is_answered(self) -> None:
        each, release = shown(), threading.Event()
        step(each.trainer, 1)
        each.switches["lr"].control.value = 0.5
        wait_until(lambda: each.trainer.run.config.learner.lr == 0.5)
        each.trainer.order(lambda: release.wait(PATIENCE))
        each.switches["worlds"].control.value = 0
        each.tick()
        release.set()
        each.trainer.order(lambda: None).result(PATIENCE)
        each.tick()
        assert "worlds: input should be" in each.alert.value
        each.trainer.stop(PATIENCE)

    def test_they_show_what_was_chosen_while_a_comparison_goes_to_and_fro(self) -> None:
        each = shown()
        step(each.trainer, 3)
        control = each.switches["precision"].control
        control.value = "bf16"
        for _ in range(6):
            step(each.trainer, 1)
            each.tick()
            assert control.value == "bf16"
        assert {change.by for change in each.trainer.run.changes} == {"panel", "comparison"}
        each.trainer.change(adam="single")  # from elsewhere
        each.tick()
        assert each.switches["adam"].control.value == "single"
        each.trainer.stop(PATIENCE)

    def test_those_that_cannot_change_are_folded_away(self) -> None:
        each = shown()
        [folded] = [part for part in parts(each) if isinstance(part, widgets.Accordion)]
        stuck = {part.description for part in parts(folded) if isinstance(part, widgets.Dropdown | widgets.IntText)}
        assert {"doubled", "graph", "placement"} <= stuck
        assert stuck.isdisjoint({"precision", "worlds", "updates"})


class Count:
    """Changes of the values of HTML widgets."""

    def __init__(self, each: LivePanel) -> None:
        self.changes: list[str] = []
        for part in parts(each):
            if isinstance(part, widgets.HTML):
                part.observe(lambda change: self.changes.append(change["new"]), "value")


def still(each: LivePanel, count: Count, screen: Screen) -> None:
    """Tick while nothing happens; the page gets no message."""
    each.tick()
    for _ in range(LAST_EVERY):  # until the copy is up to date
        each.tick()
    count.changes.clear()
    screen.copies.clear()
    for _ in range(3 * LAST_EVERY):
        each.tick()
    assert count.changes == []
    assert screen.copies == []


class TestMessages:
    def test_where_nothing_changes_there_are_none(self, screen: Screen) -> None:
        each = shown()
        each.show()
        count = Count(each)
        still(each, count, screen)
        step(each.trainer, 20)
        still(each, count, screen)
        each.switches["worlds"].control.value = 0  # an alert stays
        each.trainer.order(lambda: None).result(PATIENCE)
        still(each, count, screen)
        each.trainer.stop(PATIENCE)
        still(each, count, screen)

    def test_a_clock_in_the_status_is_caught(self, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
        each, ticks = shown(), iter(range(1000))
        each.show()
        count = Count(each)
        monkeypatch.setattr(pictures, "status_line", lambda trainer: f"tick {next(ticks)}")
        with pytest.raises(AssertionError):
            still(each, count, screen)

    def test_a_tick_has_one_for_each_part_that_changed(self) -> None:
        each = shown()
        count = Count(each)
        for _ in range(5):
            step(each.trainer, 4)
            count.changes.clear()
            each.tick()
            assert 1 <= len(count.changes) <= 5  # status, speed, stages, scores, table
        each.trainer.stop(PATIENCE)

    def test_what_goes_wrong_within_is_announced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        each = shown()
        monkeypatch.setattr(pictures, "status_line", lambda trainer: 1 / 0)
        each.tick()
        assert each.alert.value == f"{ALERT}ZeroDivisionError: division by zero</b>"


class TestCopy:
    def test_it_follows_at_a_tenth_of_the_rate_and_at_each_new_state(self, screen: Screen) -> None:
        each = shown(updates=100)
        each.show()
        assert screen.shown[0] is each
        assert "ready, update 0 of 100" in screen.copies[-1]
        step(each.trainer, 1)
        each.tick()
        assert "paused, update 1 of 100" in screen.copies[-1]
        for _ in range(LAST_EVERY - 2):
            step(each.trainer, 1)
            each.tick()
        assert len(screen.copies) == 2
        each.tick()
        assert "paused, update 9 of 100" in screen.copies[-1]
        finish(each.trainer)
        each.tick()
        assert "complete, update 100 of 100" in screen.copies[-1]

    def test_a_page_without_a_kernel_shows_it_in_place_of_the_panel(self) -> None:
        each = shown()
        bundle = each._repr_mimebundle_()
        assert {*bundle} == {WIDGET, "text/plain"}
        assert bundle["text/plain"] == each.label
        assert not any(isinstance(part, widgets.Output) for part in parts(each))


class TestFollow:
    def test_a_notebook_shows_what_the_run_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "EVERY", 0.001)

        async def cell() -> list[str]:
            each = panel(Run(drift()))
            seen = [text_of(each.status)]
            click(each, "Start")
            while "complete" not in text_of(each.status):
                await asyncio.sleep(0.001)
            seen.append(text_of(each.status).split(";")[0])
            each.end()
            await asyncio.sleep(0.01)
            assert each._task is not None
            assert each._task.done()
            return seen

        assert asyncio.run(asyncio.wait_for(cell(), PATIENCE)) == ["ready, update 0 of 40", "complete, update 40 of 40"]

    def test_a_script_is_played_and_tabulated(self) -> None:
        each = shown(updates=10**6)
        table = asyncio.run(asyncio.wait_for(each.play([(2, {"precision": "bf16"})]), PATIENCE))
        [row] = table.rows
        assert row[1:3] == ["2", "precision fp32 → bf16"]
        assert row[4].startswith("interleaved, 6 slices")
        with pytest.raises(ConfigError, match="worlds"):
            asyncio.run(asyncio.wait_for(each.play([(2, {"worlds": 0})]), PATIENCE))


class TestPanelOf:
    def test_a_run(self) -> None:
        run = Run(drift())
        each = uavlab_lab.panel(run)
        assert isinstance(each, LivePanel)
        assert each.trainer is trainer_of(run)
        assert run.config.run.monitor
        assert pictures.changes_of(run) == []
        again = panel(run)
        assert again.trainer is each.trainer
        finish(again.trainer)
        assert run.status == "complete"

    def test_a_run_that_trains_already(self) -> None:
        trainer = trainer_of(Run(drift(updates=10**6)))
        trainer.start()
        each = panel(trainer.run)
        assert each.trainer is trainer
        assert trainer.run.rt.monitor is not None
        assert trainer.state == "training"
        trainer.stop(PATIENCE)

    @pytest.mark.parametrize("kind", [Path, str])
    def test_a_folder_goes_on_from_its_newest_checkpoint(self, kind: type, tmp_path: Path) -> None:
        run = Run(drift(), tmp_path / "run")
        for progress in run.train():
            if progress.number == 7:
                run.stop()
        each = panel(kind(tmp_path / "run"))
        assert (each.trainer.run.number, each.trainer.state) == (7, "ready")
        assert panel(tmp_path / "run").trainer is each.trainer
        click(each, "Start")
        each.trainer.join(PATIENCE)
        assert each.trainer.run.number == 40

    def test_what_is_no_run_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match="is no run"):
            panel(tmp_path)
        with pytest.raises(ConfigError, match="is a preset"):
            panel("spread")

    def test_memory_that_does_not_suffice_costs_the_stages_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*args: Any, **settings: Any) -> None:
            raise ResourceError("out of memory")

        run = Run(drift())
        monkeypatch.setattr(Run, "change", refuse)
        each = panel(run)
        assert run.rt.monitor is None
        assert "are read while the run trains" in each.stages.value

    def test_a_run_that_failed_can_be_looked_at(self) -> None:
        trainer = trainer_of(Run(drift()))
        step(trainer, 3)
        failing(trainer.run, ValueError("boom"))
        trainer.start()
        wait_for(trainer, "failed")
        assert "ValueError: boom" in panel(trainer.run).alert.value

    @pytest.mark.parametrize("preset", ["telemetry", "mapping", "spread"])
    def test_other_tasks(self, preset: str) -> None:
        each = LivePanel(Trainer(Run(configure(preset, sizes(preset)))))
        assert "class='uavlab-chart'" in each.scores.value


def played(words: Sequence[str]) -> Iterator[str]:
    """Yield a panel whose environment, folder, settings and errors are these words, after each of them."""
    ul.env(words[1])(environment(words))
    each = LivePanel(Trainer(Run(configure(words[1], {**QUICK, "learner": "reinforce"}))))
    each.trainer.run.folder = Path(words[0])
    yield html_of(each)
    for number, word in enumerate(words):
        each._order(*(("precision", word), (word, word))[number % 2])
        yield html_of(each)
        each.trainer.error = ValueError(word)
        each.tick()
        yield html_of(each)
        each.trainer.error = None
    each.trainer.run.folder = None
    for word in words[:2]:
        each.switches["worlds"].control.value += 1
        failing(each.trainer.run, RuntimeError(word))
        step(each.trainer, 1)
        each.tick()
        yield html_of(each)
        each.trainer.stop(PATIENCE)


def test_text_of_others_stays_text() -> None:
    elements = []
    for each in (HOSTILE, HARMLESS):
        pages = "\n".join(played(each))
        elements.append({*skeleton(pages)})
        assert not [character for character in pages if not (character.isprintable() or character == "\n")]
    assert elements[0] <= elements[1]


@pytest.mark.parametrize("name", ["uavlab_lab.live.panel", "uavlab_lab.plots.tables", "uavlab_lab.plots.svg"])
def test_a_panel_that_does_not_escape_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{name}.markup", str)
    with pytest.raises(AssertionError):
        skeleton("\n".join(played(HOSTILE[4:20])))
