"""The picture of a pursuit: the grid with its obstacles, both groups with trails, and evaders that are caught."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from uavlab.core.registry import scene
from uavlab.envs.pursuit import Pursuit, State
from uavlab_lab.plots.flight import add_frames, path_line, select_frames, some_place, with_gaps
from uavlab_lab.plots.style import REST, blank, color

PURSUER, EVADER, CAUGHT, WALL = 0, 1, 3, 7  # numbers of colours
TRAIL = 6  # steps that a trail covers
APART = 0.2  # cells from the centre of a cell, so that UAVs in one cell are seen
BOX = np.array([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]) - 0.5


@scene(Pursuit)
def draw_flight(env: Pursuit, states: Sequence[State]) -> go.Figure:
    """Animate the flight of the first world of a batch; ``states`` are those at the start and after each step.

    UAVs are drawn beside the centre of their cell, each at a place of its own.
    """
    steps = select_frames(len(states))
    places = [state.pos[0].cpu().numpy() + _offsets(env) for state in states]  # of all steps: corners must not be cut
    still = [_walls(env), _obstacles(states[0])]
    moving = [_moving(env, states[i], places[max(0, i - TRAIL) : i + 1]) for i in steps]
    figure = blank(**_title(env, states), x="x (cells)", y="y (cells)", height=740).add_traces([*still, *moving[0]])
    add_frames(figure, moving, [f"{i * env.dt:.1f}" for i in steps], first=len(still))
    edges = [-0.7, env.side - 0.3]
    figure.update_xaxes(range=edges, zeroline=False, showgrid=False, constrain="domain")
    figure.update_yaxes(range=edges, scaleanchor="x", zeroline=False, showgrid=False, constrain="domain")
    return figure


def _moving(env: Pursuit, state: State, trail: Sequence[Any]) -> list[go.Scatter]:
    """Draw trails, UAVs and caught evaders at one moment; what there is none of has one empty place."""
    caught = state.caught[0].cpu().numpy()
    pursuers, evaders = np.split(np.stack(trail), [env.pursuers], axis=1)
    square, cross = {"size": 12, "symbol": "square"}, {"size": 14, "symbol": "x", "color": color(CAUGHT)}
    return [
        _paths(pursuers, PURSUER),
        _paths(evaders, EVADER),
        path_line(pursuers[-1], mode="markers", name="pursuer", marker={"size": 12, "color": color(PURSUER)}),
        _marks(evaders[-1][~caught], "evader", {**square, "color": color(EVADER)}),
        _marks(evaders[-1][caught], "caught", cross),
    ]


def _marks(places: np.ndarray, name: str, marker: dict[str, Any]) -> go.Scatter:
    return path_line(some_place(places), mode="markers", name=name, marker=marker)


def _paths(places: np.ndarray, number: int) -> go.Scatter:
    """Draw the paths (T U 2) of a group as one line with gaps."""
    line = {"color": color(number), "width": 2}
    return path_line(with_gaps(places.swapaxes(0, 1)), line=line, opacity=0.5, showlegend=False)


def _walls(env: Pursuit) -> go.Scatter:
    """Draw the borders of all cells as one line with gaps."""
    cells = np.stack(np.meshgrid(np.arange(env.side), np.arange(env.side)), -1).reshape(-1, 1, 2)
    return path_line(with_gaps(cells + BOX), line={"color": REST, "width": 1}, showlegend=False, hoverinfo="skip")


def _obstacles(state: State) -> go.Scatter:
    """Draw the obstacles as filled squares."""
    row, column = state.blocked[0, 1:-1, 1:-1].cpu().numpy().nonzero()
    places = with_gaps(np.stack((column, row), -1)[:, None] + BOX)
    line = {"color": color(WALL), "width": 1}
    return path_line(some_place(places), name="obstacle", line=line, fill="toself", fillcolor=REST, hoverinfo="name")


def _offsets(env: Pursuit) -> np.ndarray:
    """Return where each UAV is drawn in its cell, on a circle around the centre (A 2)."""
    angle = 2 * math.pi * np.arange(env.spec.agents) / env.spec.agents
    return APART * np.stack((np.cos(angle), np.sin(angle)), -1)


def _title(env: Pursuit, states: Sequence[State]) -> dict[str, str]:
    """Describe how many evaders were caught at the end, and when."""
    counts = [int(state.caught[0].sum()) for state in states]
    times = [f"{i * env.dt:.1f}" for i, (old, new) in enumerate(pairwise(counts), 1) for _ in range(new - old)]
    return {
        "title": f"{counts[-1]} of {env.evaders} evaders caught after {(len(states) - 1) * env.dt:.1f} s",
        "caption": f"Time of each catch: {', '.join(times)} s." if times else "No evader was caught.",
    }
