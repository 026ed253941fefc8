"""Animated flights: a picture of an environment is a function registered by ``scene`` with the environment's class."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from uavlab.core.errors import ConfigError
from uavlab.core.registry import SCENES
from uavlab_lab.plots.style import BUTTON, BUTTON_TEXT, TEXT

FRAMES = 40  # frames of an animation at most; longer flights skip steps
PLAY_MS = 120  # milliseconds between frames
AXIS, CONTROLS = 58, 190  # height of an axis below the plot, and with slider, buttons and legend (px)
BUTTONS = 140  # width of Play and Pause, left of the slider (px)


def animate(env: Any, states: Sequence[Any]) -> go.Figure:
    """Animate one flight with the scene of its environment; the scene of ``object`` serves those without one."""
    figure = next(SCENES[kind] for kind in type(env).__mro__ if kind in SCENES)(env, states)
    if not isinstance(figure, go.Figure):
        name, got = type(env).__name__, type(figure).__name__
        raise ConfigError(f"scene of {name}: got a {got}; expected a plotly figure; return it.")
    return figure


def freeze(figure: go.Figure, share: float = 0.55) -> go.Figure:
    """Return one moment of an animated flight, after ``share`` of its time, without the controls."""
    return stills(figure)[int(share * max(len(figure.frames) - 1, 0))]


def stills(figure: go.Figure) -> list[go.Figure]:
    """Return all moments of an animated flight, without the controls; a figure without frames is its only one."""
    controls = ("updatemenus", "sliders")
    layout = {key: value for key, value in figure.layout.to_plotly_json().items() if key not in controls}
    moments = []
    for frame in figure.frames or [go.Frame(data=[])]:
        still = go.Figure(data=figure.data, layout=layout)
        places = range(len(frame.data)) if frame.traces is None else frame.traces
        for index, trace in zip(places, frame.data, strict=True):
            still.data[index].update(trace)
        moments.append(still.update_layout(frame.layout, margin={"b": 90}))
    return moments


def select_frames(count: int, most: int = FRAMES) -> list[int]:
    """Return at most ``most`` of ``count`` indices, evenly spaced, the first and the last among them."""
    every = max(1, math.ceil((count - 1) / (most - 1)))
    indices = list(range(0, count, every))
    return indices if indices[-1] == count - 1 else [*indices, count - 1]


def add_frames(
    figure: go.Figure,
    moving: Sequence[Sequence[Any]],
    names: Sequence[str],
    first: int = 0,
    *,
    prefix: str = "time ",
    suffix: str = " s",
    pause_ms: int = PLAY_MS,
    redraw: bool = False,
) -> None:
    """Add the frames of an animation, a slider that jumps to them by name, and a play and a pause button.

    The figure holds the traces of the first frame. ``moving`` holds the moving traces of each frame, which are those
    of the figure from index ``first`` on. ``prefix`` and ``suffix`` surround the name of the frame on the slider.
    ``redraw`` draws the whole plot for each frame, which heat maps need; lines play more smoothly without it.
    """
    traces = list(range(first, first + len(moving[0])))
    figure.frames = [
        go.Frame(name=name, data=[_changes(trace) for trace in data], traces=traces)
        for name, data in zip(names, moving, strict=True)
    ]
    play = {"frame": {"duration": pause_ms, "redraw": redraw}, "transition": {"duration": 0}, "fromcurrent": True}
    pause = {"frame": {"duration": 0, "redraw": redraw}, "mode": "immediate"}
    jump = {**pause, "transition": {"duration": 0}}
    buttons = {
        "type": "buttons",
        "direction": "left",
        "showactive": False,
        "bordercolor": TEXT,
        "x": 0,
        "y": 0,
        "xanchor": "left",
        "yanchor": "top",
        "pad": {"t": AXIS + 24},
        "bgcolor": BUTTON,
        "font": {"color": BUTTON_TEXT, "size": 12},
        "buttons": [
            {"label": "Play", "method": "animate", "args": [None, play]},
            {"label": "Pause", "method": "animate", "args": [[None], pause]},
        ],
    }
    slider = {
        "x": 0,
        "len": 1,
        "y": 0,
        "pad": {"t": AXIS, "l": BUTTONS},
        "tickcolor": TEXT,
        "bordercolor": TEXT,
        "bgcolor": TEXT,
        "currentvalue": {"prefix": prefix, "suffix": suffix},
        "steps": [{"label": name, "method": "animate", "args": [[name], jump]} for name in names],
    }
    figure.update_layout(updatemenus=[buttons], sliders=[slider], margin={"b": CONTROLS})


def _changes(trace: Any) -> Any:
    """Return a trace with only those properties that differ from frame to frame."""
    if trace.type == "heatmap":
        return go.Heatmap(z=trace.z)
    text = {} if trace.text is None else {"text": trace.text}
    by_point = {name: trace.marker[name] for name in ("angle", "size") if np.ndim(trace.marker[name])}
    return go.Scatter(x=trace.x, y=trace.y, **text, **({"marker": by_point} if by_point else {}))
