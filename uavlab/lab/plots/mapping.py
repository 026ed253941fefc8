"""Pictures of mapping missions: the team's belief as it grows, and scores over measurements, policy by policy.

Every function takes finished states or scores and gives a plain plotly figure; nothing here flies or trains.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from uavlab.core.bootstrap import nested_bands
from uavlab.envs.mapping.env import Mapping as MappingEnv
from uavlab.envs.mapping.env import State
from uavlab.lab.plots import animation
from uavlab.lab.plots.style import blank, color, pale, pen, short
from uavlab.ops import belief_maps

SIDE = 60  # cells along a drawn map at most: one byte each, so that a mission takes 100 kB
FRAMES = 16  # of a mission: the 15 published measurements, and no more than that of longer ones
PLAY_MS = 450  # milliseconds between frames
BELIEFS = ((0.0, "#9fc5e8"), (0.5, "#f2f2f2"), (1.0, "#f6c344"))
"""Colours of beliefs: free, nothing known, target; pale, so that paths can be seen on them."""

AXES = {
    "entropy": "entropy of the cells with targets (bits, lower is better)",
    "f1": "F1 of targets (higher is better)",
}
"""What the scores of a mission are called on an axis."""


def mission(env: MappingEnv, states: Sequence[State]) -> go.Figure:
    """Animate the first mission of a batch: belief map, outline of the targets, paths, and what is seen right now.

    Args:
        env: The task that was flown.
        states: Its state after each measurement, the first included.
    """
    shown = animation.chosen(len(states), FRAMES)
    places = np.stack([state.place[0].cpu().numpy() for state in states])
    moving = [_moving(env, states[i], places[: i + 1]) for i in shown]
    still = _outline(env, states[0])
    traces = list(range(len(moving[0])))
    frames = [
        go.Frame(name=str(i + 1), data=[_changes(trace) for trace in data], traces=traces)
        for i, data in zip(shown, moving, strict=True)
    ]
    figure = blank(_finding(env, states), "x (m)", "y (m)", height=640)
    figure.add_traces([*moving[0], still])
    figure.frames = frames
    figure.update_layout(
        legend={"y": 1.0},
        margin={"b": 130},
        updatemenus=[animation.buttons(-0.16, PLAY_MS, redraw=True)],
        sliders=[animation.slider(frames, -0.1, "measurement ", f" of {len(states)}", redraw=True)],
    )
    edge = env.cells * env.cell
    figure.update_xaxes(range=[0, edge], constrain="domain", showgrid=False)
    figure.update_yaxes(range=[0, edge], scaleanchor="x", constrain="domain", showgrid=False)
    return figure


def curves(found: Mapping[str, Float[Tensor, "R E T"]], metric: str = "entropy", title: str = "") -> go.Figure:
    """Draw a score over measurements for some policies, means with 95 % bootstrap intervals over missions and runs.

    Args:
        found: By policy the scores after its second measurement, its third and so on, see ``evaluate.curves``.
        metric: What the scores are.
        title: The finding.
    """
    figure = blank(title, "measurements of each UAV", AXES.get(metric, metric))
    for number, (name, scores) in enumerate(found.items()):
        low, mean, high = bands(scores)
        at = list(range(2, len(mean) + 2))  # the first measurement is made before the first move
        figure.add_scatter(
            x=[*at, *at[::-1]],
            y=short([*high, *low[::-1]]),
            mode="lines",
            fill="toself",
            fillcolor=pale(number),
            line={"width": 0},
            showlegend=False,
            hoverinfo="skip",
        )
        figure.add_scatter(x=at, y=short(mean), name=name, mode="lines+markers", **pen(number))
    return figure


def told(found: Mapping[str, Float[Tensor, "R E T"]], step: int = -1) -> str:
    """Say the scores of some policies with their intervals: ``random 0.73 (0.71 to 0.75), sweep ...``."""
    scores = {name: bands(each[..., step, None])[:, 0] for name, each in found.items()}
    return ", ".join(f"{name} {mean:.2f} ({low:.2f} to {high:.2f})" for name, (low, mean, high) in scores.items())


def bands(scores: Float[Tensor, "R E T"], seed: int = 0) -> np.ndarray:
    """Return low end, mean and high end of 95 % bootstrap intervals over runs and missions, by step (3 T)."""
    return nested_bands(scores.double().cpu().numpy(), seed)


def small(image: Float[Tensor, "H W"]) -> UInt8[Tensor, "h w"]:
    """Average a map of shares down to ``SIDE`` cells a side, in percent."""
    rows, columns = (belief_maps.area_matrix(cells, min(cells, SIDE)).to(image) for cells in image.shape)
    return (100 * belief_maps.area_resize(image, rows, columns)).round().to(torch.uint8).cpu()


def _moving(env: MappingEnv, state: State, path: np.ndarray) -> list[Any]:
    """Draw what changes: the belief, each UAV's path and what it sees, and where all are."""
    where = path * env.spacing
    traces: list[Any] = [_belief(env, state)]
    (top, left), (bottom, right) = (edge.cpu().numpy().T * env.cell for edge in env.places.footprint(state.place[0]))
    for uav in range(env.uavs):
        x0, x1, y0, y1 = left[uav], right[uav], top[uav], bottom[uav]
        named = {"legendgroup": str(uav), "hoverinfo": "name", "name": f"UAV {uav + 1}", "mode": "lines"}
        ink = {"color": _tint(uav), "width": 3}
        traces += [
            go.Scatter(x=_metres(where[:, uav, 0]), y=_metres(where[:, uav, 1]), line=ink, **named),
            go.Scatter(
                x=_metres([x0, x1, x1, x0, x0]),
                y=_metres([y0, y0, y1, y1, y0]),
                line={**ink, "dash": "dot", "width": 2},
                showlegend=False,
                **named,
            ),
        ]
    heights = where[-1, :, 2] + env.spacing  # the lowest altitude is one spacing above the ground
    markers = {"color": [_tint(uav) for uav in range(env.uavs)], "size": 22, "line": {"color": "white", "width": 1}}
    traces.append(
        go.Scatter(
            x=_metres(where[-1, :, 0]),
            y=_metres(where[-1, :, 1]),
            text=[f"{height:g}" for height in heights],
            textfont={"color": "white", "size": 12},
            mode="markers+text",
            marker=markers,
            showlegend=False,
            hoverinfo="skip",
        )
    )
    return traces


def _belief(env: MappingEnv, state: State) -> go.Heatmap:
    """Draw the team's map."""
    image = small(belief_maps.belief(state.logits[0, -1], torch.float32)).numpy()
    step = env.cells * env.cell / len(image)
    return go.Heatmap(
        z=image,
        **{"x0": step / 2, "dx": step, "y0": step / 2, "dy": step, "zmin": 0, "zmax": 100},
        colorscale=[[share, tint] for share, tint in BELIEFS],
        colorbar={"title": {"text": "belief in a target (%)", "side": "right"}, "thickness": 14, "len": 0.6},
        hovertemplate="belief %{z} %<extra></extra>",
        name="belief",
    )


def _outline(env: MappingEnv, state: State) -> go.Contour:
    """Draw where targets begin."""
    image = small(state.truth[0].float()).numpy()
    step = env.cells * env.cell / len(image)
    return go.Contour(
        z=image,
        **{"x0": step / 2, "dx": step, "y0": step / 2, "dy": step},
        contours={"start": 50, "end": 50, "size": 1, "coloring": "none"},
        line={"color": "black", "width": 2, "smoothing": 0},
        showscale=False,
        showlegend=True,
        name="edge of the targets",
        hoverinfo="skip",
    )


def _changes(trace: Any) -> Any:
    """Keep of a trace what a frame changes."""
    if isinstance(trace, go.Heatmap):
        return go.Heatmap(z=trace.z)
    return go.Scatter(x=trace.x, y=trace.y, **({} if trace.text is None else {"text": trace.text}))


def _metres(numbers: Sequence[float] | np.ndarray) -> np.ndarray:
    return np.asarray(numbers, dtype=np.float32)


def _tint(uav: int) -> str:
    """Give a UAV a colour that is not one of a belief's."""
    return color((0, 3, 2, 4, 9)[uav % 5])


def _finding(env: MappingEnv, states: Sequence[State]) -> str:
    action = torch.zeros_like(states[0].place[..., 0])
    first, last = (env.measure(state, action, state) for state in (states[0], states[-1]))
    doubt = f"{first['entropy'][0]:.2f} bits after the first measurement, {last['entropy'][0]:.2f} after {len(states)}"
    return f"Entropy of cells with targets: {doubt}; F1 of targets {last['f1'][0]:.2f} (numbers: altitude in m)"
