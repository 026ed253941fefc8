"""The panel of a live run: buttons, switches, refusals, pictures, messages, and text of others."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ipywidgets as widgets
import pytest

import uavlab as ul
import uavlab_lab
from tests.support.fixtures_config import TINY, sizes
from tests.support.hostile import HARMLESS, HOSTILE, environment, skeleton
from tests.support.live_events import play
from tests.support.live_runs import PATIENCE, QUICK, drift, failing, finish, step, wait_for, wait_until, watch_threads
from tests.support.registries import registered_outside
from tests.support.widget_events import html_of, parts
from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.experiment.change import refusal
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Change, parse_changes
from uavlab_lab.headless.strip_outputs import WIDGET
from uavlab_lab.live import panel as module
from uavlab_lab.live import pictures, trainer
from uavlab_lab.live.panel import LAST_EVERY, LivePanel, panel
from uavlab_lab.live.switches import FIRST, Switch, changeable
from uavlab_lab.live.trainer import Sample, Trainer, trainer_of

ALERT = "<b role='alert'>"
MEASURED = {
    **{"how": "interleaved", "slices": 6, "warm_up_s": 12.34, "per_update": {"rows": 1.5}},
    **{"ratio": 1.234, "low": 1.1, "high": 1.4, "before": 100.0, "after": 123.4},
}


class Screen:
    """Stands for the notebook: each state of the copy for a page without a kernel."""

    def __init__(self) -> None:
        self.copies: list[str] = []

    def display(self, item: Any, display_id: bool = False) -> "Screen":
        if display_id:
            self.update(item)
        return self

    def update(self, item: Any) -> None:
        self.copies.append(item.data)


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    screen = Screen()
    monkeypatch.setattr(module, "display", screen.display)
    monkeypatch.setattr(trainer, "SLICE", 1e-9)
    with registered_outside(), watch_threads():
        yield screen


def shown(folder: Path | None = None, **changes: Any) -> LivePanel:
    return LivePanel(Trainer(Run(drift(**changes), folder)))


def enabled(each: LivePanel) -> list[str]:
    each.refresh()
    return [name for name, button in each.buttons.items() if not button.disabled]


def answer(each: LivePanel) -> str:
    """Wait for the orders so far, and return what the panel announces."""
    each.trainer.order(lambda: None).result(PATIENCE)
    each.tick()
    return each.alert.value


def test_buttons_do_what_they_say(tmp_path: Path) -> None:
    each = shown(tmp_path / "run", updates=10**6)
    run = each.trainer.run
    assert enabled(each) == ["Start", "Step", "Save"]
    each.buttons["Step"].click()
    wait_for(each.trainer, "paused")
    assert (run.number, enabled(each)) == (1, ["Start", "Step", "Stop", "Save"])
    each.buttons["Start"].click()
    wait_until(lambda: run.number > 3)
    assert enabled(each) == ["Pause", "Stop", "Save"]
    each.buttons["Pause"].click()
    wait_for(each.trainer, "paused")
    each.buttons["Save"].click()
    answer(each)
    assert run.last is not None
    each.buttons["Stop"].click()
    each.trainer.join(PATIENCE)
    assert (run.status, enabled(shown())) == ("interrupted", ["Start", "Step"])  # without a folder, no Save


def test_failures_and_refusals_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    each = shown(updates=3)
    finish(each.trainer)
    each.buttons["Start"].click()  # on a page that does not know yet
    assert each.alert.value.startswith(f"{ALERT}ConfigError: the run is at its target, update 3")
    each.switches["updates"].control.value = 5
    assert (answer(each), enabled(each)) == ("", ["Start", "Step"])
    each = shown()
    failing(each.trainer.run, ValueError("<b>boom</b>"))
    each.buttons["Start"].click()
    wait_for(each.trainer, "failed")
    each.tick()
    assert each.alert.value == f"{ALERT}ValueError: &lt;b&gt;boom&lt;/b&gt;</b>"
    monkeypatch.setattr(pictures, "status_line", lambda trainer: 1 / 0)
    each.tick()
    assert each.alert.value == f"{ALERT}ZeroDivisionError: division by zero</b>"


def test_a_choice_changes_the_run_and_shows_what_was_chosen() -> None:
    each = shown()
    step(each.trainer, 3)
    each.switches["precision"].control.value = "bf16"
    for _ in range(6):  # while the run goes to and fro
        step(each.trainer, 1)
        assert (answer(each), each.switches["precision"].control.value) == ("", "bf16")
    assert {change.by for change in each.trainer.run.changes} == {"panel", "comparison"}
    each.trainer.change(adam="single")  # from elsewhere
    each.measure.value = False
    each.switches["lr"].control.value = 0.5
    answer(each)
    assert (each.switches["adam"].control.value, each.trainer.comparison) == ("single", None)
    each.trainer.stop(PATIENCE)


@pytest.mark.parametrize(("name", "value"), [("worlds", 0), ("lr", float("nan")), ("threads", 10**30)])
def test_a_refused_value_is_announced_and_the_runs_own_is_back(name: str, value: Any) -> None:
    each = shown()
    control, before = each.switches[name].control, each.trainer.run.config.values[name]
    step(each.trainer, 1)
    control.value = value
    assert answer(each).startswith(f"{ALERT}ConfigError: ")
    assert f"{name}: input should be" in each.alert.value
    assert (control.value, each.trainer.run.changes) == (before, [])
    control.value = before * 2
    assert answer(each) == ""
    each.trainer.stop(PATIENCE)


@pytest.mark.parametrize("preset", ["leader_follower", "mapping", "telemetry", "spread"])
def test_each_setting_that_can_change_has_a_control(preset: str) -> None:
    run = Run(configure(preset, {**sizes(preset), "device": "cpu"}))
    for setting in changeable(run):
        each = Switch(setting, run, lambda name, value: None)
        value = run.config.values[setting.name]
        usable = [other for other in each.choices if other == value or not refusal(run, **{setting.name: other})]
        assert not each.choices or list(each.control.options) == usable
        assert (each.control.value, each.control.description) == (value, setting.name)
        assert bool(each.control.tooltip)
    names = [each.name for each in changeable(run)]
    assert names[:2] == ["precision", "compile"]
    assert [name for name in names if name in FIRST] == [name for name in FIRST if name in names]
    assert not {*run.config.task.inapplicable, "doubled"} & {*names}


def test_a_switch_says_what_is_claimed_and_why_a_value_is_left_out() -> None:
    orders: list[Any] = []
    run = Run(configure("leader_follower", TINY))
    each = {s.name: Switch(s, run, lambda *order: orders.append(order)) for s in changeable(run)}
    assert "not tf32: tf32 needs a CUDA device, this run is on cpu" in each["precision"].note.value
    assert "claimed: +5-15 %; equal up to rounding" in each["compile"].note.value
    each["precision"].control.value = "bf16"
    each["precision"].show(run)  # the order was refused
    run.change(compile="default")  # so that there are fewer options
    each["precision"].show(run)
    assert (each["precision"].control.value, each["precision"].control.options) == ("fp32", ("fp32", "bf16"))
    assert orders == [("precision", "bf16")]


def test_the_table_of_changes_by_hand() -> None:
    odd = parse_changes([{"update": 1, "settings": {"lr": [1, 2]}, "measured": {**MEASURED, "ratio": "x"}}])
    changes = [
        Change(1200, {"precision": ("fp32", "bf16"), "lr": (1e-3, 5e-4)}, measured=MEASURED),
        Change(2, {"worlds": (4, 8)}, by="script", undone="MemoryError: no room", measured=MEASURED),
        Change(3, {"placement": ("device", "host")}, measured={"stopped": "another change"}),
        Change(4, {"lr": (1, 2)}, by="comparison"),
        *odd,
    ]
    run: Any = SimpleNamespace(changes=changes)
    first, *rest = pictures.change_table(run).rows
    assert first == [
        *("1", "1,200", "precision fp32 → bf16, lr 0.001 → 0.0005", "1.23 (1.10 to 1.40)"),
        *("interleaved, 6 slices; warm-up 12.3 s; rows per update x 1.5", "100 → 123"),
        "equal up to the lower precision; other updates",
    ]
    assert [row[4] for row in rest] == ["undone: MemoryError: no room", "not measured: another change", "-"]


def test_the_status_says_what_the_run_is_doing() -> None:
    each = Trainer(Run(drift()))
    assert pictures.status_line(each) == "ready, update 0 of 40"
    step(each, 1)
    each.change(measure=False, compile="default")
    assert "; compiling, which takes" in pictures.status_line(each)
    each.change(measure=False, compile="off")  # before it was compiled
    step(each, 1)
    each.change(adam="single")
    step(each, 1)
    line = pictures.status_line(each)
    assert line.startswith("paused, update 3 of 40")
    assert line.endswith("; measuring the last change, slice 1 of 6")
    each.stop(PATIENCE)


def test_messages_come_where_something_changes_and_the_copy_follows(screen: Screen) -> None:
    each = shown(updates=100)
    each.show()
    assert "ready, update 0 of 100" in screen.copies[-1]
    step(each.trainer, 1)
    each.tick()
    assert "paused, update 1 of 100" in screen.copies[-1]  # at each new state
    for _ in range(2 * LAST_EVERY):  # until the copy is up to date
        each.tick()
    changes: list[str] = []
    for part in parts(each):
        if isinstance(part, widgets.HTML):
            part.observe(lambda change: changes.append(change["new"]), "value")
    screen.copies.clear()
    for _ in range(2 * LAST_EVERY):
        each.tick()
    assert (changes, screen.copies) == ([], [])
    each.trainer.stop(PATIENCE)
    bundle = each._repr_mimebundle_()
    assert ({*bundle}, bundle["text/plain"]) == ({WIDGET, "text/plain"}, each.label)


def test_a_notebook_follows_the_run_and_plays_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.001)

    async def cell() -> Any:
        each = panel(Run(drift()))
        each.buttons["Start"].click()
        while "complete, update 40 of 40" not in each.status.value:
            await asyncio.sleep(0.001)
        each.end()
        return await shown(updates=10**6).play([(2, {"precision": "bf16"})])

    table = asyncio.run(asyncio.wait_for(cell(), PATIENCE))
    assert table.rows[0][4].startswith("interleaved, 6 slices")


def test_the_panel_of_a_run_or_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(drift(), tmp_path / "run")
    for progress in run.train():
        if progress.number == 7:
            run.stop()
    each = panel(str(tmp_path / "run"))
    assert (each.trainer.run.number, each.trainer.run.config.run.monitor) == (7, True)
    assert uavlab_lab.panel(each.trainer.run).trainer is panel(tmp_path / "run").trainer is each.trainer
    finish(each.trainer)
    assert each.trainer.run.number == 40
    with pytest.raises(FileError, match="is no run"):
        panel(tmp_path)
    with pytest.raises(ConfigError, match="is a preset"):
        panel("spread")

    def refuse(*args: Any, **settings: Any) -> None:
        raise ResourceError("out of memory")

    monkeypatch.setattr(Run, "change", refuse)  # costs the stages alone
    assert "are read while the run trains" in panel(Run(drift())).stages.value
    assert trainer_of(run).run.status == "interrupted"


def pages(words: Any) -> Iterator[str]:
    """Yield what panels show of runs whose names, folders, settings, stages, changes and errors are these words."""
    ul.env(words[1])(environment(words))
    run = Run(configure(words[1], {**QUICK, "learner": "reinforce"}))
    each = LivePanel(Trainer(run))
    for number, word in enumerate(words):
        each._order(*(("precision", word), (word, word))[number % 2])
        yield html_of(each)
        each.trainer.error, run.folder = ValueError(word), Path(word)
        run.changes[:] = [
            Change(0, {word: (word, [word])}, undone=word),
            Change(0, {"lr": (1, 2)}, measured={**MEASURED, "how": word, "per_update": {word: 2.0}}),
        ]
        each.trainer.history.samples.append(Sample(1, 1, number, {f"time/{word}": 1.0, f"memory/{word}": 2.0}))
        each.tick()
        yield html_of(each) + pictures.whole(each.trainer)
        each.trainer.error, run.folder = None, None
        run.changes.clear()


def test_text_of_others_stays_text() -> None:
    hostile, harmless = ("\n".join(pages(words)) for words in (HOSTILE, HARMLESS))
    assert {*skeleton(hostile)} <= {*skeleton(harmless)}
    assert not [character for character in hostile if not (character.isprintable() or character == "\n")]


def test_whatever_somebody_does_nothing_raises_and_each_folder_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "EVERY", 0.01)
    done, _ = play(tmp_path, range(12), 4)
    assert len(done) > 8  # kinds of events
