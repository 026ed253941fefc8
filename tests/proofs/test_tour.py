"""The tour as a person meets it: opened in JupyterLab, run, stopped, flown and driven by its widgets."""

import shutil
from pathlib import Path

import pytest

from tests.support.lab_browser import OpenNotebook, browsing, serving
from uavlab_lab.headless.runner import notebook_path

PATIENCE_MS = 240_000  # for a loaded machine; a quiet one needs a tenth

pytestmark = pytest.mark.browser


def test_the_tour_in_jupyterlab(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (tmp_path / "notebooks").mkdir()
    path = notebook_path("tour")
    shutil.copy(path, tmp_path / "notebooks")
    with browsing() as watched, serving(tmp_path, tmp_path_factory.mktemp("jupyter")) as url:
        from playwright.sync_api import expect

        expect.set_options(timeout=PATIENCE_MS)
        page = watched.page
        page.set_default_timeout(PATIENCE_MS)
        notebook = OpenNotebook(page, url, f"notebooks/{path.name}")
        notebook.start()

        live = notebook.cell("train")
        expect(live.get_by_role("status")).to_contain_text("to go")  # the cell is training
        live.get_by_role("button", name="Stop").click()
        notebook.finish()
        expect(notebook.cell("train").get_by_role("status")).to_contain_text("stopped after")
        page.screenshot(path=tmp_path / "stopped.png")

        flight = notebook.cell("fly-kept")
        expect(flight.locator(".gtitle")).to_contain_text("Goal reached")
        leader = flight.locator(".scatterlayer .trace").nth(6).locator("path").first
        before = leader.get_attribute("transform")
        time_before = flight.locator(".slider-group .slider-label").last.text_content()
        flight.get_by_text("Play", exact=True).click()
        expect(leader).not_to_have_attribute("transform", before or "")
        expect(flight.get_by_text(f"time {time_before}", exact=True)).to_have_count(0)
        page.screenshot(path=tmp_path / "flying.png")

        choices = notebook.cell("choices")
        followers = choices.get_by_label("followers")
        followers.fill("2")
        followers.press("Enter")
        expect(followers).to_have_value("2")
        page.screenshot(path=tmp_path / "chosen.png")
        assert watched.errors == []
        assert watched.outside(url) == []
