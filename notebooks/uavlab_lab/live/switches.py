"""A control for each setting that can change while a run trains: what it claims, and why a value cannot be used."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_origin

import ipywidgets as widgets

from uavlab.core.registry import Resume
from uavlab.core.text import markup
from uavlab.experiment.change import refusal
from uavlab.experiment.run import Run
from uavlab.experiment.settings import Setting, settings_of
from uavlab.runtime.toggles import TOGGLES, Toggle, Toggles
from uavlab_lab.live.pictures import EQUAL

Order = Callable[[str, Any], None]
FIRST = ("precision", "compile", "update", "batch", "worlds", "acting", "adam", "lr", "critic_lr", "updates")
"""The order of controls; other toggles follow, and settings that a run lacks are left out."""


def changeable(run: Run) -> list[Setting]:
    """Return the settings of a run that have a control: all toggles, and sizes and rates that can change."""
    parts = (type(run.config.source), type(run.config.learner), type(run.config.run))
    known = {each.name: each for part in parts for each in settings_of(part)}
    known = {name: each for name, each in known.items() if name in FIRST and each.resume is not Resume.NO}
    known |= {each.name: each for each in settings_of(Toggles)}
    return [known[name] for name in dict.fromkeys((*FIRST, *known)) if name in known]


class Switch:
    """The control of one setting, and a note under it.

    Attributes:
        box: Both.
        control: A dropdown for names, a field for a number.
    """

    def __init__(self, setting: Setting, run: Run, order: Order) -> None:
        """Show the value of a run; ``order`` is called with the name and a new value."""
        self.setting, self.order, self.quiet = setting, order, 0  # the thread that shows a value
        self.toggle: Toggle | None = TOGGLES.get(setting.name)
        self.note = widgets.HTML()
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
        """Show the value of a run as it is now, or that among ``values``, and which values cannot be used."""
        value = (values or run.config.values)[self.setting.name]
        others = self.others(value)
        reasons = self.reasons(run, others)
        stuck = len(reasons) == len(others)
        self.quiet = threading.get_ident()
        try:
            if self.choices:
                usable = [each for each in self.choices if each not in reasons]
                if tuple(self.control.options) != tuple(usable):
                    self.control.options = usable
            self.control.disabled = stuck
            if value is not None and self.control.value != value:
                self.control.value = value
        finally:
            self.quiet = 0
        self.note.value = self._text(reasons, stuck)

    def others(self, value: Any) -> list[Any]:
        """Return the other values of a name; of a number one or two others, to see whether it can change."""
        if self.choices:
            return [each for each in self.choices if each != value]
        whole, number = _is_whole(self.setting.kind), value or 0
        return sorted({number + 1, max(1, number // 2)} - {number}) if whole else [(number or 1e-3) / 2]

    def reasons(self, run: Run, others: Sequence[Any]) -> dict[Any, str]:
        """Return why values cannot be chosen now, by value; of a number, only where it cannot change at all."""
        if reason := run.config.task.inapplicable.get(self.setting.name):
            return dict.fromkeys(others, f"no effect: {reason}")
        if self.setting.resume is Resume.NO:
            return dict.fromkeys(others, "it cannot change within a run; start a new one for it")
        each = {other: refusal(run, **{self.setting.name: other}) for other in others}
        if not self.choices and not all(each.values()):
            return {}
        return {other: _short(why) for other, why in each.items() if why}

    def _text(self, reasons: Mapping[Any, str], stuck: bool) -> str:
        parts = []
        if self.toggle is not None:
            claim = "" if self.toggle.claim == "none stated" else f"claimed: {self.toggle.claim}; "
            parts.append(f"{claim}{EQUAL[self.toggle.equality]}")
        else:
            parts.append(self.setting.about.partition(".")[0].partition(";")[0])
        for why in dict.fromkeys(reasons.values()):
            values = ", ".join(str(each) for each, other in reasons.items() if other == why)
            parts.append(why if stuck and len(set(reasons.values())) == 1 else f"not {values}: {why}")
        return f"<small style='line-height: 1.3; display: block'>{'<br>'.join(map(markup, parts))}</small>"

    def _chosen(self, change: Mapping[str, Any]) -> None:
        if self.quiet != threading.get_ident():
            self.order(self.setting.name, change["new"])


def _is_whole(kind: Any) -> bool:
    """Return whether an annotated type, or one of a union, is that of whole numbers."""
    return kind is int or any(_is_whole(each) for each in get_args(kind) if get_origin(kind) or each is int)


def _short(reason: str) -> str:
    """Return the reason of a refusal without what a control shows already."""
    return reason.partition(": ")[2].rstrip(".") or reason
