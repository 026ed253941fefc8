"""Figures in JupyterLab while both cores are busy: run again and again, none is ever empty, narrow or cut off."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.figure_faults import FAULTS
from tests.support.lab_browser import OpenNotebook, browsing, busy_cores, serving
from tests.support.tiny_notebook import write_notebook

pytestmark = pytest.mark.browser

RUNS = 20
PATIENCE_MS = 240_000

SETUP = """import plotly.graph_objects as go
import uavlab as ul
from IPython.display import display
from uavlab_lab.live_run import train
from uavlab_lab.plots import charts
from uavlab_lab.plots.views import views
tiny = {"hidden": 16, "batch": 16, "worlds": 8, "learning_starts": 32, "updates": 4, "threads": 1}
tiny |= {"evaluate_every": 4, "evaluate_episodes": 1}
rows = [{"setting": "a", "agents": n, "over_first": 2.0, "low": 1.9, "high": 2.1, "ms": 1.0 * n} for n in (2, 4)]
def draw(show):
    if show == "time":
        return charts.lines(rows, "agents", "ms", title="Time grows with the team")
    return charts.bars(rows, by="agents", title="Twice as fast", caption="Two teams.")"""
LIVE = """await train(ul.start("leader_follower_quick", settings=tiny))"""
VIEWS = """views(draw, show=["speed-up", "time"])"""
IGNORED = """picture = display(charts.lines([], "agents", "ms", title="Empty"), display_id=True)
from plotly.io import to_json
import json
picture.update({"application/vnd.plotly.v1+json": json.loads(draw("time").to_json())}, raw=True)"""


def faults_of_runs(notebook: OpenNotebook, cell_id: str, runs: int) -> list[list[str]]:
    """Run a cell again and again, and return the faults of the figure that it shows each time."""
    page, faults = notebook.page, []
    for _ in range(runs):
        notebook.run(cell_id)
        cell = notebook.cell(cell_id)
        if cell.locator(".js-plotly-plot .main-svg").count() == 0:
            page.wait_for_timeout(3000)  # ms; what a person would wait
        faults.append(cell.evaluate(FAULTS))
    return faults


def test_no_figure_is_empty_narrow_or_cut(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, proof: Callable[[str, str], None]
) -> None:
    write_notebook(tmp_path, SETUP, LIVE, VIEWS, IGNORED)
    with busy_cores(), browsing() as watched, serving(tmp_path, tmp_path_factory.mktemp("jupyter")) as url:
        page: Any = watched.page
        page.set_default_timeout(PATIENCE_MS)
        notebook = OpenNotebook(page, url, "tiny.ipynb")
        notebook.start()
        notebook.finish()
        for cell_id in ("cell-1", "cell-2"):
            assert faults_of_runs(notebook, cell_id, RUNS) == [[]] * RUNS
        notebook.cell("cell-2").get_by_text("time", exact=True).click()
        page.wait_for_function("() => document.body.innerText.includes('Time grows with the team')")
        assert notebook.cell("cell-2").evaluate(FAULTS) == []
        assert "empty" in faults_of_runs(notebook, "cell-3", 1)[0]  # a figure that is changed in place
        assert watched.outside(url) == []
    proof("figures in JupyterLab", f"{2 * RUNS} re-runs of a live and of a view cell on busy cores, none empty or cut")
