"""One figure with several views and a button for each, which works with and without a kernel."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab.core.errors import ConfigError
from uavlab.lab.plots.style import CLEAR, GRID, TEXT

ROW = 4  # views that have buttons side by side; more are a list that unfolds
ROOM = 34  # height of the buttons (px)
LIGHT = "#eef1f6"
COMMON = ("template", "height", "margin", "updatemenus", "sliders")


def views(draw: Callable[..., go.Figure], **choices: Sequence[str | float]) -> go.Figure:
    """Return one figure that shows ``draw`` of the first value of each choice, and every combination at a click.

    The buttons are a part of the figure, so they also work in a saved notebook and on a page without a kernel.

        views(draw, show=["speed-up", "time"], agents=[2, 4])  # draw(show="speed-up", agents=2) and three more

    Raises:
        ConfigError: There is nothing to choose from, or ``draw`` returns an animated figure.
    """
    combined = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    each = [draw(**chosen) for chosen in combined]
    if not each or any(figure.frames for figure in each):
        raise ConfigError("views: got no values to choose from, or an animated figure; expected still figures.")
    layouts = [figure.layout.to_plotly_json() for figure in each]
    height = max(layout.get("height", 450) for layout in layouts) + ROOM
    joint = go.Figure([trace for figure in each for trace in figure.data], {**layouts[0], "height": height})
    joint.update_layout(margin={"t": ROOM + max(figure.layout.margin.t or 0 for figure in each)})
    owners = [number for number, figure in enumerate(each) for _ in figure.data]
    for trace, shown in zip(joint.data, _visible(each, owners, 0), strict=True):
        trace.visible = shown
    properties = [key for key in dict.fromkeys(itertools.chain(*layouts)) if key not in COMMON]
    buttons = [
        {
            "label": _label({name: value for name, value in chosen.items() if len(choices[name]) > 1}),
            "method": "update",
            "args": [{"visible": _visible(each, owners, number)}, {key: layout.get(key) for key in properties}],
        }
        for number, (chosen, layout) in enumerate(zip(combined, layouts, strict=True))
    ]
    return joint.update_layout(updatemenus=[_menu(buttons)]) if len(each) > 1 else joint


def still_views(figure: go.Figure) -> list[go.Figure]:
    """Return each view of a figure as a figure of its own, without buttons; a figure without views is its only one."""
    layout = figure.layout.to_plotly_json()
    menus = layout.pop("updatemenus", ())
    buttons = [button for menu in menus for button in menu["buttons"] if button["method"] == "update"]
    if not buttons:
        return [figure]
    stills = []
    for button in buttons:
        shown, changes = button["args"]
        traces = [trace for trace, visible in zip(figure.data, shown["visible"], strict=True) if visible]
        own = {key: value for key, value in {**layout, **changes}.items() if value is not None}
        margin = {**layout["margin"], "t": layout["margin"]["t"] - ROOM}
        stills.append(go.Figure(traces, {**own, "height": layout["height"] - ROOM, "margin": margin}))
        stills[-1].update_traces(visible=True)
    return stills


def _visible(figures: Sequence[go.Figure], owners: Sequence[int], chosen: int) -> list[Any]:
    """Return what each trace's ``visible`` is while a figure is chosen; its own traces stay as they were."""
    own = [True if trace.visible is None else trace.visible for trace in figures[chosen].data]
    return [own.pop(0) if owner == chosen else False for owner in owners]


def _label(chosen: Mapping[str, str | float]) -> str:
    """Return a choice in words, with the names of numbers: ``time, agents 2``."""
    return ", ".join(value if isinstance(value, str) else f"{name} {value:g}" for name, value in chosen.items())


def _menu(buttons: Sequence[Any]) -> dict[str, Any]:
    """Return buttons in a row, or a list that unfolds, above the top left corner of the plot."""
    few = len(buttons) <= ROW
    return {
        "type": "buttons" if few else "dropdown",
        "direction": "right" if few else "down",
        "buttons": list(buttons),
        "active": 0,
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        "pad": {"b": 6},
        "bgcolor": CLEAR if few else LIGHT,  # a list lies over the plot
        "bordercolor": GRID,
        "font": {"color": TEXT, "size": 12},
        "showactive": True,
    }
