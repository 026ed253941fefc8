"""The parts of a panel, and what widgets show."""

from collections.abc import Iterator
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
