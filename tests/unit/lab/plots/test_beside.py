"""Flights side by side play together: at each moment both show their last frame, and the shorter one waits."""

import plotly.graph_objects as go
import pytest

from uavlab.core.errors import ConfigError
from uavlab_lab.plots.beside import beside
from uavlab_lab.plots.flight import FRAMES, add_frames


def flight(seconds: int) -> go.Figure:
    """Draw a flight whose only moving trace is at x = time, behind a still goal."""
    moving = [[go.Scatter(x=[time], y=[0], name="leader")] for time in range(seconds + 1)]
    figure = go.Figure([go.Scatter(x=[9], y=[9], name="goal"), *moving[0]], {"title": {"text": f"{seconds} s"}})
    figure.update_xaxes(range=[0, 10])
    add_frames(figure, moving, [f"{time:.1f}" for time in range(seconds + 1)], first=1)
    return figure


def test_each_moment_shows_the_last_frame_of_both() -> None:
    joint = beside({"yours": flight(3), "theirs": flight(6)})
    assert len(joint.frames) == FRAMES
    shown = {frame.name: [trace.x[0] for trace in frame.data] for frame in joint.frames}
    assert shown["0.0"] == [0, 0]
    assert shown["6.0"] == [3, 6]  # the shorter one waits at its end
    assert all(theirs == int(float(name) + 1e-6) for name, (_, theirs) in shown.items())
    assert [note.text for note in joint.layout.annotations] == ["yours:<br>3 s", "theirs:<br>6 s"]


def test_traces_lie_on_the_axes_of_their_column_and_one_legend_serves_both() -> None:
    joint = beside({"yours": flight(3), "theirs": flight(6)})
    assert [(trace.name, trace.xaxis or "x") for trace in joint.data] == [
        ("goal", "x"),
        ("goal", "x2"),
        ("leader", "x"),
        ("leader", "x2"),
    ]
    assert [trace.showlegend for trace in joint.data] == [None, False, None, False]
    assert joint.frames[0].traces == (2, 3)  # those that move
    assert tuple(joint.layout.xaxis2.range) == (0, 10)


@pytest.mark.parametrize("other", [go.Figure(), go.Figure(frames=[go.Frame(name="first")])])
def test_only_flights_are_drawn(other: go.Figure) -> None:
    with pytest.raises(ConfigError, match="flight of theirs: expected an animation"):
        beside({"yours": flight(3), "theirs": other})
