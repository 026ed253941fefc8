"""Animated flights side by side, which play together."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab.core.errors import ConfigError
from uavlab_lab.plots.flight import FRAMES, add_frames
from uavlab_lab.plots.style import blank, panels, plain

GAP = 0.06  # between two plots, in widths of the figure


def beside(flights: Mapping[str, go.Figure], title: str = "") -> go.Figure:
    """Return one animation of flights by name, side by side; a flight that is shorter waits at its end.

    Raises:
        ConfigError: A figure is no animation whose frames are named by their times.
    """
    figures = list(flights.values())
    times = [_times(name, figure) for name, figure in flights.items()]
    names = [f"{plain(name)}:<br>{figure.layout.title.text}" for name, figure in flights.items()]
    joint = panels(blank(title, height=680), 1, len(figures), names, room=36, horizontal_spacing=GAP)
    joint.update_annotations(font_size=13)
    moving = [set(figure.frames[0].traces) for figure in figures]
    still = _traces(
        figures, [[n for n in range(len(f.data)) if n not in own] for f, own in zip(figures, moving, strict=True)]
    )
    first = _traces(figures, [sorted(own) for own in moving])
    joint.add_traces([*still, *first])
    end = max(each[-1] for each in times)
    moments = [end * number / (FRAMES - 1) for number in range(FRAMES)]
    frames = [
        [
            trace
            for figure, each in zip(figures, times, strict=True)
            for trace in figure.frames[_latest(each, moment)].data
        ]
        for moment in moments
    ]
    add_frames(joint, frames, [f"{moment:.1f}" for moment in moments], first=len(still))
    for column, figure in enumerate(figures, 1):
        for axis, place in ((figure.layout.xaxis, joint.update_xaxes), (figure.layout.yaxis, joint.update_yaxes)):
            place(title=axis.title, range=axis.range, zeroline=False, constrain="domain", row=1, col=column)
        joint.update_yaxes(scaleanchor=f"x{column}" if column > 1 else "x", row=1, col=column)
    return joint


def _times(name: str, figure: go.Figure) -> list[float]:
    try:
        return [float(frame.name) for frame in figure.frames] or [float("")]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"flight of {name}: expected an animation whose frames are named by their times.") from error


def _latest(times: Sequence[float], moment: float) -> int:
    """Return the number of the last frame at or before a moment."""
    return max((number for number, time in enumerate(times) if time <= moment + 1e-6), default=0)


def _traces(figures: Sequence[go.Figure], chosen: Sequence[Sequence[int]]) -> list[Any]:
    """Return copies of the chosen traces of each figure, on the axes of its column; the legend has the first one's."""
    copies = []
    for column, (figure, numbers) in enumerate(zip(figures, chosen, strict=True), 1):
        for number in numbers:
            trace = figure.data[number].to_plotly_json()
            axes = {"xaxis": f"x{column}", "yaxis": f"y{column}"} if column > 1 else {}
            copies.append({**trace, **axes, **({} if column == 1 else {"showlegend": False})})
    return copies
