"""A figure with views shows exactly one of them at a time, with all that belongs to it and nothing of the others."""

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go
import pytest

from uavlab.core.errors import ConfigError
from uavlab_lab.plots.style import blank
from uavlab_lab.plots.views import GAP, LETTER, LINE, PAD, ROOM, TITLES, still_views, views


def draw(show: str, agents: int) -> go.Figure:
    figure = go.Figure(layout={"title": {"text": f"{show} of {agents}"}, "height": 300 + agents, "margin": {"t": 40}})
    for number in range(agents // 2):
        figure.add_bar(x=[agents + number], y=[show], visible="legendonly" if number else None)
    if show == "time":
        figure.add_vline(x=1)
        figure.update_xaxes(type="log")
    return figure


class Page:
    """What plotly shows of a figure, before and after clicks."""

    def __init__(self, figure: go.Figure) -> None:
        self.layout = figure.layout.to_plotly_json()
        self.menus = [dict(menu) for menu in self.layout.pop("updatemenus", ())]
        self.visible = [trace.visible for trace in figure.data]

    @property
    def rows(self) -> list[list[str]]:
        """Return the labels of the buttons on the page, from top to bottom, the pressed one with a star."""
        shown = sorted((menu for menu in self.menus if menu["visible"]), key=lambda menu: -menu["pad"]["b"])
        return [
            [each["label"] + "*" * (number == menu["active"]) for number, each in enumerate(menu["buttons"])]
            for menu in shown
        ]

    def click(self, label: str) -> "Page":
        [button] = [
            each for menu in self.menus if menu["visible"] for each in menu["buttons"] if each["label"] == label
        ]
        style, layout = button["args"]
        self.visible = style["visible"]
        for key, value in layout.items():
            if key.startswith("updatemenus"):
                number, _, name = key.removeprefix("updatemenus[").partition("].")
                self.menus[int(number)][name] = value
            else:
                self.layout[key] = value
        return self


@pytest.fixture
def figure() -> go.Figure:
    return views(draw, show=["speed", "time"], agents=[2, 4])


def test_each_choice_has_a_row_of_buttons(figure: go.Figure) -> None:
    assert [trace.visible for trace in figure.data] == [True, False, False, False, False, False]
    assert figure.layout.title.text == "speed of 2"
    assert Page(figure).rows == [["speed*", "time"], ["agents 2*", "agents 4"]]


def test_a_click_shows_the_other_view_whole(figure: go.Figure) -> None:
    page = Page(figure).click("time").click("agents 4")
    assert page.visible == [False, False, False, False, True, "legendonly"]
    assert [trace.x[0] for trace, shown in zip(figure.data, page.visible, strict=True) if shown] == [4, 5]
    assert page.layout["title"]["text"] == "time of 4"
    assert (page.layout["xaxis"]["type"], len(page.layout["shapes"])) == ("log", 1)
    assert page.rows == [["speed", "time*"], ["agents 2", "agents 4*"]]


def test_a_row_leaves_the_other_choices_as_they_are(figure: go.Figure) -> None:
    page = Page(figure).click("agents 4").click("time")
    assert page.layout["title"]["text"] == "time of 4"
    assert page.click("speed").layout["title"]["text"] == "speed of 4"


def test_what_the_last_view_had_is_gone(figure: go.Figure) -> None:
    layout = Page(figure).click("time").click("speed").layout
    assert layout["shapes"] is None  # None resets a property in the browser,
    assert layout["xaxis"] == {"visible": False}  # but an axis would be drawn with its defaults


def test_the_stills_are_the_figures_that_were_drawn(figure: go.Figure) -> None:
    stills = still_views(figure)
    assert [still.layout.title.text for still in stills] == ["speed of 2", "speed of 4", "time of 2", "time of 4"]
    assert [[trace.x[0] for trace in still.data] for still in stills] == [[2], [4, 5], [2], [4, 5]]
    assert not any(still.layout.updatemenus for still in stills)
    assert [(still.layout.height, still.layout.margin.t) for still in stills] == [(302, 40), (304, 40)] * 2
    assert (figure.layout.height, figure.layout.margin.t) == (302 + 2 * ROOM, 40 + 2 * ROOM)
    assert Page(figure).click("agents 4").layout["height"] == 304 + 2 * ROOM


def test_a_single_choice_needs_no_buttons() -> None:
    assert views(draw, show=["speed"], agents=[2]).layout.updatemenus == ()
    figure = views(draw, show=["speed", "time"], agents=[2])
    assert Page(figure).rows == [["speed*", "time"]]
    assert figure.layout.margin.t == 40 + ROOM
    plain = draw("speed", 2)
    assert still_views(plain) == [plain]


def test_a_combination_without_a_figure_has_no_button() -> None:
    def some(show: str, agents: int) -> go.Figure | None:
        return None if (show, agents) == ("time", 4) else draw(show, agents)

    page = Page(views(some, show=["speed", "time"], agents=[2, 4]))
    assert page.click("agents 4").rows == [["speed*", "time"], ["agents 2", "agents 4*"]]
    assert page.click("time").layout["title"]["text"] == "time of 2"  # the choice below changes with the one above
    assert page.rows == [["speed", "time*"]]


def test_equal_figures_appear_once() -> None:
    def same(show: str, agents: int) -> go.Figure:
        return draw("time", 8) if show == "growth" else draw(show, agents)

    figure = views(same, show=["speed", "growth"], agents=[2, 4, 6])
    assert len(still_views(figure)) == 4
    assert len(figure.data) == 1 + 2 + 3 + 4
    page = Page(figure).click("agents 4").click("growth")
    assert page.rows == [["speed", "growth*"]]
    assert page.click("speed").layout["title"]["text"] == "speed of 4"


@pytest.mark.parametrize("count", [2, 5, 12])
def test_long_rows_go_on_below_and_never_over_the_plot(count: int) -> None:
    names = [f"view number {number}" for number in range(count)]
    figure = views(lambda show: draw(show, 2), show=names)
    page = Page(figure)
    assert [label.strip("*") for row in page.rows for label in row] == names
    assert all(sum(PAD + LETTER * len(label.strip("*")) for label in row) <= LINE for row in page.rows)
    assert figure.layout.margin.t == 40 + ROOM * len(page.rows)
    assert [menu.type for menu in figure.layout.updatemenus] == ["buttons"] * len(page.rows)
    assert sorted(menu.pad.b for menu in figure.layout.updatemenus) == [GAP + ROOM * n for n in range(len(page.rows))]
    assert [still.layout.margin.t for still in still_views(figure)] == [40] * count
    assert sum(label.endswith("*") for row in page.click(names[-1]).rows for label in row) == 1


def test_buttons_stay_above_the_titles_of_parts() -> None:
    def parts(show: str) -> go.Figure:
        top = {"text": "wind", "xref": "paper", "yref": "paper", "x": 0.5, "y": 1.0}
        return go.Figure(go.Scatter(y=[1], name=show), {"annotations": [top], "margin": {"t": 64}})

    figure = views(parts, show=["a", "b"])
    assert figure.layout.updatemenus[0].pad.b == GAP + TITLES
    assert [still.layout.margin.t for still in still_views(figure)] == [64, 64]


def test_views_with_captions_keep_the_buttons_in_their_place() -> None:
    def captions(show: str) -> go.Figure:
        return blank(show, caption="word " * 30 if show == "long" else "").add_bar(x=[1])

    figure = views(captions, show=["short", "long"])
    assert figure.layout.margin.t == Page(figure).click("long").layout["margin"]["t"]


def test_raw_names_become_words() -> None:
    figure = views(lambda env, n_uavs: draw(env, int(n_uavs)), env=["my_env", "b"], n_uavs=[2, 4])
    assert Page(figure).rows == [["my env*", "b"], ["n uavs 2*", "n uavs 4"]]


def nothing(show: str) -> None:
    return None


@pytest.mark.parametrize("empty", [lambda: views(draw, show=[], agents=[2]), lambda: views(nothing, show=["a"])])
def test_nothing_to_choose_from_is_refused(empty: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match="no values to choose from"):
        empty()


def test_an_animated_figure_is_refused() -> None:
    with pytest.raises(ConfigError, match="animated"):
        views(lambda n: go.Figure(frames=[go.Frame()]), n=[1, 2])
