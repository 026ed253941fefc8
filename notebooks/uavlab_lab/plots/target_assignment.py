"""The picture of an assignment: obstacles, what targets still need, and the legs that UAVs have flown."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from uavlab.core.registry import scene
from uavlab.envs.target_assignment.env import Assignment, State
from uavlab_lab.plots.flight import add_frames, path_line, select_frames, some_place, with_gaps
from uavlab_lab.plots.style import blank, color, pale

UAV, SERVED, OBSTACLE, TARGET = 0, 2, 3, 7  # numbers of colours
SMALLEST, LARGEST = 8.0, 26.0  # sizes of marks of targets that need next to nothing, and the most (px)
RING = 20.0  # size of the mark of a satisfied target, which a UAV in it does not hide (px)


@scene(Assignment)
def draw_flight(env: Assignment, states: Sequence[State]) -> go.Figure:
    """Animate the decisions in the first world of a batch; ``states`` are those at the start and after each one."""
    steps = select_frames(len(states))
    first = states[0]
    still = [_obstacles(first), _places(first, first.speed[0] > 0, 0, name="start", symbol="square-open")]
    moving = [_moving(env, states[: i + 1]) for i in steps]
    figure = blank(**_title(env, states), x="x (m)", y="y (m)", height=740).add_traces([*still, *moving[0]])
    add_frames(figure, moving, [str(i) for i in steps], first=len(still), prefix="decision ", suffix="")
    figure.update_xaxes(range=[0, env.side], zeroline=False, constrain="domain")
    figure.update_yaxes(range=[0, env.side], scaleanchor="x", zeroline=False, constrain="domain")
    return figure


def _moving(env: Assignment, states: Sequence[State]) -> list[go.Scatter]:
    """Draw targets, legs and UAVs after some decisions; what there is none of has one empty place."""
    state = states[-1]
    there, open_ = state.demand[0].sum(-1) > 0, state.rest[0].sum(-1) > 0
    need = state.rest[0].sum(-1)
    size = SMALLEST + (LARGEST - SMALLEST) * need / state.demand[0].sum(-1).max()
    return [
        _places(state, there & open_, env.rows, "target", "circle", size[there & open_].tolist(), TARGET),
        _places(state, there & ~open_, env.rows, "satisfied", "circle-open", RING, SERVED),
        path_line(some_place(_legs(states)), name="flown", line={"color": color(UAV), "width": 2}, opacity=0.6),
        path_line(
            _at(state), mode="markers", name="UAV", marker={"size": 11, "color": color(UAV), "symbol": "diamond"}
        ),
    ]


def _at(state: State) -> np.ndarray:
    """Return where each UAV is."""
    return state.at[0][state.speed[0] > 0].cpu().numpy()


def _legs(states: Sequence[State]) -> np.ndarray:
    """Return the legs of all decisions, straight from place to place, with a gap after each."""
    ends = [np.stack((_at(before), _at(after)), 1) for before, after in pairwise(states)]
    legs = [leg for leg in np.concatenate(ends) if (leg[0] != leg[1]).any()] if ends else []
    return with_gaps(np.stack(legs)) if legs else np.empty((0, 2))


def _places(
    state: State, which: Any, first: int, name: str, symbol: str, size: Any = 11, number: int = UAV
) -> go.Scatter:
    """Mark some places, of which ``which`` counts from number ``first`` on."""
    count = len(which)
    places = state.pos[0, first : first + count][which].cpu().numpy()
    marker = {"size": size, "color": color(number), "symbol": symbol}
    return path_line(some_place(places), mode="markers", name=name, marker=marker)


def _obstacles(state: State) -> go.Scatter:
    """Draw obstacles as one line with gaps."""
    circles = state.obstacle[0][state.obstacle[0, :, 2] > 0].cpu().numpy()
    angle = np.linspace(0, 2 * math.pi, 31)
    rim = circles[:, None, :2] + circles[:, None, 2:] * np.stack((np.cos(angle), np.sin(angle)), -1)
    return path_line(
        some_place(with_gaps(rim)) if len(rim) else some_place(np.empty((0, 2))),
        name="obstacle",
        line={"color": color(OBSTACLE), "width": 2},
        fill="toself",
        fillcolor=pale(OBSTACLE),
        hoverinfo="name",
    )


def _title(env: Assignment, states: Sequence[State]) -> dict[str, str]:
    """Describe how many targets have what they need at the end, and what was flown."""
    start, end = states[0], states[-1]
    targets, done = int(start.targets[0]), int((env.completion(end) * end.targets)[0].round())
    distance, congestion = float((start.left - end.left)[0].sum()), float(env.congestion(end)[0])
    return {
        "title": f"{done} of {targets} targets satisfied after {len(states) - 1} decisions",
        "caption": f"All UAVs flew {distance:,.0f} m; mean congestion {congestion:.2f}. Legs are drawn straight.",
    }
