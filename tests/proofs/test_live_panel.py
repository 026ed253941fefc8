"""The panel of a live run in JupyterLab, while both cores are busy: switches, keys, reloads, restarts, strings."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.hostile import HOSTILE
from tests.support.hostile_panel import FOLDERS, UNDONE
from tests.support.lab_browser import OpenNotebook, Watched, browsing, busy_cores, serving
from tests.support.live_panel import LivePage
from tests.support.tiny_notebook import write_notebook
from uavlab.core.text import printable
from uavlab.storage.checkpoint import folder_name

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
PATIENCE_MS = 120_000
SMALL = {
    "batch": 32,
    "worlds": 8,
    "hidden": 32,
    "updates": 1_000_000,
    "evaluate_every": 1_000_000,
}  # orders wait for scores
SETUP = f"""import threading
import uavlab as ul
from uavlab_lab import panel
run = ul.start("leader_follower_quick", out="run", settings={SMALL})"""
SHOW = "shown = panel(run)"
THREADS = "print(*(each.name for each in threading.enumerate() if each.name.startswith('train')))"
GO_ON = """from uavlab_lab import panel
shown = panel("run")"""
ONE_THREAD = "train leader_follower_quick"
KERNEL_ENDED = ("widget model not found", "Could not restore the debugger state")  # what JupyterLab logs of itself then
HOSTILE_PANEL = """import ipywidgets
from IPython.display import HTML, display
from tests.support import hostile_panel
from uavlab_lab import panel
from uavlab_lab.live import pictures
hostile_panel.register()
shown = panel(hostile_panel.begin("failing"))
hostile_panel.failing(shown.trainer.run, 5, hostile_panel.HOSTILE[4])"""
COPIES = "display(*map(HTML, hostile_panel.copies()))"
ALERTS = "display(ipywidgets.VBox([*map(ipywidgets.HTML, hostile_panel.alerts())]))"
BROKEN = """pictures.markup = str
display(HTML(pictures.whole(shown.trainer)))"""
INTRUDERS = "script, img, iframe, a, b > *, math, [onload], [onerror], [onclick], [onmouseover], [onfocus], [onbegin]"


class Lab(NamedTuple):
    watched: Watched
    url: str
    root: Path

    def open(self, name: str, *cells: str) -> OpenNotebook:
        """Open a notebook, after writing its cells if they are given."""
        if cells:
            write_notebook(self.root, *cells, name=name)
        return OpenNotebook(self.watched.page, self.url, name)

    def requires_peace(self, *allowed: str) -> None:
        """Fail if an error was logged, something was loaded from elsewhere, or a dialog opened."""
        assert [each for each in self.watched.errors if not any(text in each for text in allowed)] == []
        assert self.watched.outside(self.url) == []
        assert self.watched.dialogs == []


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    root, private = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # a kernel imports tests.support
        with busy_cores(), browsing() as watched, serving(root, private) as url:
            watched.page.set_default_timeout(PATIENCE_MS)
            yield Lab(watched, url, root)


@pytest.fixture(scope="module")
def notebook(lab: Lab) -> OpenNotebook:
    """A notebook whose second cell shows the panel of a run; it outlives a test, as it would cost seconds again."""
    notebook = lab.open("live.ipynb", SETUP, SHOW, THREADS, GO_ON)
    for cell in ("cell-0", "cell-1"):
        notebook.run(cell)
    return notebook


def flip(live: LivePage, change: Callable[[], Any]) -> float:
    """Change a setting; return the seconds until its mark is on the curve of speed, and see training go on."""
    before = live.shown()
    began = time.monotonic()
    change()
    live.wait(f"now.marks === {before['marks'] + 1} && now.curve !== {json.dumps(before['curve'])}")
    seconds = time.monotonic() - began
    live.goes_on()
    return seconds


def tab_to(page: Any, selector: str, most: int = 30) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(most):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{most} times Tab did not lead to {selector}")


def test_switches_act_and_training_goes_on(lab: Lab, notebook: OpenNotebook, proof: Callable[[str, str], None]) -> None:
    from playwright.sync_api import expect

    page, live, seconds = lab.watched.page, LivePage(notebook, "cell-1"), {}
    tab_to(page, ".uavlab-live button")  # the first one is Start
    page.keyboard.press("Space")
    live.wait("now.status.startsWith('training') && now.curve.includes(' ')")
    tab_to(page, ".uavlab-live select")  # the first one is precision
    seconds["precision"] = flip(live, lambda: page.keyboard.press("ArrowDown"))
    live.wait("/measuring the last change, slice [2-6]/.test(now.status)")
    expect(live.control("precision")).to_have_value("bf16")  # as it stays while the run goes to and fro

    live.choose("batch", 0)
    live.wait("now.alert.startsWith('ConfigError')")
    assert "batch: input should be greater than or equal to 1, got 0" in live.shown()["alert"]
    expect(live.control("batch")).to_have_value("32")
    live.goes_on()
    seconds["batch"] = flip(live, lambda: live.choose("batch", 64))
    assert live.shown()["alert"] == ""
    seconds["worlds"] = flip(live, lambda: live.choose("worlds", 16))
    lab.requires_peace()
    figures = ", ".join(f"{name} {each:.1f}" for name, each in seconds.items())
    proof("a switch of a live run on busy cores", f"its mark is on the curve after seconds: {figures}")


def threads(notebook: OpenNotebook) -> str:
    """Return the names of the training threads of the kernel."""
    notebook.run("cell-2")
    return notebook.cell("cell-2").locator(".jp-OutputArea-output").inner_text().strip()


def test_training_outlives_the_page_and_its_state_the_kernel(
    lab: Lab, notebook: OpenNotebook, proof: Callable[[str, str], None]
) -> None:
    live = LivePage(notebook, "cell-1")
    if not live.shown()["status"].startswith("training"):
        live.press("Start")
    live.goes_on()

    notebook = lab.open("live.ipynb")  # the page was not saved, so its panel is lost
    assert lab.watched.page.locator(".uavlab-live").count() == 0
    notebook.run("cell-1")
    LivePage(notebook, "cell-1").goes_on()
    assert threads(notebook) == ONE_THREAD

    notebook.save()
    notebook = lab.open("live.ipynb")
    live = LivePage(notebook, "cell-1")  # the kernel still has its widgets
    live.goes_on()
    flip(live, lambda: live.choose("batch", 128))
    assert threads(notebook) == ONE_THREAD
    lab.requires_peace()

    before, began = live.shown()["update"], time.monotonic()
    notebook.restart_kernel()
    seconds = time.monotonic() - began
    status = json.loads((lab.root / "run" / "run.json").read_text())
    assert status["status"] == "interrupted"
    assert status["update"] >= before
    assert (lab.root / "run" / "checkpoints" / folder_name(status["update"])).is_dir()
    cell = notebook.cell("cell-1")
    assert cell.locator(".uavlab-last").is_visible()
    assert not cell.locator(".uavlab-live").is_visible()  # its kernel is gone

    notebook.run("cell-3")
    live = LivePage(notebook, "cell-3")
    assert live.shown()["status"].startswith(f"ready, update {status['update']:,} of")
    assert live.control("batch").input_value() == "128"
    live.press("Start")
    live.wait("cell.querySelector('.uavlab-last').textContent.includes('training, update')")
    live.press("Stop")
    live.wait("cell.querySelector('.uavlab-last').textContent.includes('ready, update')")
    last = live.shown()
    assert last["update"] > status["update"]
    assert not live.cell.locator(".uavlab-last").is_visible()
    notebook.save()
    notebook.end_kernel()

    cell = lab.open("live.ipynb").cell("cell-3")
    copy = cell.locator(".uavlab-last")
    copy.wait_for()
    assert last["status"] in copy.inner_text()
    assert "batch 64 → 128" in copy.inner_text()
    assert copy.locator(".wide polyline").first.get_attribute("points") == last["curve"]
    assert "model not found" not in cell.inner_text()
    notebook.end_kernel()
    lab.requires_peace(*KERNEL_ENDED)
    proof(
        "a restart of a kernel that trains, on busy cores", f"a checkpoint of the last update, {seconds:.1f} s in all"
    )


def test_failures_and_strings_show_as_text(lab: Lab) -> None:
    from playwright.sync_api import expect

    page = lab.watched.page
    notebook = lab.open("hostile.ipynb", HOSTILE_PANEL, COPIES, ALERTS, BROKEN)
    for cell in ("cell-0", "cell-1", "cell-2"):
        notebook.run(cell)
    live = LivePage(notebook, "cell-0")
    live.press("Start")
    live.wait("now.alert && now.status.startsWith('failed, update 5 of')")
    assert live.shown()["alert"] == f"ValueError: {HOSTILE[4]}"
    assert live.cell.locator(".uavlab-live").locator(INTRUDERS).count() == 0

    cell = notebook.cell("cell-1")
    expect(cell.locator(".uavlab-last")).to_have_count(len(FOLDERS) + 1)
    names = cell.locator(".uavlab-last > p:first-child").all_text_contents()
    assert len(FOLDERS) >= 20
    assert names[:-1] == [f"{HOSTILE[1]}, {folder}: ready, update 0 of 1,000,000" for folder in FOLDERS]
    assert f"undone: ValueError: {UNDONE}" in cell.inner_text()
    assert cell.locator(".uavlab-last").locator(INTRUDERS).count() == 0

    alerts = notebook.cell("cell-2").get_by_role("alert")
    expect(alerts).to_have_count(3 * len(HOSTILE))
    assert alerts.all_text_contents()[2::3] == [f"ValueError: {printable(word)}" for word in HOSTILE]
    assert notebook.cell("cell-2").locator(".jp-OutputArea").locator(INTRUDERS).count() == 0
    assert page.evaluate("window.intruder") is None
    assert [url for url in lab.watched.requests if url.endswith("/x")] == []  # an image of theirs
    lab.requires_peace(*KERNEL_ENDED)

    notebook.run("cell-3")  # a picture that escapes nothing
    page.wait_for_function("window.intruder === 1")
    notebook.end_kernel()
