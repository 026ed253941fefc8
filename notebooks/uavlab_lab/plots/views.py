"""One figure with several views and a button for each, which works with and without a kernel."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab.core.errors import ConfigError
from uavlab_lab.plots.style import BUTTON, BUTTON_TEXT, TEXT, words

ROOM = 34  # height of a row of buttons (px)
GAP, TITLES = 6, 24  # between the buttons and the plot, and height of titles of its parts (px)
LETTER, PAD = 6.5, 26  # width of a letter on a button, and of the button around its label (px)
LINE = 400  # width of the buttons side by side (px): what a page 700 px wide leaves beside long labels
COMMON = ("template", "updatemenus", "sliders")
HEIGHT, TOP = 450, 100  # of a plotly figure that sets neither (px)


def views(draw: Callable[..., go.Figure | None], **choices: Sequence[str | float]) -> go.Figure:
    """Return one figure that shows ``draw`` of the first value of each choice, and every combination at a click.

    The buttons stand above the plot, in several rows if need be. They are a part of the figure, so they also work in a
    saved notebook and on a page without a kernel. A combination for which ``draw`` returns None, or the same figure as
    for an earlier one, has no button. For example::

        views(draw, show=["speed-up", "time"], agents=[2, 4])  # draw(show="speed-up", agents=2) and three more

    Raises:
        ConfigError: There is nothing to choose from, or ``draw`` returns an animated figure.
    """
    distinct: dict[str, tuple[str, go.Figure]] = {}
    for values in itertools.product(*choices.values()):
        state = dict(zip(choices, values, strict=True))
        if (figure := draw(**state)) is not None:
            distinct.setdefault(figure.to_json(), (_label(state, choices), figure))
    labels, figures = [label for label, _ in distinct.values()], [figure for _, figure in distinct.values()]
    if not figures or any(figure.frames for figure in figures):
        raise ConfigError("views: got no values to choose from, or an animated figure; expected still figures.")
    lines = _lines(labels) if len(labels) > 1 else []
    plain = [figure.layout.to_plotly_json() for figure in figures]
    top = max(map(_top, plain)) + ROOM * len(lines)
    layouts = [_with_room(layout, top - _top(layout)) for layout in plain]  # buttons stay where they are
    keys = [key for key in dict.fromkeys(itertools.chain(*layouts)) if key not in COMMON]
    visible = [_visible(figures, number) for number in range(len(figures))]
    joint = go.Figure([trace for figure in figures for trace in figure.data], layouts[0])
    for trace, own in zip(joint.data, visible[0], strict=True):
        trace.visible = own

    def changes(number: int) -> list[dict[str, Any]]:
        layout = {key: layouts[number].get(key, _absent(key)) for key in keys}
        layout |= {"autosize": True, "width": None}  # a new height alone would fix the width
        for at, line in enumerate(lines):
            layout |= {f"updatemenus[{at}].visible": True, f"updatemenus[{at}].active": _active(line, number)}
        return [{"visible": visible[number]}, layout]

    lift = TITLES * any(map(_has_titles_above, plain))
    menus = [
        _menu(
            [{"label": labels[number], "method": "update", "args": changes(number)} for number in line],
            _active(line, 0),
            lift + ROOM * (len(lines) - 1 - at),
        )
        for at, line in enumerate(lines)
    ]
    return joint.update_layout(updatemenus=menus) if menus else joint


def still_views(figure: go.Figure) -> list[go.Figure]:
    """Return each view of a figure as a figure of its own, without buttons; a figure without views is its only one."""
    layout = figure.layout.to_plotly_json()
    menus = layout.pop("updatemenus", ())
    changes = [button["args"] for menu in menus for button in menu["buttons"] if button["method"] == "update"]
    if not changes:
        return [figure]
    stills = []
    for style, changed in changes:
        fixed = {key: value for key, value in changed.items() if not key.startswith("updatemenus")}
        whole = {key: value for key, value in {**layout, **fixed}.items() if value is not None}
        shown = [trace for trace, visible in zip(figure.data, style["visible"], strict=True) if visible]
        stills.append(go.Figure(shown, _with_room(whole, -ROOM * len(menus))).update_traces(visible=True))
    return stills


def _label(state: Mapping[str, str | float], choices: Mapping[str, Sequence[Any]]) -> str:
    """Return the label of a button; numbers get the name of their choice, and a choice of one value has no word."""
    several = {name: value for name, value in state.items() if len(choices[name]) > 1}
    return ", ".join(
        words(value) if isinstance(value, str) else f"{words(name)} {value:g}" for name, value in several.items()
    )


def _lines(labels: Sequence[str]) -> list[list[int]]:
    """Return the numbers of the labels, in lines that fit a narrow page."""
    lines: list[list[int]] = []
    width = 0.0
    for number, label in enumerate(labels):
        width += PAD + LETTER * len(label)
        if width > LINE or not lines:
            width = PAD + LETTER * len(label)
            lines.append([])
        lines[-1].append(number)
    return lines


def _active(line: Sequence[int], number: int) -> int:
    """Return the place of a button in a line, -1 where it stands in another one."""
    return line.index(number) if number in line else -1


def _with_room(layout: dict[str, Any], room: float) -> dict[str, Any]:
    """Return a layout with more room above the plot (px)."""
    margin = {**layout.get("margin", {}), "t": _top(layout) + room}
    return {**layout, "height": layout.get("height", HEIGHT) + room, "margin": margin}


def _absent(key: str) -> dict[str, bool] | None:
    """Return what hides a part of the layout that a view has not; plotly would draw an axis that is only reset."""
    return {"visible": False} if key.startswith(("xaxis", "yaxis")) else None


def _has_titles_above(layout: Mapping[str, Any]) -> bool:
    """Return whether parts of the plot have titles above its upper edge."""
    return any(note.get("yref") == "paper" and note.get("y", 0) > 0.99 for note in layout.get("annotations", ()))


def _top(layout: Mapping[str, Any]) -> float:
    return layout.get("margin", {}).get("t", TOP)


def _visible(figures: Sequence[go.Figure], chosen: int) -> list[Any]:
    """Return what each trace's ``visible`` is while a figure is chosen; its own traces stay as they were."""
    return [
        number == chosen and (True if trace.visible is None else trace.visible)
        for number, figure in enumerate(figures)
        for trace in figure.data
    ]


def _menu(buttons: Sequence[Any], pressed: int, below: float) -> dict[str, Any]:
    """Return a line of buttons above the left end of the plot, with room ``below`` (px) for further lines."""
    return {
        "type": "buttons",
        "direction": "right",
        "buttons": list(buttons),
        "visible": True,
        "active": pressed,
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        "pad": {"b": GAP + below},
        "bgcolor": BUTTON,
        "bordercolor": TEXT,
        "font": {"color": BUTTON_TEXT, "size": 12},
        "showactive": True,
    }
