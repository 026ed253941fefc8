"""Every figure of a notebook has a picture: one moment of a flight, every view, and JupyterLab's figure stays first."""

import json
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_output

from uavlab_lab.headless import pictures
from uavlab_lab.headless.strip_outputs import FIGURE
from uavlab_lab.plots.flight import add_frames
from uavlab_lab.plots.views import views


def flight() -> go.Figure:
    figure = go.Figure(go.Scatter(x=[0], y=[0]))
    add_frames(figure, [[go.Scatter(x=[number], y=[0])] for number in range(5)], list("abcde"))
    return figure


def two_views() -> go.Figure:
    return views(lambda name: go.Figure(go.Bar(x=[1]), {"title": {"text": name}}), name=["one", "two"])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[go.Figure]:
    """Replace the browser, and return the list of figures that it would draw."""
    figures: list[go.Figure] = []

    def draw(some: Sequence[go.Figure]) -> list[str]:
        figures.extend(some)
        return [f'<svg class="main" width="900" height="{100 + n}"></svg>' for n in range(len(some))]

    monkeypatch.setattr(pictures, "draw", draw)
    return figures


def test_each_figure_has_a_picture(drawn: list[go.Figure]) -> None:
    outputs = [
        new_output("display_data", {FIGURE: json.loads(figure.to_json()), "image/png": "old"})
        for figure in (flight(), two_views())
    ]
    pictures.add_pictures([output.data for output in outputs])
    still, one, two = drawn
    assert (still.frames, still.layout.updatemenus, still.layout.sliders) == ((), (), ())  # no painted Play button
    assert still.data[0].x == (2,)  # a moment in the middle
    assert [one.layout.title.text, two.layout.title.text] == ["one", "two"]
    first, second = (output.data for output in outputs)
    assert first[pictures.PICTURE] == '<svg class="main" width="900" height="100"></svg>'
    assert second[pictures.PICTURE].count("<svg") == 3
    assert all("image/png" not in bundle and FIGURE in bundle for bundle in (first, second))


def test_pictures_lie_one_below_the_other() -> None:
    whole = pictures.stack(['<svg width="900" height="100"></svg>', '<svg width="900" height="50.5"></svg>'])
    assert 'height="150.5"' in whole.partition(">")[0]
    assert '<svg y="0" ' in whole
    assert '<svg y="100" ' in whole


def test_a_picture_is_as_high_as_its_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(figures: list[go.Figure], paths: list[Path], width: int, height: list[int]) -> None:
        for path, high in zip(paths, height, strict=True):
            path.write_text(f"{width} {high}")

    monkeypatch.setattr(pictures.plotly.io, "write_images", write)
    assert pictures.draw([go.Figure(layout={"height": high}) for high in (300, 1010)]) == ["900 300", "900 1010"]
    assert pictures.draw([go.Figure(layout={"height": 300})], 700) == ["700 300"]
