"""Figures from records: an animated flight, learning curves, a table beside published numbers, offline pages.

Every figure is a plain plotly figure of a few kilobytes; nothing here trains or measures.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from uavlab.core.errors import ConfigError, ResourceError
from uavlab.envs.leader_follower.env import AREA, GOAL_RADIUS, LeaderFollower, State
from uavlab.envs.mapping.env import Mapping as MappingEnv
from uavlab.lab.plots import animation, mapping
from uavlab.storage.files import write_text

LEADER, FOLLOWER, GOAL, OBSTACLE, GREY = "#1b4f9c", "#e07b39", "#2e8b57", "#8b1e3f", "#777777"
TRAIL = 9  # frames that a trail looks back

Figures = Mapping[str, Mapping[str, float]]


def flight(env: Any, states: Sequence[Any]) -> go.Figure:
    """Animate one flight: play button and slider, trails, formation ring, goal and obstacles; or a mapping mission.

    Raises:
        ConfigError: The environment is neither ``LeaderFollower`` nor ``Mapping``, the only ones with a picture.
    """
    if isinstance(env, MappingEnv):
        return mapping.mission(env, states)
    if not isinstance(env, LeaderFollower):
        known = "LeaderFollower and Mapping alone"
        raise ConfigError(f"flight: {type(env).__name__} has no picture; figures.flight draws {known}.")
    shown = animation.chosen(len(states))
    paths = [states[i].pos[0].cpu().numpy() for i in shown]
    still = [
        _circle(states[0].goal[0].tolist(), GOAL_RADIUS, "goal", GOAL, fill=True),
        *_paths(paths, opacity=0.2),
    ]
    moving = [_moving(env, states[i], paths[max(0, k - TRAIL) : k + 1]) for k, i in enumerate(shown)]
    traces = list(range(len(still), len(still) + len(moving[0])))
    frames = [
        go.Frame(name=f"{i * env.dt:.1f}", data=[_changes(trace) for trace in data], traces=traces)
        for i, data in zip(shown, moving, strict=True)
    ]
    figure = go.Figure(data=[*still, *moving[0]], frames=frames)
    figure.update_layout(
        title=_finding(env, states),
        template="plotly_white",
        height=720,
        legend={"orientation": "h", "y": -0.12, "x": 0},
        margin={"l": 70, "r": 30, "t": 70, "b": 150},
        updatemenus=[animation.buttons()],
        sliders=[animation.slider(frames)],
    )
    left, top, right, bottom = AREA
    figure.update_xaxes(title="x (px)", range=[left - 20, right + 20], zeroline=False, constrain="domain")
    figure.update_yaxes(
        title="y (px, downwards)", range=[bottom + 20, top - 20], scaleanchor="x", zeroline=False, constrain="domain"
    )
    return figure


def picture(figure: go.Figure, share: float = 0.55) -> go.Figure:
    """Freeze an animated flight after ``share`` of its time, without the controls."""
    frame = figure.frames[int(share * (len(figure.frames) - 1))]
    controls = ("updatemenus", "sliders")
    layout = {key: value for key, value in figure.layout.to_plotly_json().items() if key not in controls}
    still = go.Figure(data=figure.data, layout=layout)
    for index, trace in zip(frame.traces, frame.data, strict=True):
        still.data[index].update(trace)
    still.update_layout(margin={"l": 70, "r": 30, "t": figure.layout.margin.t - 10, "b": 90})
    return still


def write_picture(figure: go.Figure, path: Path) -> None:
    """Write a figure as an image of the kind that the path's suffix names.

    Raises:
        ResourceError: No browser to draw it with, or the disk refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.write_image(path, width=900, height=640, scale=1.5)
    except (RuntimeError, OSError, ValueError) as error:
        raise ResourceError(f"{path}: not drawn ({error}); images need Chromium or Chrome, pages do not.") from error


def curves(rows: Sequence[Mapping[str, float]], title: str = "") -> go.Figure:
    """Draw completion and strict formation of each score over the updates."""
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    margin = {"t": 90, "b": 60}
    figure = go.Figure(
        layout={"template": "plotly_white", "title": title, "height": 400, "margin": margin, "legend": legend}
    )
    for key, name, color, dash in curve_lines():
        scored = [row for row in rows if key in row]
        figure.add_scatter(
            x=[row["update"] for row in scored],
            y=[row[key] for row in scored],
            name=name,
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2},
        )
    figure.update_xaxes(title="updates", rangemode="tozero")
    figure.update_yaxes(title="share of episodes or steps", range=[-0.02, 1.02])
    return figure


def curve_lines() -> tuple[tuple[str, str, str, str], ...]:
    """Name the lines of ``curves``: key in a row of metrics, legend, colour, dash."""
    return (
        ("eval/completion", "completion (of episodes)", LEADER, "solid"),
        ("eval/formation_strict", "strict formation (of steps)", FOLLOWER, "dash"),
    )


def comparison(columns: Mapping[str, Figures | Mapping[str, float]], rows: Sequence[tuple[str, str, str]]) -> go.Figure:
    """Lay figures side by side: one column per flyer, one row per metric (key, label, format)."""

    def cell(figures: Any, key: str, shape: str) -> str:
        value = figures.get(key)
        if value is None:
            return "not published"
        if isinstance(value, Mapping):
            return f"{value['mean']:{shape}}  [{value['low']:{shape}}, {value['high']:{shape}}]"
        return f"{value:{shape}}"

    table = [[label for _, label, _ in rows]]
    table += [[cell(figures, key, shape) for key, _, shape in rows] for figures in columns.values()]
    figure = go.Figure(
        go.Table(
            header={"values": ["", *[f"<b>{name}</b>" for name in columns]], "align": "left", "fill_color": "#e8edf5"},
            cells={"values": table, "align": "left", "height": 26, "fill_color": "white"},
            columnwidth=[1.5] + [1.2] * len(columns),
        )
    )
    figure.update_layout(
        template="plotly_white", height=100 + 27 * len(rows), margin={"l": 10, "r": 10, "t": 20, "b": 10}
    )
    return figure


def write_page(figure: go.Figure, path: Path) -> None:
    """Write one figure as a page that needs no network.

    Raises:
        ResourceError: The disk refuses.
    """
    body = figure.to_html(full_html=False, include_plotlyjs=False, auto_play=False)
    page = (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>uavlab flight</title>'
        f"<script>{get_plotlyjs()}</script></head><body>{body}</body></html>"
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"{path}: cannot be written ({error.strerror}); choose another --out.") from error
    write_text(path, page)


def _moving(env: LeaderFollower, state: State, trail: Sequence[Any]) -> list[go.Scatter]:
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
    """Draw the leader's path, and all followers' as one line with gaps."""
    lines = []
    for color, agents in ((LEADER, slice(0, 1)), (FOLLOWER, slice(1, None))):
        gap = np.full((1, len(places[0][agents]), 2), np.nan)
        x, y = np.concatenate((np.stack(places)[:, agents], gap)).transpose(2, 1, 0).reshape(2, -1)
        line = {"color": color, "width": 2}
        lines.append(go.Scatter(x=_short(x), y=_short(y), mode="lines", line=line, opacity=opacity, showlegend=False))
    return lines


def _changes(trace: go.Scatter) -> go.Scatter:
    """Keep of a trace what a frame changes."""
    turned = {} if trace.marker.angle is None else {"marker": {"angle": trace.marker.angle}}
    return go.Scatter(x=trace.x, y=trace.y, **turned)


def _short(numbers: Any) -> np.ndarray:
    """Store coordinates in four bytes each: a page holds thousands of them."""
    return np.asarray(numbers, dtype=np.float32)


def _circle(center: Sequence[float], radius: float, name: str, color: str, fill: bool) -> go.Scatter:
    angle = np.linspace(0, 2 * math.pi, 19)
    return go.Scatter(
        x=_short(center[0] + radius * np.cos(angle)),
        y=_short(center[1] + radius * np.sin(angle)),
        mode="lines",
        name=name,
        line={"color": color, "width": 2, "dash": "solid" if fill else "dot"},
        fill="toself" if fill else "none",
        opacity=0.6 if fill else 1,
        hoverinfo="name",
    )


def _arrows(pos: Any, turn: list[float], name: str, color: str, size: int) -> go.Scatter:
    return go.Scatter(
        x=_short(pos[:, 0]),
        y=_short(pos[:, 1]),
        mode="markers",
        name=name,
        marker={"symbol": "arrow", "angle": _short(turn), "size": size, "color": color},
    )


def _finding(env: LeaderFollower, states: Sequence[State]) -> str:
    flown, last = states[1:], states[-1]
    inside = sum(bool((s.gap[0] < env.formation_radius).all()) for s in flown) / len(flown)
    seconds = len(flown) * env.dt
    if bool(last.to_goal[0, 0] < GOAL_RADIUS):
        end = f"Goal reached after {seconds:.1f} s"
    elif bool(env.terminated(last).any()):
        end = f"Leader lost to an obstacle after {seconds:.1f} s"
    else:
        end = f"Goal not reached in {seconds:.1f} s"
    return f"{end}; the whole team was in formation for {inside:.0%} of the flight"
