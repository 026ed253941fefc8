"""The picture of a spread flight: landmarks and whether they are covered, trails, collisions."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from uavlab.core.registry import scene
from uavlab.envs.spread import Spread, State
from uavlab_lab.plots.flight import add_frames, path_line, select_frames, some_place, with_gaps
from uavlab_lab.plots.style import blank, color, pale

UAV, COVERED, CRASH, LANDMARK = 0, 2, 3, 7  # numbers of colours
TRAIL = 9  # frames that a trail covers
EDGE = 1.1  # units: where the picture ends; the walls are at 1
CORNERS = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)])


@scene(Spread)
def draw_flight(env: Spread, states: Sequence[State]) -> go.Figure:
    """Animate the flight of the first world of a batch; ``states`` are those at the start and after each step."""
    steps = select_frames(len(states))
    places = [states[i].pos[0].cpu().numpy() for i in steps]
    landmarks = states[0].landmark[0].cpu().numpy()
    still = [
        path_line(CORNERS, line={"color": color(LANDMARK), "width": 1}, showlegend=False, hoverinfo="skip"),
        _circles(landmarks, env.cover_radius, "landmark", LANDMARK, fill=False),
        _paths(places, opacity=0.25),
    ]
    moving = [_moving(env, states[i], places[max(0, k - TRAIL) : k + 1]) for k, i in enumerate(steps)]
    figure = blank(**_title(env, states), x="x (units)", y="y (units)", height=740).add_traces([*still, *moving[0]])
    add_frames(figure, moving, [f"{i * env.dt:.1f}" for i in steps], first=len(still))
    figure.update_xaxes(range=[-EDGE, EDGE], zeroline=False, constrain="domain")
    figure.update_yaxes(range=[-EDGE, EDGE], scaleanchor="x", zeroline=False, constrain="domain")
    return figure


def _moving(env: Spread, state: State, trail: Sequence[Any]) -> list[go.Scatter]:
    """Draw covered landmarks, collisions, trails and UAVs at one moment; what there is none of has one empty place."""
    covered, crashed = env.covered(state)[0].cpu().numpy(), env.collides(state)[0].any(-1).cpu().numpy()
    ring = {"symbol": "circle-open", "size": 24, "color": color(CRASH), "line": {"width": 3}}
    marker = {"size": 12, "color": color(UAV)}
    return [
        _circles(state.landmark[0].cpu().numpy()[covered], env.cover_radius, "covered", COVERED, fill=True),
        _paths(trail, opacity=0.7),
        path_line(trail[-1], mode="markers", name="UAV", marker=marker),
        path_line(some_place(trail[-1][crashed]), mode="markers", name="collision", marker=ring),
    ]


def _paths(places: Sequence[Any], opacity: float) -> go.Scatter:
    """Draw the paths of all UAVs as one line with gaps."""
    path = with_gaps(np.stack(places).swapaxes(0, 1))
    return path_line(path, line={"color": color(UAV), "width": 2}, opacity=opacity, showlegend=False)


def _circles(centers: Any, radius: float, name: str, number: int, fill: bool) -> go.Scatter:
    """Draw circles as one line with gaps."""
    angle = np.linspace(0, 2 * math.pi, 31)
    circle = radius * np.stack((np.cos(angle), np.sin(angle)), -1)
    return path_line(
        some_place(with_gaps(centers[:, None] + circle)),
        name=name,
        line={"color": color(number), "width": 2, "dash": "solid" if fill else "dot"},
        fill="toself" if fill else "none",
        fillcolor=pale(number),
        hoverinfo="name",
    )


def _title(env: Spread, states: Sequence[State]) -> dict[str, str]:
    """Describe how many landmarks were covered at the end, and in how many steps UAVs collided."""
    after = states[1:]
    covered = int(env.covered(states[-1])[0].sum())
    crashes = sum(bool(env.collides(state)[0].any()) for state in after)
    near = f"closer than {env.collision_radius:g} units"
    return {
        "title": f"{covered} of {env.uavs} landmarks covered after {len(after) * env.dt:.1f} s",
        "caption": f"UAVs collided ({near}) in {crashes} of {len(after)} steps." if crashes else "No UAVs collided.",
    }
