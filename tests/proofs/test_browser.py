"""Notebooks and reports in a real browser, without a network."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.figure_faults import FAULTS
from tests.support.lab_browser import CURRENT, TOKEN, OpenNotebook, answer, browsing, serving
from tests.support.processes import left_behind
from tests.support.sweeps import table
from tests.support.tiny_notebook import Write
from uavlab_lab.headless.report import report
from uavlab_lab.headless.runner import notebook_path, run_notebook
from uavlab_lab.headless.strip_outputs import strip
from uavlab_lab.sweep_report import write_sweep_report

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.browser

PARAMETERS = ("seed: int = 0", "parameters")
PANEL = """from ipywidgets import HTML, Button
from uavlab_lab.widgets import Panel, Stop, guard, stoppable
title, status = HTML("<h2>Before</h2>"), HTML()

@guard(status)
def redraw(_):
    title.value = "<h2>After</h2>"

@guard(status)
def fail(_):
    raise ValueError("<no> wind")

buttons = [Button(description="Redraw"), Button(description="Fail")]
buttons[0].on_click(redraw)
buttons[1].on_click(fail)
Panel([title, *buttons, status], "Two buttons.")"""
FIGURES = """import plotly.graph_objects as go
from uavlab_lab.plots.style import blank
from uavlab_lab.plots.views import views
def draw(name, agents):
    figure = blank(name, "agents", "ms", height={"Before": 300, "After": 700}[name], caption="word " * 30)
    return figure.add_scatter(y=[1, agents])
views(draw, name=["Before", "After"], agents=[2, 4]).show()"""
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
        expect(panel.get_by_role("heading")).to_have_text("Before")
        panel.get_by_role("button", name="Redraw").click()
        expect(panel.get_by_role("heading")).to_have_text("After")
        panel.get_by_role("button", name="Fail").click()
        expect(panel.get_by_role("alert")).to_have_text("ValueError: <no> wind")
        stop = notebook.cell("cell-2")
        stop.get_by_role("button", name="Stop").click()
        notebook.finish()
        expect(stop.get_by_role("status")).to_contain_text("stopped after")
        expect(stop.get_by_role("button", name="Stop")).to_be_disabled()
        expect(notebook.cell("cell-3")).to_contain_text("went on")
        expect(notebook.cell("cell-4")).to_contain_text("last cell")
        assert watched.page.locator(".Toastify__toast").count() == 0  # such as the question about news
        assert watched.errors == []
        assert watched.outside(url) == []
        assert answer(f"{url}/api/contents") == 403
        assert answer(f"{url}/api/contents?token={TOKEN}") == 200
    assert left_behind() == []
    assert "without encryption" not in (private / "server.log").read_text()


def test_opening_a_committed_notebook_changes_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, proof: Callable[[str, str], None]
) -> None:
    tour = notebook_path("tour")
    name = tour.name
    shutil.copy(tour, tmp_path)
    strip(tmp_path / name)  # for this version of Python
    before = json.loads((tmp_path / name).read_text())
    bare = {**before, "metadata": {**before["metadata"], "language_info": {"name": "python"}}}
    (tmp_path / "bare.ipynb").write_text(json.dumps(bare))
    dirty = {}
    with browsing() as watched, serving(tmp_path, tmp_path_factory.mktemp("jupyter")) as url:
        for path in ("bare.ipynb", name):
            notebook = OpenNotebook(watched.page, url, path)
            watched.page.wait_for_selector(".js-plotly-plot .main-svg")  # its figures are live without a run
            dirty[path] = watched.page.evaluate(f"() => {CURRENT}.context.model.dirty")
        watched.page.evaluate(f"() => {CURRENT}.context.save()")
        assert notebook.page.locator(".Toastify__toast").count() == 0
    assert dirty == {"bare.ipynb": True, name: False}
    assert json.loads((tmp_path / name).read_text()) == before
    proof("a committed notebook opened in JupyterLab", "is not called unsaved, and saving it changes nothing")


def test_a_report_draws_its_figures_without_a_network(write: Write, tmp_path: Path) -> None:
    out = tmp_path / "out.ipynb"
    run_notebook(write(PARAMETERS, PANEL, FIGURES, "go.Figure(go.Scatter(y=[1]), {'title': 'Plain'}).show()"), {}, out)
    page = tmp_path / "report.html"
    report(out, page)
    with browsing() as watched:
        from playwright.sync_api import expect

        watched.page.goto(page.as_uri())
        titles = watched.page.locator(".js-plotly-plot .gtitle")
        expect(titles).to_have_text(["Before", "Plain"])
        watched.page.get_by_text("After, agents 2", exact=True).click()  # works on a page without a kernel
        expect(titles).to_have_text(["After", "Plain"])
        for width in (700, 1280, 1920):
            watched.page.set_viewport_size({"width": width, "height": 900})
            watched.page.wait_for_timeout(500)  # ms; figures follow the width of the page
            outputs = watched.page.locator(".jp-OutputArea-output:has(.updatemenu-button)")
            assert outputs.evaluate(FAULTS) == []  # the taller view does not cover what follows
        assert watched.errors == []
        assert watched.outside(page.as_uri()) == []


SCORES: dict[tuple[str, Any], list[float | None]] = {
    (preset, lr): [at + lr * 100 + seed**at for seed in range(4)] + [None] * (lr < 0.01)
    for at, preset in enumerate(("leader_follower", "pursuit"))
    for lr in (0.1, 0.02, 0.003)
}
SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


def test_the_page_of_a_sweep_shows_all_at_each_width(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    path = write_sweep_report(table(tmp_path, SCORES, search={"ranges": {"lr": {"low": 0.001, "high": 1}}}))
    shown = 0
    with browsing() as watched:
        page = watched.page
        page.goto(path.as_uri())
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 3")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for width in (1280, 700):
                page.set_viewport_size({"width": width, "height": 900})
                for preset in ("pursuit", "leader follower", "all presets"):
                    buttons = page.locator(".updatemenu-button").get_by_text(preset, exact=True).all()
                    assert len(buttons) == 2  # of the means and of the profiles
                    for button in buttons:
                        button.click()
                    page.wait_for_timeout(500)  # ms; figures follow the width of the page
                    assert page.locator("body").evaluate(FAULTS) == []
                    assert not page.evaluate(SIDEWAYS)
                    shown += 3
        for summary in page.locator("summary").all():
            summary.click()
        assert page.get_by_text("All 26 trials").is_visible()
        assert not page.evaluate(SIDEWAYS)  # a wide table scrolls by itself
        assert watched.errors == []
        assert watched.outside(path.as_uri()) == []
    proof("the page of a sweep in Chromium", f"{shown} figures in two widths and two themes, 0 faults, 0 requests")
