"""Pages of strings that try to run, in a browser: no script of theirs runs, no dialog opens, nothing is loaded."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

import uavlab_lab.page
from tests.support.hostile import HOSTILE
from tests.support.lab_browser import browsing
from tests.support.registries import registered_outside
from tests.unit import test_hostile_strings as renderers
from uavlab_lab import films
from uavlab_lab.headless.pictures import draw

pytestmark = pytest.mark.browser

INTRUDER = "window.intruder"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browsing() as watched:
        yield watched.page.context.browser


@pytest.fixture(autouse=True)
def own_registries() -> Iterator[None]:
    with registered_outside():
        yield


def visit(chromium: Any, path: Path) -> dict[str, Any]:
    """Open a page, hover and click wherever a string of theirs may wait for it, and return what happened."""
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    dialogs: list[str] = []
    asked: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_timeout(1500)
    page.keyboard.press("Tab")
    for plot in page.locator(".js-plotly-plot .nsewdrag").all()[:4]:
        plot.hover(force=True)
        page.wait_for_timeout(100)
    for button in page.locator(".updatemenu-button, .slider-group, summary").all()[:6]:
        button.click(force=True)
    page.wait_for_timeout(300)
    links = page.locator("svg a").evaluate_all("all => all.map(each => each.getAttribute('href'))")
    result = {"ran": page.evaluate(INTRUDER), "dialogs": dialogs, "links": links}
    result["outside"] = [each for each in asked if not each.startswith(("file:", "data:", "blob:"))]
    result["text"] = page.locator("body").inner_text()
    page.close()
    return result


def requires_nothing(seen: dict[str, Any]) -> bool:
    """Return whether nothing ran, opened or was loaded."""
    return seen["ran"] is None and not (seen["dialogs"] or seen["links"] or seen["outside"])


def write(folder: Path, page: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "page.html"
    path.write_text(f"<!DOCTYPE html><meta charset='utf-8'>{page}", encoding="utf-8")
    return path


def figures_page(words: Any, folder: Path) -> str:
    """Return a page of all figures, with a scene that a user wrote with raw strings."""
    page = uavlab_lab.page.Page(words[0])
    for figure in renderers.draw(words):
        page.add_figure(figure)
    return page.html()


def raw_scene(words: Any, folder: Path) -> str:
    """Return the page of a picture whose author escaped nothing."""
    figure = go.Figure([go.Scatter(y=[1, 2], name=word, text=[word, word]) for word in words])
    figure.update_layout(title={"text": "".join(word for word in words if "href" not in word)}, showlegend=True)
    films.write(figure, folder / "flight.html")
    return (folder / "flight.html").read_text(encoding="utf-8")


def pictures(words: Any, folder: Path) -> str:
    """Return a page of the SVG pictures of figures."""
    return "".join(draw(renderers.draw(words)[:4]))


PAGES = (*renderers.RENDERERS, figures_page, pictures)


@pytest.mark.parametrize("render", PAGES, ids=lambda render: render.__name__)
def test_nothing_of_theirs_runs(render: Callable[[Any, Path], str], chromium: Any, tmp_path: Path) -> None:
    seen = visit(chromium, write(tmp_path / "page", render(HOSTILE, tmp_path)))
    assert requires_nothing(seen), seen
    if render is renderers.report:
        assert HOSTILE[0] in seen["text"]  # shown as it is
        assert HOSTILE[20] in seen["text"]


def test_a_raw_scene_runs_nothing_either(chromium: Any, tmp_path: Path) -> None:
    seen = visit(chromium, write(tmp_path / "page", raw_scene(HOSTILE, tmp_path)))
    assert (seen["ran"], seen["dialogs"], seen["outside"]) == (None, [], [])


def test_a_page_that_does_not_escape_is_stopped_by_its_policy_and_caught_without(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uavlab_lab.page, "markup", str)
    page = renderers.report(HOSTILE, tmp_path)
    guarded = visit(chromium, write(tmp_path / "guarded", page))
    assert guarded["ran"] is None
    bare = visit(chromium, write(tmp_path / "bare", page.replace("Content-Security-Policy", "none")))
    assert bare["ran"] == 1
