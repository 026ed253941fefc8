"""The pictures of environments, animated; those of our own, and one of observations for all others.

``states`` are those of a flight at its start and after each step. The first world of a batch is drawn.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.registry import SCENES, scene
from uavlab.core.types import features_of
from uavlab.envs.leader_follower.env import AREA, GOAL_RADIUS, LeaderFollower
from uavlab.envs.mapping.env import Mapping
from uavlab.envs.pursuit import Pursuit
from uavlab.envs.spread import Spread
from uavlab.envs.target_assignment.env import Assignment
from uavlab.ops import belief_maps
from uavlab_lab.plots.flight import add_frames, select_frames
from uavlab_lab.plots.style import DARK, REST, blank, color, pale, panels, pen

TRAIL = 9  # frames that a trail covers
BOX = np.array([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)])
HEIGHT = 740  # px

States = Sequence[Any]


# Parts of pictures


def path_line(places: np.ndarray, **look: Any) -> go.Scatter:
    """Draw a path through ``places`` (N 2), as float32, since a page holds thousands of numbers."""
    x, y = np.asarray(places, dtype=np.float32).T
    return go.Scatter(**{"x": x, "y": y, "mode": "lines", **look})


def with_gaps(lines: np.ndarray) -> np.ndarray:
    """Join lines of equally many places (lines, places, 2), with a gap after each."""
    return np.pad(lines, ((0, 0), (0, 1), (0, 0)), constant_values=np.nan).reshape(-1, 2)


def some_place(places: np.ndarray) -> np.ndarray:
    """Return places (N 2), or one that is nowhere: a trace without any would leave the legend."""
    return places if len(places) else np.full((1, 2), np.nan)


def marks(places: np.ndarray, name: str, **marker: Any) -> go.Scatter:
    """Mark places."""
    return path_line(some_place(places), mode="markers", name=name, marker=marker)


def trails(places: Sequence[np.ndarray], tint: str, opacity: float) -> go.Scatter:
    """Draw the paths of UAVs, of which each moment has the places, as one line with gaps."""
    path = with_gaps(np.stack(places).swapaxes(0, 1))
    return path_line(path, line={"color": tint, "width": 2}, opacity=opacity, showlegend=False)


def circles(centers: np.ndarray, radius: Any, corners: int = 31) -> np.ndarray:
    """Return circles (N 2, each of its radius) as one line with gaps."""
    angle = np.linspace(0, 2 * math.pi, corners)
    return some_place(with_gaps(centers[:, None] + radius * np.stack((np.cos(angle), np.sin(angle)), -1)))


def play(env: Any, still: list[Any], moving: list[list[Any]], names: Sequence[str], **options: Any) -> go.Figure:
    """Return the animation of traces that stay and, for each frame, traces that move."""
    figure = blank(height=HEIGHT, **options).add_traces([*still, *moving[0]])
    add_frames(figure, moving, names, first=len(still))
    return figure


def square(figure: go.Figure, low: float, high: float, **axis: Any) -> go.Figure:
    """Let both axes have these ends and one scale."""
    figure.update_xaxes(range=[low, high], constrain="domain", **axis)
    return figure.update_yaxes(range=[low, high], scaleanchor="x", constrain="domain", **axis)


def of(tensor: Tensor) -> np.ndarray:
    """Return what a tensor holds of the first world."""
    return tensor[0].cpu().numpy()


# Leader and followers: trails, formation ring, goal and obstacles


@scene(LeaderFollower)
def leader_follower(env: LeaderFollower, states: States) -> go.Figure:
    """Animate a flight of leader and followers."""
    steps = select_frames(len(states))
    places = [of(states[i].pos) for i in steps]
    goal = _circle(of(states[0].goal), GOAL_RADIUS, "goal", 2)
    moving = [_formation(env, states[i], places[max(0, k - TRAIL) : k + 1]) for k, i in enumerate(steps)]
    seconds = [f"{i * env.dt:.1f}" for i in steps]
    figure = play(env, [goal, *_two_trails(places, 0.2)], moving, seconds, **_formation_title(env, states))
    left, top, right, bottom = AREA
    figure.update_xaxes(title="x (px)", range=[left - 20, right + 20], zeroline=False, constrain="domain")
    figure.update_yaxes(title="y (px, downwards)", range=[bottom + 20, top - 20], scaleanchor="x")
    return figure.update_yaxes(zeroline=False, constrain="domain")


def _formation(env: LeaderFollower, state: Any, trail: Sequence[np.ndarray]) -> list[go.Scatter]:
    """Draw obstacles, formation ring, trails and vehicles at one moment."""
    now, turn = trail[-1], (90 - np.degrees(of(state.heading).astype(float))).astype(np.float32)
    obstacles = [_circle(place, env.crash_radius, "obstacle", 3) for place in of(state.obstacle)]
    for extra in obstacles[1:]:
        extra.showlegend = False
    return [
        *obstacles,
        _circle(now[0], env.formation_radius, "formation radius", 7, fill=False),
        *_two_trails(trail, 0.7),
        marks(now[:1], "leader", symbol="arrow", angle=turn[:1], size=18, color=color(0)),
        marks(now[1:], "followers", symbol="arrow", angle=turn[1:], size=14, color=color(1)),
    ]


def _two_trails(places: Sequence[np.ndarray], opacity: float) -> list[go.Scatter]:
    """Draw the path of the leader, and those of the followers."""
    groups = (slice(1), slice(1, None))
    return [trails([each[agents] for each in places], color(n), opacity) for n, agents in enumerate(groups)]


def _circle(center: np.ndarray, radius: float, name: str, number: int, fill: bool = True) -> go.Scatter:
    line = {"color": color(number), "width": 2, "dash": "solid" if fill else "dot"}
    look = {"fill": "toself" if fill else "none", "opacity": 0.6 if fill else 1, "hoverinfo": "name"}
    return path_line(circles(center[None], radius, 19)[:-1], name=name, line=line, **look)


def _formation_title(env: LeaderFollower, states: States) -> dict[str, str]:
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


# Spread: landmarks and whether they are covered, trails, collisions


@scene(Spread)
def spread(env: Spread, states: States) -> go.Figure:
    """Animate a flight over landmarks."""
    steps = select_frames(len(states))
    places = [of(states[i].pos) for i in steps]
    grey = {"color": color(7), "width": 1}
    still = [
        path_line(2 * BOX - 1, line=grey, showlegend=False, hoverinfo="skip"),
        _rings(env, of(states[0].landmark), "landmark", 7, dash="dot"),
        trails(places, color(0), 0.25),
    ]
    moving = [_covering(env, states[i], places[max(0, k - TRAIL) : k + 1]) for k, i in enumerate(steps)]
    after, covered = states[1:], int(env.covered(states[-1])[0].sum())
    crashes = sum(bool(env.collides(state)[0].any()) for state in after)
    near = f"UAVs collided (closer than {env.collision_radius:g} units) in {crashes} of {len(after)} steps."
    words = {
        "title": f"{covered} of {env.uavs} landmarks covered after {len(after) * env.dt:.1f} s",
        "caption": near if crashes else "No UAVs collided.",
    }
    figure = play(env, still, moving, [f"{i * env.dt:.1f}" for i in steps], **words, x="x (units)", y="y (units)")
    return square(figure, -1.1, 1.1, zeroline=False)  # the walls are at 1


def _covering(env: Spread, state: Any, trail: Sequence[np.ndarray]) -> list[go.Scatter]:
    """Draw covered landmarks, collisions, trails and UAVs at one moment."""
    covered, crashed = of(env.covered(state)), of(env.collides(state).any(-1))
    return [
        _rings(env, of(state.landmark)[covered], "covered", 2, fill="toself"),
        trails(trail, color(0), 0.7),
        marks(trail[-1], "UAV", size=12, color=color(0)),
        marks(trail[-1][crashed], "collision", symbol="circle-open", size=24, color=color(3), line={"width": 3}),
    ]


def _rings(env: Spread, centers: np.ndarray, name: str, number: int, dash: str = "solid", fill: str = "none") -> Any:
    line = {"color": color(number), "width": 2, "dash": dash}
    look = {"fill": fill, "fillcolor": pale(number), "hoverinfo": "name"}
    return path_line(circles(centers, env.cover_radius), name=name, line=line, **look)


# Pursuit: the grid with its obstacles, both groups with trails, and evaders that are caught


@scene(Pursuit)
def pursuit(env: Pursuit, states: States) -> go.Figure:
    """Animate a pursuit; UAVs are drawn beside the centre of their cell, each at a place of its own."""
    steps, angle = select_frames(len(states)), 2 * math.pi * np.arange(env.spec.agents) / env.spec.agents
    beside = 0.2 * np.stack((np.cos(angle), np.sin(angle)), -1)
    places = [of(state.pos) + beside for state in states]  # of all steps: corners must not be cut
    cells = np.stack(np.meshgrid(np.arange(env.side), np.arange(env.side)), -1).reshape(-1, 1, 2)
    row, column = of(states[0].blocked)[1:-1, 1:-1].nonzero()
    blocked = some_place(with_gaps(np.stack((column, row), -1)[:, None] + BOX - 0.5))
    look = {"fill": "toself", "fillcolor": REST, "hoverinfo": "name"}
    still = [
        path_line(with_gaps(cells + BOX - 0.5), line={"color": REST, "width": 1}, showlegend=False, hoverinfo="skip"),
        path_line(blocked, name="obstacle", line={"color": color(7), "width": 1}, **look),
    ]
    moving = [_chase(env, states[i], places[max(0, i - 6) : i + 1]) for i in steps]
    counts = [int(state.caught[0].sum()) for state in states]
    times = [f"{i * env.dt:.1f}" for i, (old, new) in enumerate(pairwise(counts), 1) for _ in range(new - old)]
    words = {
        "title": f"{counts[-1]} of {env.evaders} evaders caught after {(len(states) - 1) * env.dt:.1f} s",
        "caption": f"Time of each catch: {', '.join(times)} s." if times else "No evader was caught.",
    }
    figure = play(env, still, moving, [f"{i * env.dt:.1f}" for i in steps], **words, x="x (cells)", y="y (cells)")
    return square(figure, -0.7, env.side - 0.3, zeroline=False, showgrid=False)


def _chase(env: Pursuit, state: Any, trail: Sequence[np.ndarray]) -> list[go.Scatter]:
    """Draw trails, UAVs and caught evaders at one moment."""
    caught = of(state.caught)
    pursuers, evaders = np.split(np.stack(trail), [env.pursuers], axis=1)
    return [
        trails(list(pursuers), color(0), 0.5),
        trails(list(evaders), color(1), 0.5),
        marks(pursuers[-1], "pursuer", size=12, color=color(0)),
        marks(evaders[-1][~caught], "evader", size=12, symbol="square", color=color(1)),
        marks(evaders[-1][caught], "caught", size=14, symbol="x", color=color(3)),
    ]


# Assignment: obstacles, what targets still need, and the legs that UAVs have flown


@scene(Assignment)
def assignment(env: Assignment, states: States) -> go.Figure:
    """Animate the decisions of an assignment."""
    steps, start, end = select_frames(len(states)), states[0], states[-1]
    disks = of(start.obstacle)[of(start.obstacle)[:, 2] > 0]
    look = {"fill": "toself", "fillcolor": pale(3), "hoverinfo": "name"}
    line = {"color": color(3), "width": 2}
    still = [
        path_line(circles(disks[:, :2], disks[:, None, 2:]), name="obstacle", line=line, **look),
        marks(of(start.pos)[: env.rows][of(start.speed) > 0], "start", size=11, color=color(0), symbol="square-open"),
    ]
    moving = [_serve(env, states[: i + 1]) for i in steps]
    targets, done = int(start.targets[0]), int((env.completion(end) * end.targets)[0].round())
    distance, congestion = float((start.left - end.left)[0].sum()), float(env.congestion(end)[0])
    words = {
        "title": f"{done} of {targets} targets satisfied after {len(states) - 1} decisions",
        "caption": f"All UAVs flew {distance:,.0f} m; mean congestion {congestion:.2f}. Legs are drawn straight.",
    }
    figure = blank(**words, x="x (m)", y="y (m)", height=HEIGHT).add_traces([*still, *moving[0]])
    add_frames(figure, moving, [str(i) for i in steps], first=len(still), prefix="decision ", suffix="")
    return square(figure, 0, env.side, zeroline=False)


def _serve(env: Assignment, states: States) -> list[go.Scatter]:
    """Draw targets, legs and UAVs after some decisions; a target's mark is the larger the more it needs."""
    state = states[-1]
    demand, need = of(state.demand.sum(-1)), of(state.rest.sum(-1))
    places, open_ = of(state.pos)[env.rows : env.rows + len(demand)], (demand > 0) & (need > 0)
    size = (8.0 + 18.0 * need / demand.max())[open_].tolist()
    done = (demand > 0) & (need <= 0)
    ends = [np.stack((_at(before), _at(after)), 1) for before, after in pairwise(states)]
    legs = [leg for leg in np.concatenate(ends) if (leg[0] != leg[1]).any()] if ends else []
    flown = with_gaps(np.stack(legs)) if legs else some_place(np.empty((0, 2)))
    return [
        marks(places[open_], "target", size=size, color=color(7), symbol="circle"),
        marks(places[done], "satisfied", size=20.0, color=color(2), symbol="circle-open"),  # seen around a UAV in it
        path_line(flown, name="flown", line={"color": color(0), "width": 2}, opacity=0.6),
        marks(_at(state), "UAV", size=11, color=color(0), symbol="diamond"),
    ]


def _at(state: Any) -> np.ndarray:
    """Return where each UAV is."""
    return of(state.at)[of(state.speed) > 0]


# Mapping: the team's belief as it grows, paths and footprints

SIDE = 60  # most cells along a drawn map, one byte each, so that a mission takes 100 kB
MEASUREMENTS = 16  # frames of a mission at most; the published one has 15
UAVS = (0, 3, 2, 4, 9)  # numbers of colours that differ from those of beliefs
BELIEFS = [[0.0, "#9fc5e8"], [0.5, "#f2f2f2"], [1.0, "#f6c344"]]
"""Colours of beliefs: free, nothing known, target; pale, so that paths can be seen on them."""


@scene(Mapping)
def mission(env: Mapping, states: States) -> go.Figure:
    """Animate a mission; ``states`` are those after each measurement."""
    steps = select_frames(len(states), MEASUREMENTS)
    places = np.stack([of(state.place) for state in states])
    moving = [_survey(env, states[i], places[: i + 1]) for i in steps]
    outline = go.Contour(
        **_grid(env, states[0].truth[0].float()),
        contours={"start": 50, "end": 50, "size": 1, "coloring": "none"},
        line={"color": DARK, "width": 3, "smoothing": 0},
        showscale=False,
        showlegend=True,
        name="edge of the targets",
        hoverinfo="skip",
    )
    action = torch.zeros_like(states[0].place[..., 0])
    first, last = (env.measure(state, action, state) for state in (states[0], states[-1]))
    doubt = f"{first['entropy'][0]:.2f} bit after the first measurement, {last['entropy'][0]:.2f} after {len(states)}"
    words = {
        "title": f"F1 of targets {last['f1'][0]:.2f} after {len(states)} measurements",
        "caption": f"Entropy of cells with targets: {doubt}. Numbers on the map are altitudes (m).",
    }
    figure = blank(**words, x="x (m)", y="y (m)", height=640).add_traces([*moving[0], outline])
    names, suffix = [str(i + 1) for i in steps], f" of {len(states)}"
    add_frames(figure, moving, names, prefix="measurement ", suffix=suffix, pause_ms=450, redraw=True)
    return square(figure, 0, env.cells * env.cell, showgrid=False)


def shrink(image: Float[Tensor, "H W"]) -> UInt8[Tensor, "h w"]:
    """Average a map of shares down to at most ``SIDE`` cells a side, in percent."""
    rows, columns = (belief_maps.area_matrix(cells, min(cells, SIDE)).to(image) for cells in image.shape)
    return (100 * belief_maps.area_resize(image, rows, columns)).round().to(torch.uint8).cpu()


def _survey(env: Mapping, state: Any, path: np.ndarray) -> list[Any]:
    """Draw at one moment the belief, each UAV's path and footprint, and all positions with their altitudes (m)."""
    path = path * env.spacing
    traces: list[Any] = [_belief(env, state)]
    colors = [color(UAVS[uav % len(UAVS)]) for uav in range(env.uavs)]
    (top, left), (bottom, right) = (edge.cpu().numpy().T * env.cell for edge in env.places.footprint(state.place[0]))
    for uav in range(env.uavs):
        low, high = np.array((left[uav], top[uav])), np.array((right[uav], bottom[uav]))
        common = {"legendgroup": str(uav), "hoverinfo": "name", "name": f"UAV {uav + 1}"}
        dotted = {"color": colors[uav], "dash": "dot", "width": 2}
        traces.append(path_line(path[:, uav, :2], line={"color": colors[uav], "width": 3}, **common))
        traces.append(path_line(low + BOX * (high - low), line=dotted, showlegend=False, **common))
    heights = path[-1, :, 2] + env.spacing  # the lowest altitude is one spacing above the ground
    traces.append(
        path_line(
            path[-1, :, :2],
            text=[f"{height:g}" for height in heights],
            textfont={"color": "white", "size": 12},
            mode="markers+text",
            marker={"color": colors, "size": 22, "line": {"color": "white", "width": 1}},
            showlegend=False,
            hoverinfo="skip",
        )
    )
    return traces


def _grid(env: Mapping, image: Float[Tensor, "H W"]) -> dict[str, Any]:
    """Return a map of shares, made smaller, and where its cells lie (m)."""
    cells = shrink(image).numpy()
    step = env.cells * env.cell / len(cells)
    return {"z": cells, "x0": step / 2, "dx": step, "y0": step / 2, "dy": step}


def _belief(env: Mapping, state: Any) -> go.Heatmap:
    title = {"text": "belief in a target (%)", "side": "right", "font": {"size": 13}}
    return go.Heatmap(
        **_grid(env, belief_maps.belief(state.logits[0, -1], torch.float32)),
        zmin=0,
        zmax=100,
        colorscale=BELIEFS,
        colorbar={"title": title, "thickness": 14, "len": 0.6},
        hovertemplate="belief %{z} %<extra></extra>",
        name="belief",
    )


# Observations over time, for an environment without a picture

AGENTS, FEATURES = 4, 10  # most that are drawn


@scene(object)
def observations(env: Any, states: States) -> go.Figure:
    """Draw the first observations of the first agents over time, with a line at the present moment."""
    name, spec = type(env).__name__, getattr(env, "spec", None)
    if spec is None or spec.side:
        known = ", ".join(kind.__name__ for kind in SCENES if kind is not object)
        raise ConfigError(f"flight: {name} has no picture; registered are {known}; add one with `@uavlab.scene`.")
    agents, features = min(spec.agents, AGENTS), min(spec.obs, FEATURES)
    values = np.stack([of(features_of(env.observe(state)))[:agents, :features] for state in states], axis=1)
    times = spec.dt * np.arange(len(states))
    part = f" Drawn are {agents} of {spec.agents} agents, {features} of {spec.obs} observations of each."
    whole = (agents, features) == (spec.agents, spec.obs)
    caption = f"{name} has no picture of its own.{'' if whole else part}"
    style = blank(f"Observations during {times[-1]:g} s", height=240 + 150 * agents, caption=caption)
    titles = [f"agent {agent + 1}" for agent in range(agents)]
    figure = panels(style, agents, 1, titles, shared_xaxes=True, vertical_spacing=0.2 / agents)
    for agent in range(agents):
        for feature in range(features):
            look = {"name": f"observation {feature + 1}", "line": pen(feature)["line"], "showlegend": agent == 0}
            line = path_line(np.stack((times, values[agent, :, feature]), 1), legendgroup=str(feature), **look)
            figure.add_trace(line, row=agent + 1, col=1)
    steps, still = select_frames(len(states)), len(figure.data)
    moving = [[_present(times[step], each, number) for number, each in enumerate(values)] for step in steps]
    figure.add_traces(moving[0])
    add_frames(figure, moving, [f"{times[step]:.6g}" for step in steps], first=still)
    return figure.update_xaxes(title_text="time (s)", row=agents)


def _present(time: float, values: np.ndarray, number: int) -> go.Scatter:
    """Draw the present moment over the plot of an agent."""
    end = "" if number == 0 else str(number + 1)
    path = np.array([(time, values.min()), (time, values.max())])
    axes = {"xaxis": f"x{end}", "yaxis": f"y{end}"}
    return path_line(path, line={"color": DARK, "width": 2, "dash": "dot"}, showlegend=False, hoverinfo="skip", **axes)
