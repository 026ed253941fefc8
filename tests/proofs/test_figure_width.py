"""Figures in JupyterLab follow the width of the page, those out of view too."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.lab_browser import OpenNotebook, Watched, browsing, serving
from tests.support.processes import PATIENCE
from uavlab_lab.headless.runner import notebook_path

pytestmark = pytest.mark.browser

FIGURES = ("operators", "time-figure", "act")  # cells of the notebook, from the first to the last
# Narrows outputs without a word to JupyterLab, as it tells nothing to a cell that it does not lay out.
NARROW = ".jp-OutputArea-output { max-width: 400px; }"
WIDTHS = """p => [p.querySelector('.main-svg').getBoundingClientRect().width, p.clientWidth]"""


def widths(notebook: OpenNotebook) -> list[list[int]]:
    """Scroll to each figure and return its width and that of its room (px), once they agree or after some waiting."""
    sizes = []
    for cell_id in FIGURES:
        cell = notebook.cell(cell_id)
        for _ in range(20):
            cell.page.wait_for_timeout(200)  # ms
            size = cell.locator(".js-plotly-plot").first.evaluate(WIDTHS)
            if abs(size[0] - size[1]) < 2:
                break
        sizes.append([round(width) for width in size])
    return sizes


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    return Path(shutil.copy(notebook_path("parallel_agents"), tmp_path))


def open_page(watched: Watched, url: str, notebook: Path) -> OpenNotebook:
    """Open the notebook with all its figures drawn."""
    watched.page.set_default_timeout(1000 * PATIENCE)
    opened = OpenNotebook(watched.page, url, notebook.name)
    for cell_id in FIGURES:
        opened.cell(cell_id).locator(".main-svg").first.wait_for()
    return opened


def test_figures_follow_the_page(
    notebook: Path, tmp_path_factory: pytest.TempPathFactory, proof: Callable[[str, str], None]
) -> None:
    seen = []
    with browsing() as watched, serving(notebook.parent, tmp_path_factory.mktemp("jupyter")) as url:
        opened = open_page(watched, url, notebook)
        seen.append(widths(opened))
        for side, width in (("collapseLeft", 700), ("expandLeft", 1280), ("collapseLeft", 700)):
            watched.page.set_viewport_size({"width": width, "height": 900})
            watched.page.evaluate(f"window.jupyterapp.shell.{side}()")
            seen.append(widths(opened))
        for width in (800, 930, 1060, 1190, 1280):  # a window that is dragged
            watched.page.set_viewport_size({"width": width, "height": 900})
            watched.page.wait_for_timeout(40)  # ms
        seen.append(widths(opened))
        watched.page.add_style_tag(content=NARROW)
        seen.append(widths(opened))
        assert watched.errors == []
    late = [size for sizes in seen for size in sizes if abs(size[0] - size[1]) >= 2]
    assert late == []
    assert {room for _, room in seen[-1]} == {400}
    assert len({sizes[0][1] for sizes in seen}) >= 4  # the room did change
    proof("figures whose room changes", f"{len(seen) * len(FIGURES)} follow it")


def test_without_our_extension_figures_do_not_follow(notebook: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    private = tmp_path_factory.mktemp("jupyter")
    page_config = private / "config" / "labconfig" / "page_config.json"
    page_config.parent.mkdir(parents=True)
    page_config.write_text(json.dumps({"disabledExtensions": {"uavlab": True}}))
    with browsing() as watched, serving(notebook.parent, private) as url:
        opened = open_page(watched, url, notebook)
        before = widths(opened)  # each is in view once: one that is laid out later takes the room it finds
        watched.page.add_style_tag(content=NARROW)
        sizes = widths(opened)
    assert all(abs(width - room) < 2 for width, room in before), before
    assert all(width > room + 100 for width, room in sizes), sizes
