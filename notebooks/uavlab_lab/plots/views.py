"""One figure with several views and rows of buttons, one row per choice, which works with and without a kernel."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from uavlab.core.errors import ConfigError
from uavlab_lab.plots.style import BUTTON, BUTTON_TEXT, TEXT, words

ROOM = 34  # height of a row of buttons (px)
GAP, TITLES = 6, 24  # between the buttons and the plot, and height of titles of its parts (px)
LETTER, PAD = 6.5, 26  # width of a letter on a button, and of the button around its label (px)
LINE = 400  # width of the buttons side by side (px): what a page 700 px wide leaves beside long labels
COMMON = ("template", "updatemenus", "sliders")
HEIGHT, TOP = 450, 100  # of a plotly figure that sets neither (px)

State = tuple[str | float, ...]  # a value of each choice


class Line(NamedTuple):
    """Buttons side by side: values of one choice, each with where it leads, for one state of all other choices."""

    place: int  # of the choice among all
    others: State
    buttons: list[tuple[str, State]]
    below: int  # number of lines between this one and the plot


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
    each, numbers = _distinct(draw, choices)
    if not each or any(figure.frames for figure in each):
        raise ConfigError("views: got no values to choose from, or an animated figure; expected still figures.")
    lines = _lines(numbers, choices)
    plain = [figure.layout.to_plotly_json() for figure in each]
    top = max(map(_top, plain)) + ROOM * max((1 + line.below for line in lines), default=0)
    layouts = [_with_room(layout, top - _top(layout)) for layout in plain]  # buttons stay where they are
    keys = [key for key in dict.fromkeys(itertools.chain(*layouts)) if key not in COMMON]
    joint = go.Figure([trace for figure in each for trace in figure.data], layouts[0])
    visible = [_visible(each, number) for number in range(len(each))]
    for trace, own in zip(joint.data, visible[0], strict=True):
        trace.visible = own

    def changes(state: State) -> list[dict[str, Any]]:
        number = numbers[state]
        layout = {key: layouts[number].get(key, _absent(key)) for key in keys}
        layout |= {"autosize": True, "width": None}  # a new height alone would fix the width
        return [{"visible": visible[number]}, layout | _pressed(lines, numbers, state)]

    first, lift = next(iter(numbers)), TITLES * any(map(_has_titles_above, plain))
    menus = [
        _menu(
            [{"label": label, "method": "update", "args": changes(target)} for label, target in line.buttons],
            _active(line, numbers, first),
            lift + ROOM * line.below,
        )
        for line in lines
    ]
    return joint.update_layout(updatemenus=menus) if menus else joint


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
    texts: dict[str, int] = {}
    each: list[go.Figure] = []
    numbers: dict[State, int] = {}
    for state in itertools.product(*choices.values()):
        if (figure := draw(**dict(zip(choices, state, strict=True)))) is None:
            continue
        numbers[state] = texts.setdefault(figure.to_json(), len(texts))
        if len(texts) > len(each):
            each.append(figure)
    return each, numbers


def _lines(numbers: Mapping[State, int], choices: Mapping[str, Sequence[str | float]]) -> list[Line]:
    """Return the lines of all rows of buttons; a row has two buttons or more."""
    rows = {}
    for state, (place, (name, values)) in itertools.product(numbers, enumerate(choices.items())):
        targets = _targets(numbers, values, state, place)
        if len(targets) > 1:
            rows[place, _others(state, place)] = _split(name, targets)
    depth = [
        max((len(row) for (at, _), row in rows.items() if at == place), default=0) for place in range(len(choices))
    ]
    return [
        Line(place, others, buttons, sum(depth[place:]) - number - 1)
        for (place, others), row in rows.items()
        for number, buttons in enumerate(row)
    ]


def _others(state: State, place: int) -> State:
    return state[:place] + state[place + 1 :]


def _active(line: Line, numbers: Mapping[State, int], state: State) -> int | None:
    """Return the number of the pressed button, -1 for none, None where the line is hidden."""
    if _others(state, line.place) != line.others:
        return None
    figures = [numbers[target] for _, target in line.buttons]
    return figures.index(numbers[state]) if numbers[state] in figures else -1


def _pressed(lines: Sequence[Line], numbers: Mapping[State, int], state: State) -> dict[str, Any]:
    """Return the changes of the layout that show the buttons of a state."""
    layout: dict[str, Any] = {}
    for number, line in enumerate(lines):
        button = _active(line, numbers, state)
        layout[f"updatemenus[{number}].visible"] = button is not None
        layout |= {} if button is None else {f"updatemenus[{number}].active": button}
    return layout


def _targets(
    numbers: Mapping[State, int], values: Sequence[str | float], state: State, place: int
) -> list[tuple[str | float, State]]:
    """Return the values of the choice at ``place`` that lead to figures that differ, each with where it leads."""
    targets: dict[int, tuple[str | float, State]] = {}
    for value in values:
        head = (*state[:place], value)
        possible = [other for other in numbers if other[: place + 1] == head]
        if possible:
            exact = head + state[place + 1 :]
            target = exact if exact in numbers else possible[0]
            targets.setdefault(numbers[target], (value, target))
    return list(targets.values())


def _split(name: str, targets: Sequence[tuple[str | float, State]]) -> list[list[tuple[str, State]]]:
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


def _visible(figures: Sequence[go.Figure], chosen: int) -> list[Any]:
    """Return what each trace's ``visible`` is while a figure is chosen; its own traces stay as they were."""
    return [
        number == chosen and (True if trace.visible is None else trace.visible)
        for number, figure in enumerate(figures)
        for trace in figure.data
    ]


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
