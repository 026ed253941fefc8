"""A control for each setting that can change while a run trains: what it claims, and why a value cannot be used."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin

import ipywidgets as widgets

from uavlab.core.registry import Resume
from uavlab.core.text import markup
from uavlab.experiment.change import refusal
from uavlab.experiment.run import Run
from uavlab.experiment.settings import Setting, settings_of
from uavlab.runtime.toggles import TOGGLES, Toggles
from uavlab_lab.live.pictures import EQUAL

Order = Callable[[str, Any], None]
FIRST = ("precision", "compile", "update", "batch", "worlds", "acting", "adam", "lr", "critic_lr", "updates")
"""The order of controls; other toggles follow, and settings that a run lacks are left out."""


def changeable(run: Run) -> list[Setting]:
    """Return the settings of a run that can change and have an effect: toggles, sizes and rates."""
    parts = (type(run.config.source), type(run.config.learner), type(run.config.run))
    known = {each.name: each for part in parts for each in settings_of(part) if each.name in FIRST}
    known |= {each.name: each for each in settings_of(Toggles)}
    names = [name for name in dict.fromkeys((*FIRST, *known)) if name in known]
    stuck = {name for name in names if known[name].resume is Resume.NO} | {*run.config.task.inapplicable}
    return [known[name] for name in names if name not in stuck]


class Switch:
    """The control of one setting, and a note under it.

    Attributes:
        box: Both.
        control: A dropdown for names, a field for a number.
    """

    def __init__(self, setting: Setting, run: Run, order: Order) -> None:
        """Show the value of a run; ``order`` is called with the name and a new value."""
        self.setting, self.order, self.quiet = setting, order, 0  # the thread that shows a value
        self.toggle, self.note = TOGGLES.get(setting.name), widgets.HTML()
        self.choices = self.toggle.choices if self.toggle is not None else ()
        value = run.config.values[setting.name]
        look = {"description": setting.name, "style": {"description_width": "7.5em"}, "layout": {"width": "auto"}}
        tip = {"tooltip": setting.about, **look}
        if self.choices:
            self.control: Any = widgets.Dropdown(options=list(self.choices), value=value, **tip)
        elif _is_whole(setting.kind):
            self.control = widgets.IntText(value=value or 0, **tip)
        else:
            self.control = widgets.FloatText(value=value or 0.0, **tip)
        self.control.observe(self._chosen, "value")
        self.show(run)
        self.box = widgets.VBox([self.control, self.note], layout={"margin": "0 0 8px 0"})

    def show(self, run: Run, values: Mapping[str, Any] | None = None) -> None:
        """Show the value of a run as it is now, or that among ``values``, and which choices cannot be used."""
        value = (values or run.config.values)[self.setting.name]
        each = {other: refusal(run, **{self.setting.name: other}) for other in self.choices if other != value}
        reasons = {other: why.partition(": ")[2].rstrip(".") or why for other, why in each.items() if why}
        self.quiet = threading.get_ident()
        try:
            usable = tuple(each for each in self.choices if each not in reasons)
            if self.choices and tuple(self.control.options) != usable:
                self.control.options = usable
            if value is not None and self.control.value != value:
                self.control.value = value
        finally:
            self.quiet = 0
        parts = [self._about(), *(f"not {other}: {why}" for other, why in reasons.items())]
        self.note.value = f"<small style='line-height: 1.3; display: block'>{'<br>'.join(map(markup, parts))}</small>"

    def _about(self) -> str:
        if self.toggle is None:
            return self.setting.about.partition(".")[0].partition(";")[0]
        claim = "" if self.toggle.claim == "none stated" else f"claimed: {self.toggle.claim}; "
        return f"{claim}{EQUAL[self.toggle.equality]}"

    def _chosen(self, change: Mapping[str, Any]) -> None:
        if self.quiet != threading.get_ident():
            self.order(self.setting.name, change["new"])


def _is_whole(kind: Any) -> bool:
    """Return whether an annotated type, or one of a union, is that of whole numbers."""
    return kind is int or any(_is_whole(each) for each in get_args(kind) if get_origin(kind) or each is int)
