"""The picture of a mapping mission: the team's belief as it grows, paths and footprints."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from uavlab.core.registry import scene
from uavlab.envs.mapping.env import Mapping as MappingEnv
from uavlab.envs.mapping.env import State
from uavlab.ops import belief_maps
from uavlab_lab.plots.flight import add_frames, path_line, select_frames
from uavlab_lab.plots.style import DARK, blank, color

SIDE = 60  # most cells along a drawn map, one byte each, so that a mission takes 100 kB
FRAMES = 16  # frames of a mission at most; the published one has 15
PLAY_MS = 450  # milliseconds between frames
UAV_COLORS = (0, 3, 2, 4, 9)  # numbers of colours that differ from those of beliefs
BELIEFS = ((0.0, "#9fc5e8"), (0.5, "#f2f2f2"), (1.0, "#f6c344"))
"""Colours of beliefs: free, nothing known, target; pale, so that paths can be seen on them."""


@scene(MappingEnv)
def draw_mission(env: MappingEnv, states: Sequence[State]) -> go.Figure:
    """Animate the first mission of a batch: belief map, outline of the targets, paths, and current footprints.

    ``states`` are those after each measurement, the first included.
    """
    steps = select_frames(len(states), FRAMES)
    places = np.stack([state.place[0].cpu().numpy() for state in states])
    moving = [_moving(env, states[i], places[: i + 1]) for i in steps]
    figure = blank(**_title(env, states), x="x (m)", y="y (m)", height=640)
    figure.add_traces([*moving[0], _outline(env, states[0])])
    add_frames(
        figure,
        moving,
        [str(i + 1) for i in steps],
        prefix="measurement ",
        suffix=f" of {len(states)}",
        pause_ms=PLAY_MS,
        redraw=True,
    )
    edge = env.cells * env.cell
    figure.update_xaxes(range=[0, edge], constrain="domain", showgrid=False)
    figure.update_yaxes(range=[0, edge], scaleanchor="x", constrain="domain", showgrid=False)
    return figure


def shrink(image: Float[Tensor, "H W"]) -> UInt8[Tensor, "h w"]:
    """Average a map of shares down to at most ``SIDE`` cells a side, in percent."""
    rows, columns = (belief_maps.area_matrix(cells, min(cells, SIDE)).to(image) for cells in image.shape)
    return (100 * belief_maps.area_resize(image, rows, columns)).round().to(torch.uint8).cpu()


def _moving(env: MappingEnv, state: State, path: np.ndarray) -> list[Any]:
    """Draw at one moment the belief, each UAV's path and footprint, and all positions with their altitudes (m)."""
    path = path * env.spacing
    traces: list[Any] = [_belief(env, state)]
    colors = [color(UAV_COLORS[uav % len(UAV_COLORS)]) for uav in range(env.uavs)]
    (top, left), (bottom, right) = (edge.cpu().numpy().T * env.cell for edge in env.places.footprint(state.place[0]))
    for uav in range(env.uavs):
        x0, x1, y0, y1 = left[uav], right[uav], top[uav], bottom[uav]
        corners = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)])
        common = {"legendgroup": str(uav), "hoverinfo": "name", "name": f"UAV {uav + 1}"}
        line = {"color": colors[uav], "width": 3}
        dotted = {**line, "dash": "dot", "width": 2}
        traces.append(path_line(path[:, uav, :2], line=line, **common))
        traces.append(path_line(corners, line=dotted, showlegend=False, **common))
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


def _grid(env: MappingEnv, image: Float[Tensor, "H W"]) -> dict[str, Any]:
    """Return a map of shares, made smaller, and where its cells lie (m)."""
    cells = shrink(image).numpy()
    step = env.cells * env.cell / len(cells)
    return {"z": cells, "x0": step / 2, "dx": step, "y0": step / 2, "dy": step}


def _belief(env: MappingEnv, state: State) -> go.Heatmap:
    return go.Heatmap(
        **_grid(env, belief_maps.belief(state.logits[0, -1], torch.float32)),
        zmin=0,
        zmax=100,
        colorscale=[[share, tint] for share, tint in BELIEFS],
        colorbar={
            "title": {"text": "belief in a target (%)", "side": "right", "font": {"size": 13}},
            "thickness": 14,
            "len": 0.6,
        },
        hovertemplate="belief %{z} %<extra></extra>",
        name="belief",
    )


def _outline(env: MappingEnv, state: State) -> go.Contour:
    return go.Contour(
        **_grid(env, state.truth[0].float()),
        contours={"start": 50, "end": 50, "size": 1, "coloring": "none"},
        line={"color": DARK, "width": 3, "smoothing": 0},
        showscale=False,
        showlegend=True,
        name="edge of the targets",
        hoverinfo="skip",
    )


def _title(env: MappingEnv, states: Sequence[State]) -> dict[str, str]:
    action = torch.zeros_like(states[0].place[..., 0])
    first, last = (env.measure(state, action, state) for state in (states[0], states[-1]))
    doubt = f"{first['entropy'][0]:.2f} bit after the first measurement, {last['entropy'][0]:.2f} after {len(states)}"
    caption = f"Entropy of cells with targets: {doubt}. Numbers on the map are altitudes (m)."
    return {"title": f"F1 of targets {last['f1'][0]:.2f} after {len(states)} measurements", "caption": caption}
