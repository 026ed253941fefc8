"""A figure with views shows exactly one of them at a time, with all that belongs to it and nothing of the others."""

from typing import Any

import plotly.graph_objects as go
import pytest

from uavlab.core.errors import ConfigError
from uavlab.lab.plots.views import ROOM, still_views, views


def draw(show: str, agents: int) -> go.Figure:
    figure = go.Figure(layout={"title": {"text": f"{show} of {agents}"}, "height": 300 + agents, "margin": {"t": 40}})
    for number in range(agents // 2):
        figure.add_bar(x=[agents + number], y=[show], visible="legendonly" if number else None)
    if show == "time":
        figure.add_vline(x=1)
        figure.update_xaxes(type="log")
    return figure


def after_click(figure: go.Figure, label: str) -> tuple[list[Any], dict[str, Any]]:
    """Return what plotly shows after a click: traces by their ``visible``, and the layout."""
    [button] = [each for each in figure.layout.updatemenus[0].buttons if each.label == label]
    changes, layout = button.args
    return changes["visible"], {**figure.layout.to_plotly_json(), **layout}


@pytest.fixture
def figure() -> go.Figure:
    return views(draw, show=["speed", "time"], agents=[2, 4])


def test_the_first_of_each_choice_is_shown(figure: go.Figure) -> None:
    assert [trace.visible for trace in figure.data] == [True, False, False, False, False, False]
    assert figure.layout.title.text == "speed of 2"
    assert [each.label for each in figure.layout.updatemenus[0].buttons] == [
        "speed, agents 2",
        "speed, agents 4",
        "time, agents 2",
        "time, agents 4",
    ]


def test_a_click_shows_the_other_view_whole(figure: go.Figure) -> None:
    visible, layout = after_click(figure, "time, agents 4")
    assert visible == [False, False, False, False, True, "legendonly"]
    assert [trace.x[0] for trace, shown in zip(figure.data, visible, strict=True) if shown] == [4, 5]
    assert layout["title"]["text"] == "time of 4"
    assert (layout["xaxis"]["type"], len(layout["shapes"])) == ("log", 1)


def test_what_the_last_view_had_is_gone(figure: go.Figure) -> None:
    _, layout = after_click(figure, "speed, agents 2")
    assert (layout["xaxis"], layout["shapes"]) == (None, None)  # None resets a property in the browser


def test_the_stills_are_the_figures_that_were_drawn(figure: go.Figure) -> None:
    stills = still_views(figure)
    assert [still.layout.title.text for still in stills] == ["speed of 2", "speed of 4", "time of 2", "time of 4"]
    assert [[trace.x[0] for trace in still.data] for still in stills] == [[2], [4, 5], [2], [4, 5]]
    assert not any(still.layout.updatemenus for still in stills)
    assert [(still.layout.height, still.layout.margin.t) for still in stills] == [(302, 40), (304, 40)] * 2
    assert (figure.layout.height, figure.layout.margin.t) == (302 + ROOM, 40 + ROOM)
    assert after_click(figure, "time, agents 4")[1]["height"] == 304 + ROOM


def test_a_single_choice_needs_no_buttons() -> None:
    assert views(draw, show=["speed"], agents=[2]).layout.updatemenus == ()
    labels = [each.label for each in views(draw, show=["speed", "time"], agents=[2]).layout.updatemenus[0].buttons]
    assert labels == ["speed", "time"]
    plain = draw("speed", 2)
    assert still_views(plain) == [plain]


def test_a_combination_without_a_figure_has_no_button() -> None:
    figure = views(
        lambda show, agents: None if (show, agents) == ("time", 2) else draw(show, agents),
        show=["speed", "time"],
        agents=[2, 4],
    )
    assert [each.label for each in figure.layout.updatemenus[0].buttons] == [
        "speed, agents 2",
        "speed, agents 4",
        "time, agents 4",
    ]
    visible, layout = after_click(figure, "time, agents 4")
    assert (visible, layout["title"]["text"]) == ([False, False, False, True, "legendonly"], "time of 4")


def test_nothing_to_choose_from_is_refused() -> None:
    with pytest.raises(ConfigError, match="no values to choose from"):
        views(draw, show=[], agents=[2])
    with pytest.raises(ConfigError, match="animated"):
        views(lambda n: go.Figure(frames=[go.Frame()]), n=[1, 2])
