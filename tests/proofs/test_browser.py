"""Notebooks, reports and toggle rows in a real browser, without a network."""

from pathlib import Path

import pytest

from tests.support.lab_browser import TOKEN, OpenNotebook, answer, browsing, serving
from tests.support.processes import left_behind
from tests.support.tiny_notebook import Write, write_notebook
from uavlab.lab.headless.report import report
from uavlab.lab.headless.runner import run_notebook

pytestmark = pytest.mark.browser

PARAMETERS = ("seed: int = 0", "parameters")
PANEL = """import plotly.graph_objects as go
from ipywidgets import HTML, Button
from uavlab.lab.widgets import Panel, Stop, guard, stoppable
figure, status = go.FigureWidget(go.Scatter(y=[1, 2, 3]), {"title": "Before"}), HTML()

@guard(status)
def redraw(_):
    figure.layout.title.text = "After"

@guard(status)
def fail(_):
    raise ValueError("<no> wind")

buttons = [Button(description="Redraw"), Button(description="Fail")]
buttons[0].on_click(redraw)
buttons[1].on_click(fail)
Panel([figure, *buttons, status], figure, "A line that rises.")"""
STOP = "stop = Stop()\nstop"
LOOP = """import itertools, time
async for n in stoppable(itertools.count(), stop):
    time.sleep(0.01)
print("went on")"""
LAST = "print('last cell')"


def test_a_notebook_in_jupyterlab(write: Write, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    write(PARAMETERS, PANEL, STOP, LOOP, LAST)
    private = tmp_path_factory.mktemp("jupyter")
    with browsing() as watched, serving(tmp_path, private) as url:
        from playwright.sync_api import expect

        notebook = OpenNotebook(watched.page, url, "tiny.ipynb")
        notebook.start()
        stop = notebook.cell("cell-2")
        expect(stop.get_by_role("button", name="Stop")).to_be_enabled()  # the endless loop runs from here on
        panel = notebook.cell("cell-1")
        expect(panel.locator(".js-plotly-plot .gtitle")).to_have_text("Before")
        panel.get_by_role("button", name="Redraw").click()
        expect(panel.locator(".js-plotly-plot .gtitle")).to_have_text("After")
        panel.get_by_role("button", name="Fail").click()
        expect(panel.get_by_role("alert")).to_have_text("ValueError: <no> wind")
        stop = notebook.cell("cell-2")
        stop.get_by_role("button", name="Stop").click()
        notebook.finish()
        expect(stop.get_by_role("status")).to_contain_text("stopped after")
        expect(stop.get_by_role("button", name="Stop")).to_be_disabled()
        expect(notebook.cell("cell-3")).to_contain_text("went on")
        expect(notebook.cell("cell-4")).to_contain_text("last cell")
        assert watched.errors == []
        assert watched.outside(url) == []
        assert answer(f"{url}/api/contents") == 403
        assert answer(f"{url}/api/contents?token={TOKEN}") == 200
    assert left_behind() == []
    assert "without encryption" not in (private / "server.log").read_text()


def test_a_report_draws_its_figures_without_a_network(write: Write, tmp_path: Path) -> None:
    out = tmp_path / "out.ipynb"
    run_notebook(write(PARAMETERS, PANEL, "go.Figure(go.Scatter(y=[1]), {'title': 'Plain'}).show()"), {}, out)
    page = tmp_path / "report.html"
    report(out, page)
    with browsing() as watched:
        from playwright.sync_api import expect

        watched.page.goto(page.as_uri())
        expect(watched.page.locator(".js-plotly-plot .gtitle")).to_have_text(["Before", "Plain"])
        assert watched.errors == []
        assert watched.outside(page.as_uri()) == []


PATIENCE_MS = 240_000  # for a loaded machine; a quiet one needs a twentieth


SOURCE = """from uavlab.lab.plots import charts
from uavlab.lab.widgets import ToggleRow
rows = [{"setting": "a", "agents": n, "over_first": 2.0, "low": 1.9, "high": 2.1, "ms": 1.0 * n} for n in (2, 4)]
def draw(show):
    if show == "time":
        return charts.lines(rows, "agents", "ms", title="lines")
    return charts.bars(rows, by="agents", title="bars")
ToggleRow(draw, {"show": ["speed-up", "time"]}, "a row")"""


@pytest.mark.browser
def test_in_jupyterlab_a_click_shows_the_other_figure(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (tmp_path / "notebooks").mkdir()
    write_notebook(tmp_path / "notebooks", SOURCE, name="row.ipynb")
    with browsing() as watched, serving(tmp_path, tmp_path_factory.mktemp("jupyter")) as url:
        from playwright.sync_api import expect

        expect.set_options(timeout=PATIENCE_MS)
        watched.page.set_default_timeout(PATIENCE_MS)
        notebook = OpenNotebook(watched.page, url, "notebooks/row.ipynb")
        notebook.start()
        notebook.finish()
        cell = notebook.cell("cell-0")
        expect(cell.locator(".gtitle")).to_contain_text("bars")
        expect(cell.locator(".shapelayer path")).to_have_count(1)  # the guide at 1
        cell.get_by_role("button", name="time", exact=True).click()
        expect(cell.locator(".gtitle")).to_contain_text("lines")
        expect(cell.locator(".shapelayer path")).to_have_count(0)  # what the last figure had is gone
        expect(cell.get_by_role("status")).to_contain_text("Shown: show: time")
        watched.page.screenshot(path=tmp_path / "clicked.png")
        assert watched.errors == []
        assert watched.outside(url) == []
