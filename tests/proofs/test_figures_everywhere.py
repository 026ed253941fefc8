"""Figures of the committed notebooks in JupyterLab, at three widths, in both themes, on busy cores: none has a fault.

Every saved figure is looked at, with each of its views; then the notebook runs with small parameters, and its live
curves, widgets and views are run again and again. A notebook is a case of ``tools/soak.py``.
"""

import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.conftest import NOTEBOOKS
from tests.support.figure_faults import FAULTS
from tests.support.lab_browser import OpenNotebook, browsing, busy_cores, serving
from uavlab_lab.headless.runner import short_name
from uavlab_lab.headless.strip_outputs import FIGURE

pytestmark = [pytest.mark.browser, pytest.mark.soak]

WIDTHS = {700: 900, 1280: 900, 1920: 1080}  # of the page, with its heights (px)
THEMES = ("JupyterLab Light", "JupyterLab Dark")
RERUNS = 4  # in each of six places
WAITS = 10  # of 300 ms, for a figure that is drawn or follows the width of the page
PATIENCE_MS = 300_000
SMALL = runpy.run_path(str(NOTEBOOKS / "conftest.py"))["SMALL"]
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("[0-9]*.ipynb"))
# Views and widgets: what a click changes.
ALIVE = ".js-plotly-plot .updatemenu-button, .jupyter-widgets, svg[role=img]"


def places(page: Any) -> Iterator[str]:
    """Show the page in every width and theme, and yield which it is."""
    for theme in THEMES:
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        for width, height in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": height})
            side = "collapseLeft" if width < 1000 else "expandLeft"
            page.evaluate(f"window.jupyterapp.shell.{side}()")
            page.wait_for_timeout(1000)  # ms; figures follow the width of the page
            yield f"{theme}, {width} px"


def views_of(cell: Any) -> list[str]:
    """Return the labels of the buttons of a cell's figures, those of other rows included that a click shows."""
    buttons = "e => (e.layout?.updatemenus || []).flatMap(menu => menu.buttons).filter(b => b.method === 'update')"
    plots = cell.locator(".js-plotly-plot").all()
    labels = [label for plot in plots for label in plot.evaluate(f"e => ({buttons})(e).map(b => b.label)")]
    return list(dict.fromkeys(labels))


def look(notebook: OpenNotebook, cell_id: str, clicks: bool) -> list[list[str]]:
    """Return the faults of a cell's figures as they stand, and after a click on each button of their views."""
    cell = notebook.cell(cell_id)
    faults = [settled_faults(cell)]
    for label in views_of(cell) if clicks else ():
        button = cell.locator(".updatemenu-button").get_by_text(label, exact=True)
        if button.count():
            button.first.click()
            faults.append([f"{fault} ({label})" for fault in settled_faults(cell)])
    return faults


def settled_faults(cell: Any) -> list[str]:
    """Return the faults of a cell's figures that are there after as long as a person would wait."""
    for _ in range(WAITS):
        cell.page.wait_for_timeout(300)
        faults = cell.evaluate(FAULTS)
        if not faults:
            break
    return faults


def cells_with_figures(path: Path) -> list[str]:
    """Return the ids of the cells whose saved outputs hold a figure."""
    cells = nbformat.read(path, as_version=4).cells
    return [c.id for c in cells if any(FIGURE in o.get("data", {}) for o in c.get("outputs", ()))]


def make_small(path: Path) -> None:
    """Give a notebook small parameters, without outputs."""
    nb = nbformat.read(path, as_version=4)
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs = []
        if "parameters" in cell.metadata.get("tags", ()):
            cell.source += "".join(f"\n{key} = {value!r}" for key, value in SMALL.get(short_name(path), {}).items())
    nbformat.write(nb, path)


@pytest.mark.parametrize("name", NAMES)
def test_figures(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, proof: Callable[[str, str], None]
) -> None:
    path = Path(shutil.copy(NOTEBOOKS / f"{name}.ipynb", tmp_path))
    shown, faults = 0, []

    def note(where: str, showings: list[list[str]]) -> None:
        nonlocal shown
        shown += len(showings)
        faults.extend(f"{where}: {fault}" for each in showings for fault in each)

    with busy_cores(), browsing() as watched, serving(tmp_path, tmp_path_factory.mktemp("jupyter")) as url:
        page: Any = watched.page
        page.set_default_timeout(PATIENCE_MS)
        notebook = OpenNotebook(page, url, path.name)
        for place in places(page):
            for cell_id in cells_with_figures(path):
                note(f"saved, {cell_id}, {place}", look(notebook, cell_id, clicks=True))
        make_small(path)
        notebook = OpenNotebook(page, url, path.name)
        notebook.start()
        notebook.finish()
        ids = [cell.id for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        alive = [cell_id for cell_id in ids if notebook.cell(cell_id).locator(ALIVE).count()]
        for place in places(page):
            for cell_id in alive:
                for _ in range(RERUNS):
                    notebook.run(cell_id)
                    cell = notebook.cell(cell_id)
                    if cell.locator(".jupyter-widgets").count() and not cell.locator(".js-plotly-plot").count():
                        note(f"run, {cell_id}, {place}", [widget_faults(cell)])
                    else:
                        note(f"run, {cell_id}, {place}", look(notebook, cell_id, clicks=False))
        assert watched.outside(url) == []
    assert faults == []
    proof(f"figures of {name} in JupyterLab", f"{shown:,} showings, 0 faults")


def widget_faults(cell: Any) -> list[str]:
    """Return what is wrong with widgets without a figure."""
    text = cell.inner_text()
    faults = ["broken widget"] if "model not found" in text or "Error" in text else []
    return faults if cell.locator(".jupyter-widgets").first.is_visible() else [*faults, "no widget"]
