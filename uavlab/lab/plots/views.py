"""One figure with several views and rows of buttons, one row per choice, which works with and without a kernel."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab.core.errors import ConfigError
from uavlab.lab.plots.style import BUTTON, BUTTON_TEXT, TEXT, words

ROOM = 34  # height of a row of buttons (px)
GAP, TITLES = 6, 24  # between the buttons and the plot, and height of titles of its parts (px)
LETTER, PAD = 6.5, 26  # width of a letter on a button, and of the button around its label (px)
LINE = 400  # width of the buttons side by side (px): what a page 700 px wide leaves beside long labels
COMMON = ("template", "updatemenus", "sliders")
HEIGHT, TOP = 450, 100  # of a plotly figure that sets neither (px)

State = tuple[str | float, ...]  # a value of each choice


def views(draw: Callable[..., go.Figure | None], **choices: Sequence[str | float]) -> go.Figure:
    """Return one figure that shows ``draw`` of the first value of each choice, and every combination at a click.

    Each choice has a row of buttons above the plot; a long row continues below. The buttons are a part of the figure,
    so they also work in a saved notebook and on a page without a kernel. Where ``draw`` returns None, or the same
    figure for several values, a row has no button for them. If the values of the other rows do not go with a new one,
    those below it change to the first that do. For example::

        views(draw, show=["speed-up", "time"], agents=[2, 4])  # draw(show="speed-up", agents=2) and three more

    Raises:
        ConfigError: There is nothing to choose from, or ``draw`` returns an animated figure.
    """
    each, shown = _distinct(draw, choices)
    if not each or any(figure.frames for figure in each):
        raise ConfigError("views: got no values to choose from, or an animated figure; expected still figures.")
    rows = {
        (place, state[:place] + state[place + 1 :]): _targets(shown, list(choices.values())[place], state, place)
        for state in shown
        for place in range(len(choices))
    }
    names = list(choices)
    lines = {key: _lines(names[key[0]], targets) for key, targets in rows.items() if len(targets) > 1}
    depth = [
        max((len(each) for key, each in lines.items() if key[0] == place), default=0) for place in range(len(names))
    ]
    plain = [figure.layout.to_plotly_json() for figure in each]
    top = max(_top(layout) for layout in plain)  # of every view, so that the buttons stay where they are
    layouts = [_with_room(layout, ROOM * sum(depth) + top - _top(layout)) for layout in plain]
    joint = go.Figure([trace for figure in each for trace in figure.data], layouts[0])
    owners = [number for number, figure in enumerate(each) for _ in figure.data]
    for trace, visible in zip(joint.data, _visible(each, owners, 0), strict=True):
        trace.visible = visible
    lift = TITLES if any(_has_titles_above(layout) for layout in plain) else 0
    properties = [key for key in dict.fromkeys(itertools.chain(*layouts)) if key not in COMMON]
    menus = [(key, line) for key, own in lines.items() for line in range(len(own))]

    def active(state: State, key: Any, line: int) -> int | None:
        """Return the number of the pressed button in a line of a row, -1 for none, None where the row is hidden."""
        place, others = key
        if state[:place] + state[place + 1 :] != others:
            return None
        figures = [shown[target] for _, target in lines[key][line]]
        return figures.index(shown[state]) if shown[state] in figures else -1

    def changes(state: State) -> list[dict[str, Any]]:
        layout = {key: layouts[shown[state]].get(key, _absent(key)) for key in properties}
        layout |= {"autosize": True, "width": None}  # a new height alone would fix the width
        for number, menu in enumerate(menus):
            pressed = active(state, *menu)
            layout[f"updatemenus[{number}].visible"] = pressed is not None
            if pressed is not None:
                layout[f"updatemenus[{number}].active"] = pressed
        return [{"visible": _visible(each, owners, shown[state])}, layout]

    first = next(iter(shown))
    drawn = []
    for key, line in menus:
        buttons = [{"label": label, "method": "update", "args": changes(target)} for label, target in lines[key][line]]
        below = sum(depth[key[0] :]) - line - 1  # lines between this one and the plot
        drawn.append(_menu(buttons, active(first, key, line), lift + ROOM * below))
    return joint.update_layout(updatemenus=drawn) if drawn else joint


def still_views(figure: go.Figure) -> list[go.Figure]:
    """Return each view of a figure as a figure of its own, without buttons; a figure without views is its only one."""
    layout = figure.layout.to_plotly_json()
    menus = layout.pop("updatemenus", ())
    changes = [button["args"] for menu in menus for button in menu["buttons"] if button["method"] == "update"]
    if not changes:
        return [figure]
    heights = [menu["pad"]["b"] for menu in menus]
    room = ROOM + max(heights) - min(heights)
    stills: dict[str, tuple[tuple[int, ...], go.Figure]] = {}
    for style, changed in changes:
        own = tuple(number for number, visible in enumerate(style["visible"]) if visible)
        fixed = {key: value for key, value in changed.items() if not key.startswith("updatemenus")}
        whole = {key: value for key, value in {**layout, **fixed}.items() if value is not None}
        still = go.Figure([figure.data[number] for number in own], _with_room(whole, -room))
        still.update_traces(visible=True)
        stills.setdefault(still.to_json(), (own, still))
    return [still for _, still in sorted(stills.values(), key=lambda each: each[0])]


def _distinct(
    draw: Callable[..., go.Figure | None], choices: Mapping[str, Sequence[str | float]]
) -> tuple[list[go.Figure], dict[State, int]]:
    """Draw every combination; return the figures that differ, and the number of the figure of each combination."""
    numbers: dict[str, int] = {}
    each: list[go.Figure] = []
    shown: dict[State, int] = {}
    for state in itertools.product(*choices.values()):
        if (figure := draw(**dict(zip(choices, state, strict=True)))) is None:
            continue
        shown[state] = numbers.setdefault(figure.to_json(), len(numbers))
        if len(numbers) > len(each):
            each.append(figure)
    return each, shown


def _targets(
    shown: Mapping[State, int], values: Sequence[str | float], state: State, place: int
) -> list[tuple[str | float, State]]:
    """Return the values of the choice at ``place`` that lead to figures that differ, each with where it leads."""
    targets: dict[int, tuple[str | float, State]] = {}
    for value in values:
        head = (*state[:place], value)
        possible = [other for other in shown if other[: place + 1] == head]
        if possible:
            exact = head + state[place + 1 :]
            target = exact if exact in shown else possible[0]
            targets.setdefault(shown[target], (value, target))
    return list(targets.values())


def _lines(name: str, targets: Sequence[tuple[str | float, State]]) -> list[list[tuple[str, State]]]:
    """Split a row of buttons into lines that fit a narrow page; numbers get the name of their choice."""
    lines: list[list[tuple[str, State]]] = [[]]
    width = 0.0
    for value, target in targets:
        label = words(value) if isinstance(value, str) else f"{words(name)} {value:g}"
        width += PAD + LETTER * len(label)
        if width > LINE and lines[-1]:
            width = PAD + LETTER * len(label)
            lines.append([])
        lines[-1].append((label, target))
    return lines


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


def _visible(figures: Sequence[go.Figure], owners: Sequence[int], chosen: int) -> list[Any]:
    """Return what each trace's ``visible`` is while a figure is chosen; its own traces stay as they were."""
    own = [True if trace.visible is None else trace.visible for trace in figures[chosen].data]
    return [own.pop(0) if owner == chosen else False for owner in owners]


def _menu(buttons: Sequence[Any], pressed: int | None, below: float) -> dict[str, Any]:
    """Return a line of buttons above the left end of the plot, with room ``below`` (px) for further lines."""
    return {
        "type": "buttons",
        "direction": "right",
        "buttons": list(buttons),
        "visible": pressed is not None,
        "active": -1 if pressed is None else pressed,
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
