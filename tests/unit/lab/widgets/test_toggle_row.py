"""Buttons choose what a figure shows; the state is repeated in words; a refusal is shown and changes nothing."""

from typing import Any

import plotly.graph_objects as go
import pytest

from uavlab.core.errors import ConfigError
from uavlab.lab.headless.strip_outputs import FIGURE
from uavlab.lab.widgets.toggle_row import ToggleRow

CHOICES: dict[str, Any] = {"agents": [2, 4], "rungs": {"loop": True, "vmap": False}}


def draw(agents: int, rungs: tuple[str, ...]) -> go.Figure:
    if agents == 4 and not rungs:
        raise ConfigError("nothing to show for <4>")
    figure = go.Figure(layout={"title": f"{agents} agents"})
    for number, rung in enumerate(rungs):
        figure.add_bar(x=[agents + number], y=[rung], name=rung)
    return figure


@pytest.fixture
def row() -> ToggleRow:
    return ToggleRow(draw, CHOICES, "time by rung")


def shown(row: ToggleRow) -> tuple[str, list[str]]:
    return row.figure.layout.title.text, [trace.name for trace in row.figure.data]


def test_it_begins_with_the_first_of_a_list_and_what_is_on(row: ToggleRow) -> None:
    assert row.chosen() == {"agents": 2, "rungs": ("loop",)}
    assert shown(row) == ("2 agents", ["loop"])
    assert row.status.value == "<span role='status'>Shown: agents: 2 · rungs: loop</span>"


def test_a_click_draws_the_figure_again(row: ToggleRow) -> None:
    row.buttons["rungs"][1].value = True
    assert shown(row) == ("2 agents", ["loop", "vmap"])
    row.buttons["agents"][0].value = 4
    assert shown(row) == ("4 agents", ["loop", "vmap"])
    assert [list(trace.x) for trace in row.figure.data] == [[4], [5]]
    assert "agents: 4 · rungs: loop, vmap" in row.status.value
    row.buttons["rungs"][0].value = row.buttons["rungs"][1].value = False
    row.buttons["agents"][0].value = 2
    assert shown(row) == ("2 agents", [])


def test_what_the_last_figure_had_does_not_linger() -> None:
    def sometimes_banded(band: str) -> go.Figure:
        figure = go.Figure(go.Scatter(y=[1]))
        if band == "with":
            figure.add_vline(x=1)
            figure.update_xaxes(type="log", title="x")
        return figure

    row = ToggleRow(sometimes_banded, {"band": ["with", "without"]}, "label")
    assert len(row.figure.layout.shapes) == 1
    row.buttons["band"][0].value = "without"
    assert (len(row.figure.layout.shapes), row.figure.layout.xaxis.type) == (0, None)


def test_a_refusal_is_shown_and_the_figure_stays(row: ToggleRow) -> None:
    row.buttons["agents"][0].value = 4
    row.buttons["rungs"][0].value = False
    assert row.status.value == "<b role='alert'>ConfigError: nothing to show for &lt;4&gt;</b>"
    assert shown(row) == ("4 agents", ["loop"])
    row.buttons["agents"][0].value = 2
    assert shown(row) == ("2 agents", [])
    assert "agents: 2" in row.status.value


def test_its_saved_copy_is_the_present_figure(row: ToggleRow) -> None:
    row.buttons["agents"][0].value = 4
    bundle, _ = row._repr_mimebundle_()
    assert bundle["text/plain"] == "time by rung"
    assert bundle[FIGURE]["layout"]["title"]["text"] == "4 agents"


def test_names_are_text_never_markup() -> None:
    row = ToggleRow(lambda pick: go.Figure(), {"pick": ["<img src=x>"]}, "label")
    assert "<img" not in row.status.value
