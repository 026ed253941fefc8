"""What one UAV of an assignment attends to, drawn on its map; and observations with more slots."""

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.types import Entities
from uavlab.envs.target_assignment.env import Assignment, State
from uavlab_lab.plots.flight import animate, freeze
from uavlab_lab.plots.style import color

WIDEST = 10.0  # of the line of an attention of 1 (px)
LEAST = 0.01  # attention that is drawn


def with_slots(x: Float[Tensor, "N O"], entities: Entities, rows: int, columns: int) -> Float[Tensor, "N P"]:
    """Return observations of the same things with empty slots up to these numbers."""
    row, column, near = entities.split(x)
    padded = [
        torch.nn.functional.pad(each, (0, 0, 0, slots - each.shape[-2])).flatten(-2)
        for each, slots in ((row, rows), (column, columns))
    ]
    return torch.cat((*padded, near), -1)


def draw_attention(
    env: Assignment, state: State, weight: Float[Tensor, "N M"], uav: int, title: str, caption: str = ""
) -> go.Figure:
    """Draw the first world, and lines from one UAV to targets, the wider the more it attends to them (``weight``)."""
    figure = freeze(animate(env, [state]))
    start, most = state.at[0, uav].tolist(), float(weight[uav].max())
    for target, share in enumerate(weight[uav].tolist()):
        if share >= LEAST:
            end = state.pos[0, env.rows + target].tolist()
            figure.add_scatter(
                x=[round(start[0], 1), round(end[0], 1)],
                y=[round(start[1], 1), round(end[1], 1)],
                mode="lines+text",
                text=["", f"{share:.0%}"],
                textposition="top right",
                line={"color": color(4), "width": max(1.0, WIDEST * share)},
                opacity=0.8 if share == most else 0.5,
                showlegend=False,
                hoverinfo="skip",
            )
    return figure.update_layout(title={"text": title, "subtitle": {"text": caption}})
