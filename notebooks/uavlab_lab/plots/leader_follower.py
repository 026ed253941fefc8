"""The picture of a leader-follower flight: trails, formation ring, goal and obstacles."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from uavlab.core.registry import scene
from uavlab.envs.leader_follower.env import AREA, GOAL_RADIUS, LeaderFollower, State
from uavlab_lab.plots.flight import add_frames, path_line, select_frames
from uavlab_lab.plots.style import blank, color

LEADER, FOLLOWER, GOAL, OBSTACLE, GREY = (color(number) for number in (0, 1, 2, 3, 7))
TRAIL = 9  # frames that a trail covers


@scene(LeaderFollower)
def draw_flight(env: LeaderFollower, states: Sequence[State]) -> go.Figure:
    """Animate the flight of the first world of a batch; ``states`` are those at the start and after each step."""
    steps = select_frames(len(states))
    places = [states[i].pos[0].cpu().numpy() for i in steps]
    still = [_circle(states[0].goal[0].tolist(), GOAL_RADIUS, "goal", GOAL, fill=True), *_paths(places, opacity=0.2)]
    moving = [_moving(env, states[i], places[max(0, k - TRAIL) : k + 1]) for k, i in enumerate(steps)]
    figure = blank(**_title(env, states), height=740).add_traces([*still, *moving[0]])
    add_frames(figure, moving, [f"{i * env.dt:.1f}" for i in steps], first=len(still))
    left, top, right, bottom = AREA
    figure.update_xaxes(title="x (px)", range=[left - 20, right + 20], zeroline=False, constrain="domain")
    figure.update_yaxes(
        title="y (px, downwards)", range=[bottom + 20, top - 20], scaleanchor="x", zeroline=False, constrain="domain"
    )
    return figure


def _moving(env: LeaderFollower, state: State, trail: Sequence[Any]) -> list[go.Scatter]:
    """Draw obstacles, formation ring, trails and vehicles at one moment."""
    now = trail[-1]
    turn = [90 - math.degrees(h) for h in state.heading[0].tolist()]
    obstacles = [
        _circle(place, env.crash_radius, "obstacle", OBSTACLE, fill=True) for place in state.obstacle[0].tolist()
    ]
    for extra in obstacles[1:]:
        extra.showlegend = False
    return [
        *obstacles,
        _circle(now[0].tolist(), env.formation_radius, "formation radius", GREY, fill=False),
        *_paths(trail, opacity=0.7),
        _arrows(now[:1], turn[:1], "leader", LEADER, 18),
        _arrows(now[1:], turn[1:], "followers", FOLLOWER, 14),
    ]


def _paths(places: Sequence[Any], opacity: float) -> list[go.Scatter]:
    """Draw the leader's path, and the followers' paths as one line with gaps."""
    lines = []
    for tint, agents in ((LEADER, slice(0, 1)), (FOLLOWER, slice(1, None))):
        gap = np.full((1, len(places[0][agents]), 2), np.nan)
        path = np.concatenate((np.stack(places)[:, agents], gap)).transpose(1, 0, 2).reshape(-1, 2)
        lines.append(path_line(path, line={"color": tint, "width": 2}, opacity=opacity, showlegend=False))
    return lines


def _circle(center: Sequence[float], radius: float, name: str, color: str, fill: bool) -> go.Scatter:
    angle = np.linspace(0, 2 * math.pi, 19)
    return path_line(
        np.stack((center[0] + radius * np.cos(angle), center[1] + radius * np.sin(angle)), axis=1),
        name=name,
        line={"color": color, "width": 2, "dash": "solid" if fill else "dot"},
        fill="toself" if fill else "none",
        opacity=0.6 if fill else 1,
        hoverinfo="name",
    )


def _arrows(pos: Any, turn: list[float], name: str, color: str, size: int) -> go.Scatter:
    angle = np.asarray(turn, dtype=np.float32)
    marker = {"symbol": "arrow", "angle": angle, "size": size, "color": color}
    return path_line(pos, mode="markers", name=name, marker=marker)


def _title(env: LeaderFollower, states: Sequence[State]) -> dict[str, str]:
    """Describe how the flight ended, and how much of it the team was in formation."""
    after, last = states[1:], states[-1]
    inside = sum(bool((s.gap[0] < env.formation_radius).all()) for s in after) / len(after)
    seconds = len(after) * env.dt
    if bool(last.to_goal[0, 0] < GOAL_RADIUS):
        end = f"Goal reached after {seconds:.1f} s"
    elif bool(env.terminated(last).any()):
        end = f"Leader lost to an obstacle after {seconds:.1f} s"
    else:
        end = f"Goal not reached in {seconds:.1f} s"
    return {"title": end, "caption": f"The whole team was in formation for {inside:.0%} of the flight."}
