"""What all animated figures share: which steps become frames, the play and pause buttons, the slider."""

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

FRAMES = 40  # frames of an animation at most; longer flights skip steps
PLAY_MS = 120  # milliseconds between frames


def chosen(count: int, most: int = FRAMES) -> list[int]:
    """Choose at most ``most`` of ``count`` states, evenly spaced, the first and the last among them."""
    every = max(1, math.ceil((count - 1) / (most - 1)))
    shown = list(range(0, count, every))
    return shown if shown[-1] == count - 1 else [*shown, count - 1]


def buttons(y: float = -0.27, pause_ms: int = PLAY_MS, redraw: bool = False) -> dict[str, Any]:
    """Make the play and the pause button.

    Args:
        y: Where they stand, in heights of the plot.
        pause_ms: Milliseconds between frames.
        redraw: Draw each frame anew: maps need it, lines do not and play smoothly without.
    """
    play = {"frame": {"duration": pause_ms, "redraw": redraw}, "transition": {"duration": 0}, "fromcurrent": True}
    pause = {"frame": {"duration": 0, "redraw": redraw}, "mode": "immediate"}
    return {
        "type": "buttons",
        "direction": "left",
        "x": 0,
        "y": y,
        "xanchor": "left",
        "yanchor": "top",
        "buttons": [
            {"label": "Play", "method": "animate", "args": [None, play]},
            {"label": "Pause", "method": "animate", "args": [[None], pause]},
        ],
    }


def slider(
    frames: Sequence[go.Frame], y: float = -0.2, prefix: str = "time ", suffix: str = " s", redraw: bool = False
) -> dict[str, Any]:
    """Make a slider that jumps to frames by their names; see ``buttons`` for ``y`` and ``redraw``."""
    jump = {"frame": {"duration": 0, "redraw": redraw}, "mode": "immediate", "transition": {"duration": 0}}
    return {
        "x": 0.2,
        "len": 0.8,
        "y": y,
        "pad": {"t": 20},
        "currentvalue": {"prefix": prefix, "suffix": suffix},
        "steps": [{"label": f.name, "method": "animate", "args": [[f.name], jump]} for f in frames],
    }
