"""The picture of an environment without one of its own: its observations over time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from uavlab.core.errors import ConfigError
from uavlab.core.registry import SCENES, scene
from uavlab.core.types import features_of
from uavlab_lab.plots.flight import add_frames, path_line, select_frames
from uavlab_lab.plots.style import DARK, blank, pen

AGENTS, FEATURES = 4, 10  # most that are drawn


@scene(object)
def draw_observations(env: Any, states: Sequence[Any]) -> go.Figure:
    """Draw the first observations of the first agents of a world over time, with a line at the present moment."""
    name, spec = type(env).__name__, getattr(env, "spec", None)
    if spec is None or spec.side:
        known = ", ".join(kind.__name__ for kind in SCENES if kind is not object)
        raise ConfigError(f"flight: {name} has no picture; registered are {known}; add one with `@uavlab.scene`.")
    agents, features = min(spec.agents, AGENTS), min(spec.obs, FEATURES)
    observed = (features_of(env.observe(state)) for state in states)
    values = np.stack([each[0, :agents, :features].cpu().numpy() for each in observed], axis=1)
    times = spec.dt * np.arange(len(states))
    part = (
        ""
        if (agents, features) == (spec.agents, spec.obs)
        else (f" Drawn are {agents} of {spec.agents} agents, {features} of {spec.obs} observations of each.")
    )
    caption = f"{name} has no picture of its own.{part}"
    style = blank(f"Observations during {times[-1]:g} s", height=240 + 150 * agents, caption=caption).layout
    titles = [f"agent {agent + 1}" for agent in range(agents)]
    figure = make_subplots(agents, 1, shared_xaxes=True, subplot_titles=titles, vertical_spacing=0.2 / agents)
    for agent in range(agents):
        for feature in range(features):
            path = np.stack((times, values[agent, :, feature]), axis=1)
            look = {"name": f"observation {feature + 1}", "line": pen(feature)["line"]}
            line = path_line(path, legendgroup=str(feature), showlegend=agent == 0, **look)
            figure.add_trace(line, row=agent + 1, col=1)
    steps = select_frames(len(states))
    moving = [[_present(times[step], each, number) for number, each in enumerate(values)] for step in steps]
    still = len(figure.data)
    figure.add_traces(moving[0])
    add_frames(figure, moving, [f"{times[step]:.6g}" for step in steps], first=still)
    figure.update_layout(template=style.template, title=style.title, height=style.height)
    figure.update_layout(margin={"t": style.margin.t + 24})
    return figure.update_xaxes(title_text="time (s)", row=agents)


def _present(time: float, values: np.ndarray, number: int) -> go.Scatter:
    """Draw the present moment over the plot of an agent."""
    end = "" if number == 0 else str(number + 1)
    line = {"color": DARK, "width": 2, "dash": "dot"}
    path = np.array([(time, values.min()), (time, values.max())])
    return path_line(path, line=line, showlegend=False, hoverinfo="skip", xaxis=f"x{end}", yaxis=f"y{end}")
