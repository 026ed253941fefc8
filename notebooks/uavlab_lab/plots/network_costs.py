"""Time and memory of networks by the size of the task, from the record of ``uavlab bench assignment``."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from uavlab.core.errors import ConfigError
from uavlab_lab.plots.style import blank, log_axis, pen, plain, short, whiskers

Row = Mapping[str, Any]

LABELS = {
    "plain": "as it is",
    "nearest": "one neighbour",
    "whole": "all activations twice",
    "layers": "those of layers twice",
    "torch": "attention by PyTorch",
}
PANELS = (("ms", "gradient (ms)"), ("peak_bytes", "peak memory (bytes)"), ("over_plain", "time over that of the first"))
HEIGHT, BELOW = 210, 90  # px of a panel, and for the last axis and the legend


def network_costs(rows: Sequence[Row], network: str, batch: int, *, title: str = "", caption: str = "") -> go.Figure:
    """Draw time, memory and ratio of times of a network's gradient over sizes of the task, with a line per setting.

    ``rows`` are ``networks`` of the record.
    """
    some = [row for row in rows if (row["network"], row["batch"]) == (network, batch)]
    if not some:
        known = sorted({(row["network"], row["batch"]) for row in rows})
        raise ConfigError(f"network_costs: no row of network {network!r} and batch {batch}; expected one of {known}.")
    figure = make_subplots(rows=len(PANELS), cols=1, shared_xaxes=True, vertical_spacing=0.06)
    style = blank(title, caption=caption).layout
    height = style.margin.t + HEIGHT * len(PANELS) + BELOW
    figure.update_layout(template=style.template, title=style.title, margin={"t": style.margin.t}, height=height)
    for panel, (value, axis) in enumerate(PANELS, 1):
        for number, (setting, label) in enumerate(LABELS.items()):
            line = [row for row in some if row["setting"] == setting]
            figure.add_scatter(
                x=[plain(f"{row['uavs']} x {row['targets']}") for row in line],
                y=short(row[value] for row in line),
                error_y=whiskers(line, value, ("low", "high")) if value == "over_plain" else None,
                name=label,
                legendgroup=setting,
                showlegend=panel == 1,
                mode="lines+markers",
                **pen(number),
                row=panel,
                col=1,
            )
        scale = {"rangemode": "tozero"} if value == "over_plain" else log_axis(row[value] for row in some)
        figure.update_yaxes({**scale, "title": axis}, row=panel, col=1)
    figure.update_xaxes(title="UAVs x targets", row=len(PANELS), col=1)
    return figure
