"""A row of buttons over finished measurements: they choose what one live figure shows. Nothing is measured here."""

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from uavlab.lab.widgets.panel import Panel, guard

Choice = str | int | float
Choices = Mapping[str, Sequence[Choice] | Mapping[str, bool]]


class ToggleRow(Panel):
    """Buttons, a line that says what is shown, and a figure drawn again from finished rows at each click.

    Every toggle row holds a ``FigureWidget`` of 5 MB while the kernel lives: make one per notebook.

        def draw(agents: int, rungs: tuple[str, ...]) -> go.Figure: ...
        ToggleRow(draw, {"agents": [2, 4, 8], "rungs": {"loop": True, "vmap": False}}, "Update time by rung")

    Display it as the last expression of a cell.
    """

    def __init__(self, draw: Callable[..., go.Figure], choices: Choices, label: str) -> None:
        """Show the first choice of each list, and what is on in each mapping.

        Args:
            draw: Takes each choice by its name and gives a plain figure from finished rows. Of a list it receives one
                value; of a mapping the tuple of those that are on.
            choices: By name a list, of which one is chosen, or a mapping of names to whether each is on at first.
            label: What the figure shows, in words that do not differ from run to run.
        """
        self.draw, self.status = draw, widgets.HTML()
        self.buttons = {name: _buttons(name, options) for name, options in choices.items()}
        widget = go.FigureWidget(draw(**self.chosen()))
        widget._config = {**widget._config, "responsive": True}
        rows = [widgets.HBox([widgets.Label(name), *row], layout=WRAP) for name, row in self.buttons.items()]
        super().__init__([*rows, self.status, widget], widget, label)
        redraw = guard(self.status)(self._redraw)
        for button in (button for row in self.buttons.values() for button in row):
            button.observe(redraw, "value")
        self._say()

    def chosen(self) -> dict[str, Any]:
        """Give what the buttons say, by name."""
        return {name: _chosen(row) for name, row in self.buttons.items()}

    def _redraw(self, _: Any = None) -> None:
        fresh = self.draw(**self.chosen())  # may refuse: then the old figure stays
        for key in self.figure.layout.to_plotly_json().keys() - fresh.layout.to_plotly_json().keys():
            self.figure.layout[key] = None  # a browser keeps what it is not told to drop
        self.figure.data = ()
        self.figure.layout = fresh.layout
        self.figure.add_traces(fresh.data)
        self._say()

    def _say(self) -> None:
        """Repeat the state in words: buttons tell it to eyes alone."""
        parts = [
            f"{name}: {', '.join(map(str, v)) if isinstance(v, tuple) else v}" for name, v in self.chosen().items()
        ]
        self.status.value = f"<span role='status'>Shown: {html.escape(' · '.join(parts))}</span>"


WRAP = widgets.Layout(flex_flow="row wrap", align_items="center")


def _buttons(name: str, options: Sequence[Choice] | Mapping[str, bool]) -> list[Any]:
    """Make one group of buttons of which one is down, or a button of its own for each name."""
    if isinstance(options, Mapping):
        fit = widgets.Layout(width="auto")
        return [widgets.ToggleButton(value=on, description=str(each), layout=fit) for each, on in options.items()]
    pairs = [(str(option), option) for option in options]
    return [widgets.ToggleButtons(options=pairs, style={"button_width": "auto"}, tooltips=[name] * len(pairs))]


def _chosen(row: Sequence[Any]) -> Any:
    if isinstance(row[0], widgets.ToggleButtons):
        return row[0].value
    return tuple(button.description for button in row if button.value)
