"""The panel of a run: start, pause, step, stop, save, and switches that change it while it trains."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet, ref

import ipywidgets as widgets
from IPython.display import HTML, display

from uavlab.core.errors import UavlabError
from uavlab.core.text import markup
from uavlab.experiment.names import run_folder
from uavlab.experiment.run import Run
from uavlab_lab.live import pictures
from uavlab_lab.live.switches import Switch, changeable
from uavlab_lab.live.trainer import Script, Trainer, trainer_in, trainer_of
from uavlab_lab.plots.tables import Table
from uavlab_lab.widgets import ALERT, Panel, guard, scroll_box, write_status

EVERY = 1.0  # seconds between messages to the page
LAST_EVERY = 10  # of them until the copy for a page without a kernel is drawn again
LABEL = "the panel of a live run: run this cell to switch settings while it trains"
ALIVE = ".jp-OutputArea-child:has(.uavlab-live:not(.jupyter-widgets-disconnected))"
HIDDEN = f"""<style>
{ALIVE} ~ .jp-OutputArea-child:has(.uavlab-last), .jp-OutputArea-child:has(.jupyter-widgets):not({ALIVE}):has(
+ .jp-OutputArea-child .uavlab-last) {{ display: none }}
</style>"""
"""Where the panel is alive, the copy below it is superfluous; where it is not, the panel is."""
PANELS: "WeakSet[LivePanel]" = WeakSet()


class LivePanel(Panel):
    """Widgets over a trainer: buttons, pictures, switches, and the table of changes.

    Attributes:
        trainer: The thread that trains the run.
        switches: By the name of the setting.
    """

    def __init__(self, trainer: Trainer) -> None:
        """Show a run; nothing in it changes until somebody clicks."""
        self.trainer, run = trainer, trainer.run
        self.status, self.alert = widgets.HTML(), widgets.HTML()
        self.buttons = {name: self._button(name, *about) for name, about in BUTTONS.items()}
        self.measure = widgets.Checkbox(
            value=True, indent=False, description="measure each change", layout={"width": "auto"},
            tooltip="Go to and fro between the settings of before and after, for some seconds",
        )  # fmt: skip
        self.speed, self.stages, self.scores, self.table = (widgets.HTML() for _ in range(4))
        self.switches = {each.name: Switch(each, run, self._order) for each in changeable(run)}
        layout = {"grid_template_columns": "repeat(auto-fill, minmax(230px, 1fr))", "grid_gap": "0 16px"}
        grid = widgets.GridBox([each.box for each in self.switches.values()], layout=layout)
        row = widgets.HBox([*self.buttons.values(), self.measure], layout={"flex_flow": "row wrap"})
        rows = [row, self.status, self.alert, self.speed, grid, self.table, self.stages, self.scores]
        super().__init__(rows, LABEL)
        self.add_class("uavlab-live")
        self._lock = threading.RLock()  # JupyterLab runs callbacks in a thread of their own
        self._futures: list[Future[Any]] = []
        self._shown: Any = None  # what the pictures, the switches and the copy were drawn from
        self._scored: Any = None
        self._known: Any = None
        self._copied, self._state = "", self.trainer.state
        self._ticks = 0
        self._handle: Any = None
        self._task: asyncio.Task[None] | None = None
        PANELS.add(self)
        self.refresh()

    def _button(self, name: str, tooltip: str, act: Callable[[Trainer], Any]) -> widgets.Button:
        button = widgets.Button(description=name, tooltip=tooltip, layout={"width": "auto"})
        button.on_click(lambda _: self._act(act))
        return button

    def _act(self, act: Callable[[Trainer], Any]) -> None:
        with guard(self.alert):
            future = act(self.trainer)
            if isinstance(future, Future):
                self._expect(future)
        self.refresh()

    def _order(self, name: str, value: Any) -> None:
        measure, self.alert.value = self.measure.value, ""
        self._expect(self.trainer.ask({name: value}, "panel", measure))
        self.refresh()

    def _expect(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.append(future)

    def refresh(self) -> None:
        """Show the run as it is now."""
        with self._lock:
            self._answer()
            write_status(self.status, pictures.status_line(self.trainer))
            self._show_buttons()
            self._show_pictures()
            self._show_changes()

    def _answer(self) -> None:
        """Show what came of the last orders: a refusal, or the failure of training."""
        done = [each for each in self._futures if each.done()]
        errors = [self.trainer.error if not self.trainer.alive else None, *(each.exception() for each in done)]
        if done:
            self._futures = [each for each in self._futures if each not in done]
            self._known = None
        if refused := [each for each in errors if each is not None]:
            self.alert.value = alert(refused[-1])

    def _show_buttons(self) -> None:
        trainer, buttons = self.trainer, self.buttons
        alive, state = trainer.alive, trainer.state
        buttons["Start"].disabled = state in ("training", "stopping") or (not alive and trainer.run.done)
        buttons["Step"].disabled = buttons["Start"].disabled
        buttons["Pause"].disabled = state != "training"
        buttons["Stop"].disabled = not alive or state == "stopping"
        buttons["Save"].disabled = trainer.run.folder is None

    def _show_pictures(self) -> None:
        run, history = self.trainer.run, self.trainer.history
        marks = len(pictures.changes_of(run))
        if (shown := (len(history.samples), history.net, marks)) != self._shown:
            self._shown = shown
            self.speed.value = pictures.speed_chart(run, history)
            self.stages.value = pictures.stage_bar(history)
        if (scored := (last_score(run), marks)) != self._scored:  # to draw them takes ten times as long
            self._scored = scored
            self.scores.value = pictures.score_chart(run)

    def _show_changes(self) -> None:
        run, values = self.trainer.run, self.trainer.values
        changes = [(each.update, each.undone, each.measured) for each in pictures.changes_of(run)]
        if (known := (changes, values)) == self._known:
            return
        self._known = known
        table = pictures.change_table(run)
        self.table.value = scroll_box(table._repr_html_(), "changes") if table.rows else ""
        if not self._futures:
            for switch in self.switches.values():
                switch.show(run, values)

    def show(self) -> None:
        """Display the panel, and under it a copy for pages without a kernel; both follow the run."""
        display(self)
        self._handle = display(HTML(HIDDEN + pictures.whole(self.trainer)), display_id=True)
        self.follow()

    def follow(self) -> None:
        """Follow the run from now on; without a notebook, the panel shows the run as it is."""
        with suppress(RuntimeError):  # no loop runs
            self._task = asyncio.get_running_loop().create_task(_follow(ref(self)))

    def rest(self) -> None:
        """Show the run as it is now, and follow it no longer."""
        if self._task is not None:
            self._task.cancel()

    async def play(self, script: Script) -> Table:
        """Train with the changes of a script, see ``Trainer.play``; return what each did."""
        self.trainer.play(script)
        while self.trainer.alive:
            await asyncio.sleep(0.1)
        self.trainer.join()
        self.tick()
        return pictures.change_table(self.trainer.run)

    def tick(self) -> None:
        """Follow the run; called at a bounded rate."""
        try:
            self.refresh()
            self._ticks += 1
            state, self._state = self._state, self.trainer.state
            due = self._ticks % LAST_EVERY == 0 or state != self._state
            if due and self._handle is not None and (copy := pictures.whole(self.trainer)) != self._copied:
                self._copied = copy
                self._handle.update(HTML(HIDDEN + copy))
        except Exception as error:  # of any kind: else the panel stands still, and nothing says why
            self.alert.value = alert(error)

    def end(self) -> None:
        """Follow the run no longer, and close all widgets."""
        self.rest()
        PANELS.discard(self)
        close(self)


def last_score(run: Run) -> int:
    """Return the update of the newest score; 0 before the first."""
    scored = (row["update"] for row in reversed(run.recorder.rows) if any(name.startswith("eval/") for name in row))
    return next(scored, 0)


def alert(error: BaseException) -> str:
    """Return an error as HTML that screen readers announce."""
    return f"{ALERT}{markup(type(error).__name__)}: {markup(error)}</b>"


def close(widget: widgets.Widget) -> None:
    """Close a widget and all that it holds, which ipywidgets stores otherwise until the kernel ends."""
    for part in (*getattr(widget, "children", ()), *(getattr(widget, name, None) for name in ("layout", "style"))):
        if part is not None:
            close(part)
    widget.close()


async def _follow(panel: "ref[LivePanel]") -> None:
    while (each := panel()) is not None:
        each.tick()
        del each
        await asyncio.sleep(EVERY)


def panel(run: Run | str | Path) -> LivePanel:
    """Show the panel of a run in a notebook, and return it; it takes the place of an earlier panel of the run.

    Args:
        run: A run, which may train already, or the folder of one: after a restart of the kernel its training goes on
            from its newest checkpoint when somebody presses Start.

    Raises:
        FileError: The folder is no run.
        ConfigError: Another process trains the run.
    """
    trainer = trainer_of(run) if isinstance(run, Run) else trainer_in(run_folder(run))
    if trainer.run.rt.monitor is None:
        with suppress(UavlabError):  # such as memory that does not suffice: only stages are not shown then
            trainer.order(lambda: trainer.run.change("monitor", monitor=True)).result()
    for each in [each for each in PANELS if each.trainer is trainer]:
        each.end()
    shown = LivePanel(trainer)
    shown.show()
    return shown


def _change_state(name: str) -> Callable[[Trainer], Any]:
    return lambda trainer: getattr(trainer, name)()


BUTTONS: dict[str, tuple[str, Callable[[Trainer], Any]]] = {
    "Start": ("Train, or go on", _change_state("start")),
    "Pause": ("Pause after the update in progress", _change_state("pause")),
    "Step": ("Make one update", _change_state("step")),
    "Stop": ("End training and save a checkpoint", _change_state("stop")),
    "Save": ("Write a checkpoint", lambda trainer: trainer.order(trainer.run.save)),
}
