"""What people do at widgets, at random, and what widgets show."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import ipywidgets as widgets

CONTROLS = (widgets.Button, widgets.Text, widgets.Dropdown, widgets.SelectMultiple)


def parts(widget: Any) -> Iterator[Any]:
    """Yield a widget and all that it holds."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from parts(child)


def controls(panel: Any) -> list[Any]:
    """Return what people can use in a panel as it is now."""
    return [each for each in parts(panel) if isinstance(each, CONTROLS)]


def html_of(panel: Any) -> str:
    """Return the HTML of all parts of a panel."""
    return "\n".join(each.value for each in parts(panel) if isinstance(each, widgets.HTML))


def play(panel: Any, seed: int, words: Sequence[str], events: int = 6) -> None:
    """Press, choose and type at random; an exception of a callback passes on, as it does nowhere in a notebook."""
    dice = random.Random(seed)
    for _ in range(events):
        control = dice.choice(controls(panel))
        if isinstance(control, widgets.Button):
            control.click()
        elif isinstance(control, widgets.Text):
            control.value = dice.choice([*words, ""])
        elif isinstance(control, widgets.SelectMultiple):
            control.index = tuple(n for n in range(len(control.options)) if dice.random() < 0.5)
        elif control.options:
            control.index = dice.randrange(len(control.options))
