"""The panel of a run: start, pause, step, stop, save, and switches that change it while it trains."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import ref

import ipywidgets as widgets
from IPython.display import HTML, display

from uavlab.core.errors import UavlabError
from uavlab.core.text import markup
from uavlab.experiment.names import run_folder
from uavlab.experiment.run import Run
from uavlab.lab.live import pictures
from uavlab.lab.live.switches import Switch, changeable
from uavlab.lab.plots.tables import Table
from uavlab.lab.widgets import ALERT, Panel, guard, write_status
from uavlab.live.script import Script
from uavlab.live.trainer import Trainer, trainer_in, trainer_of

EVERY = 1.0  # seconds between messages to the page
LAST_EVERY = 10  # of them until the copy for a page without a kernel is drawn again
LABEL = "the panel of a live run: run this cell to switch settings while it trains"
HIDDEN = """<style>
.jp-OutputArea-child:has(.uavlab-live) ~ .jp-OutputArea-child:has(.uavlab-last) { display: none }
</style>"""
"""Where the panel is alive, the copy below it is superfluous."""
COLUMNS = "repeat(auto-fill, minmax(230px, 1fr))"


class LivePanel(Panel):
    """Widgets over a trainer: buttons, pictures, switches, and the table of changes.

    Attributes:
        trainer: The thread that trains the run.
        switches: By the name of the setting.
    """

    def __init__(self, trainer: Trainer) -> None:
        """Show a run; nothing in it changes until somebody clicks."""
        self.trainer, run = trainer, trainer.run
        self.status = widgets.HTML()
        self.buttons = {name: self._button(name, *about) for name, about in BUTTONS.items()}
        self.measure = widgets.Checkbox(
            value=True, indent=False, description="measure each change", layout={"width": "auto"},
            tooltip="Go to and fro between the settings of before and after, for some seconds",
        )  # fmt: skip
        self.speed, self.stages, self.scores, self.table = (widgets.HTML() for _ in range(4))
        self.switches = {each.name: Switch(each, run, trainer.values, self._order) for each in changeable(run)}
        free = [each.box for each in self.switches.values() if not each.control.disabled]
        stuck = [each.box for each in self.switches.values() if each.control.disabled]
        grid, rest = (
            widgets.GridBox(boxes, layout={"grid_template_columns": COLUMNS, "grid_gap": "0 16px"})
            for boxes in (free, stuck)
        )
        folded = widgets.Accordion([rest], titles=["Settings that cannot change here, and why"])
        row = widgets.HBox([*self.buttons.values(), self.measure], layout={"flex_flow": "row wrap"})
        super().__init__([row, self.status, self.speed, grid, self.table, self.stages, self.scores, folded], LABEL)
        self.add_class("uavlab-live")
        self._futures: list[Future[Any]] = []  # of orders that wait
        self._shown: Any = None  # what the pictures, the switches and the copy were drawn from
        self._known: Any = None
        self._copied: Any = None
        self._ticks = 0
        self._handle: Any = None
        self.refresh()

    def _button(self, name: str, tooltip: str, act: Callable[[Trainer], Any]) -> widgets.Button:
        button = widgets.Button(description=name, tooltip=tooltip, layout={"width": "auto"})
        button.on_click(lambda _: self._act(act))
        return button

    def _act(self, act: Callable[[Trainer], Any]) -> None:
        with guard(self.status):
            if isinstance(future := act(self.trainer), Future):
                self._futures.append(future)
        self.refresh()

    def _order(self, name: str, value: Any) -> None:
        measure, self.status.value = self.measure.value, ""
        self._futures.append(self.trainer.order(lambda: self.trainer._change({name: value}, "panel", measure)))
        self.refresh()

    def refresh(self) -> None:
        """Show the run as it is now."""
        trainer = self.trainer
        self._answer()
        if not self._futures and not self.status.value.startswith(ALERT):
            write_status(self.status, pictures.status_line(trainer))
        alive, state = trainer.alive, trainer.state
        self.buttons["Start"].disabled = state in ("training", "stopping") or (not alive and trainer.run.done)
        self.buttons["Step"].disabled = self.buttons["Start"].disabled
        self.buttons["Pause"].disabled = state != "training"
        self.buttons["Stop"].disabled = not alive or state == "stopping"
        self.buttons["Save"].disabled = trainer.run.folder is None
        if (now := (len(trainer.history.samples), trainer.history.net, len(trainer.run.recorder.rows))) != self._shown:
            self._shown = now
            self.speed.value = pictures.speed_chart(trainer.run, trainer.history)
            self.stages.value = pictures.stage_bar(trainer.history)
            self.scores.value = pictures.score_chart(trainer.run)
        changes = [(each.update, each.undone, each.measured) for each in pictures.changes_of(trainer.run)]
        if (known := (changes, trainer.values)) != self._known:
            self._known = known
            table = pictures.change_table(trainer.run)
            self.table.value = f"<div style='overflow-x: auto'>{table._repr_html_()}</div>" if table.rows else ""
            if not self._futures:
                for switch in self.switches.values():
                    switch.show(trainer.run, trainer.values)

    def _answer(self) -> None:
        """Show what came of orders: a refusal, or the failure of training."""
        done = [each for each in self._futures if each.done()]
        self._futures = [each for each in self._futures if each not in done]
        if done:
            self._known = None
        errors = [self.trainer.error if not self.trainer.alive else None, *(each.exception() for each in done)]
        for error in filter(None, errors):
            self.status.value = f"{ALERT}{markup(type(error).__name__)}: {markup(error)}</b>"

    def show(self) -> None:
        """Display the panel, and under it a copy for pages without a kernel; both follow the run."""
        display(self)
        self._handle = display(HTML(HIDDEN + pictures.whole(self.trainer)), display_id=True)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no notebook: the panel shows the run as it is
            return
        self._task = loop.create_task(_follow(ref(self)))

    async def play(self, script: Script) -> Table:
        """Train with the changes of a script, see ``Trainer.play``; return what each did.

        Raises:
            UavlabError: The script is none, a change is refused, or training failed.
        """
        self.trainer.play(script)
        while self.trainer.alive:
            await asyncio.sleep(0.1)
        self.trainer.join()
        self.tick()
        return pictures.change_table(self.trainer.run)

    def tick(self) -> None:
        """Follow the run; called at a bounded rate."""
        self.refresh()
        self._ticks += 1
        due = self._ticks % LAST_EVERY == 0 or not self.trainer.alive
        present = self._shown, self._known, self.trainer.state
        if self._handle is not None and due and present != self._copied:
            self._copied = present
            self._handle.update(HTML(HIDDEN + pictures.whole(self.trainer)))


async def _follow(panel: "ref[LivePanel]") -> None:
    while (each := panel()) is not None:
        each.tick()
        del each
        await asyncio.sleep(EVERY)


def panel(run: Run | str | Path) -> LivePanel:
    """Show the panel of a run in a notebook, and return it.

    Args:
        run: A run, which may train already, or the folder of one: after a restart of the kernel its training goes on
            from its newest checkpoint when somebody presses Start.

    Raises:
        FileError: The folder is no run.
        ConfigError: Another process trains the run.
    """
    trainer = trainer_of(run) if isinstance(run, Run) else trainer_in(run_folder(run))
    if trainer.run.rt.monitor is None:
        with suppress(UavlabError):  # such as memory that does not suffice: without it, stages are not shown
            trainer.order(lambda: trainer.run.change("monitor", monitor=True)).result()
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
