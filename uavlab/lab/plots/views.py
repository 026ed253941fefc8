"""One figure with several views and a button for each, which works with and without a kernel."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab.core.errors import ConfigError
from uavlab.lab.plots.style import CLEAR, GRID, TEXT, plain

ROW = 4  # views that have buttons side by side; more are a list that unfolds
ROOM = 34  # height of the buttons (px)
LIGHT = "#eef1f6"
COMMON = ("template", "updatemenus", "sliders")
HEIGHT, TOP = 450, 100  # of a plotly figure that sets neither (px)


def views(draw: Callable[..., go.Figure | None], **choices: Sequence[str | float]) -> go.Figure:
    """Return one figure that shows ``draw`` of the first value of each choice, and every combination at a click.

    The buttons are a part of the figure, so they also work in a saved notebook and on a page without a kernel. A
    combination for which ``draw`` returns None has no button.

        views(draw, show=["speed-up", "time"], agents=[2, 4])  # draw(show="speed-up", agents=2) and three more

    Raises:
        ConfigError: There is nothing to choose from, or ``draw`` returns an animated figure.
    """
    combined = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    pairs = [(chosen, figure) for chosen in combined if (figure := draw(**chosen)) is not None]
    each = [figure for _, figure in pairs]
    if not each or any(figure.frames for figure in each):
        raise ConfigError("views: got no values to choose from, or an animated figure; expected still figures.")
    layouts = [_with_room(figure.layout.to_plotly_json(), ROOM) for figure in each]
    joint = go.Figure([trace for figure in each for trace in figure.data], layouts[0])
    owners = [number for number, figure in enumerate(each) for _ in figure.data]
    for trace, visible in zip(joint.data, _visible(each, owners, 0), strict=True):
        trace.visible = visible
    properties = [key for key in dict.fromkeys(itertools.chain(*layouts)) if key not in COMMON]
    buttons = [
        {
            "label": _label({name: value for name, value in chosen.items() if len(choices[name]) > 1}),
            "method": "update",
            "args": [{"visible": _visible(each, owners, number)}, {key: layout.get(key) for key in properties}],
        }
        for number, ((chosen, _), layout) in enumerate(zip(pairs, layouts, strict=True))
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
        style, changes = button["args"]
        traces = [trace for trace, visible in zip(figure.data, style["visible"], strict=True) if visible]
        own = {key: value for key, value in {**layout, **changes}.items() if value is not None}
        stills.append(go.Figure(traces, _with_room(own, -ROOM)))
        stills[-1].update_traces(visible=True)
    return stills


def _with_room(layout: dict[str, Any], room: float) -> dict[str, Any]:
    """Return a layout with more room above the plot (px)."""
    margin = layout.get("margin", {})
    return {
        **layout,
        "height": layout.get("height", HEIGHT) + room,
        "margin": {**margin, "t": margin.get("t", TOP) + room},
    }


def _visible(figures: Sequence[go.Figure], owners: Sequence[int], chosen: int) -> list[Any]:
    """Return what each trace's ``visible`` is while a figure is chosen; its own traces stay as they were."""
    own = [True if trace.visible is None else trace.visible for trace in figures[chosen].data]
    return [own.pop(0) if owner == chosen else False for owner in owners]


def _label(chosen: Mapping[str, str | float]) -> str:
    """Return a choice in words, with the names of numbers: ``time, agents 2``."""
    texts = (value if isinstance(value, str) else f"{name} {value:g}" for name, value in chosen.items())
    return plain(", ".join(texts))


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
