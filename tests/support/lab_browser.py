"""A throw-away JupyterLab and a headless Chromium, for tests marked ``browser``.

JupyterLab shows a placeholder before the notebook, and cells before the kernel is ready; the waits are for these.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from uavlab.cli.notebooks import lab_command

TOKEN = "a-token-for-this-test"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PRIVATE = {
    "JUPYTERLAB_SETTINGS_DIR": "settings",
    "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    "JUPYTER_CONFIG_DIR": "config",
    "JUPYTER_DATA_DIR": "data",
    "JUPYTER_RUNTIME_DIR": "runtime",
    "IPYTHONDIR": "ipython",
}
CURRENT = "window.jupyterapp.shell.currentWidget"
# Code cells that have text: how many there are, how many have run, and the errors they show.
PROGRESS = f"""() => {{
  const cells = {CURRENT}.content.model.cells; let all = 0, ran = 0; const errors = [];
  for (let i = 0; i < cells.length; i++) {{
    const cell = cells.get(i);
    if (cell.type !== 'code' || !cell.sharedModel.source.trim()) continue;
    all++;
    if (cell.executionCount !== null && cell.executionState !== 'running') ran++;
    for (let j = 0; j < cell.outputs.length; j++) {{
      const output = cell.outputs.get(j);
      if (output.type === 'error') errors.push(output.toJSON().ename + ': ' + output.toJSON().evalue);
    }}
  }}
  return {{all, ran, errors}};
}}"""


@contextmanager
def serving(root: Path, private: Path) -> Iterator[str]:
    """Serve ``root`` with settings of its own in ``private``, and yield the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--no-browser", "--allow-root", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    env = {**os.environ, "JUPYTER_TOKEN": TOKEN} | {name: str(private / folder) for name, folder in PRIVATE.items()}
    url = f"http://127.0.0.1:{port}"
    with open(private / "server.log", "w") as log:
        command = lab_command(root, *flags, "--LabApp.expose_app_in_browser=True")
        server = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        try:
            while answer(f"{url}/api") != 200:
                if server.poll() is not None:
                    raise RuntimeError(f"JupyterLab did not start:\n{(private / 'server.log').read_text()}")
                time.sleep(0.2)
            yield url
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def answer(url: str) -> int:
    """Return the HTTP status of a server's answer, 0 if there is none."""
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return reply.status
    except urllib.error.HTTPError as e:
        with e:
            return e.code
    except OSError:
        return 0


@contextmanager
def busy_cores(cores: int = 2) -> Iterator[None]:
    """Keep some cores busy with something else."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@dataclass
class Watched:
    """A page with its errors, its requests and its dialogs, which are accepted."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)  # other than that of a page that is left with unsaved changes

    def outside(self, inside: str) -> list[str]:
        """List the requests that went elsewhere than to ``inside``."""
        allowed = (inside, inside.replace("http", "ws"), "data:", "blob:")
        return [url for url in self.requests if not url.startswith(allowed)]

    def accept(self, dialog: Any) -> None:
        """Note a dialog, and go on."""
        if dialog.type != "beforeunload":
            self.dialogs.append(dialog.message)
        dialog.accept()


@contextmanager
def browsing() -> Iterator[Watched]:
    """Open a page in Chromium; skip the test, with the reason, where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    playwright.expect.set_options(timeout=60_000)
    with playwright.sync_playwright() as started:
        try:
            browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        except playwright.Error as e:
            pytest.skip(f"Chromium does not start: {str(e).splitlines()[0]}")
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(60_000)
        watched = Watched(page)
        page.on("console", lambda m: watched.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: watched.errors.append(str(e)))
        page.on("request", lambda r: watched.requests.append(r.url))
        page.on("dialog", watched.accept)
        try:
            yield watched
        finally:
            with suppress(playwright.Error):
                browser.close()


class OpenNotebook:
    """A notebook open in JupyterLab, with an idle kernel."""

    def __init__(self, page: Any, url: str, path: str) -> None:
        self.page = page
        page.goto(f"{url}/lab/tree/{path}?reset&token={TOKEN}")
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        page.wait_for_function("path => window.jupyterapp?.shell?.currentWidget?.context?.path === path", arg=path)
        page.evaluate(  # waits for ever for a notebook that names no kernel: the page asks a question
            f"async () => {{ const w = {CURRENT}; await w.context.ready; await w.revealed;"
            " await w.sessionContext.ready; await w.sessionContext.session.kernel.info; }"
        )
        self._idle()

    def start(self) -> None:
        """Run all cells, without waiting for them."""
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")

    def finish(self) -> None:
        """Wait until every code cell has run, and fail if one shows an error."""
        self.page.wait_for_function(f"() => {{ const p = ({PROGRESS})(); return p.errors.length || p.ran === p.all; }}")
        self._idle()
        progress = self.page.evaluate(PROGRESS)
        assert progress["all"] == progress["ran"] > 0, progress
        assert progress["errors"] == []

    def run(self, cell_id: str) -> None:
        """Run one cell and wait until the kernel is idle."""
        self.cell(cell_id)
        self.page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-cell')")
        self._idle()

    def save(self) -> None:
        """Save the notebook."""
        self.page.evaluate(f"() => {CURRENT}.context.save()")

    def restart_kernel(self) -> None:
        """Restart the kernel by the menu, and wait until the new one is idle."""
        self.page.evaluate("() => { window.jupyterapp.commands.execute('kernelmenu:restart'); }")
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        self.page.wait_for_selector(".jp-Dialog", state="detached")
        self.page.evaluate(f"async () => {{ await {CURRENT}.sessionContext.session.kernel.info; }}")
        self._idle()

    def end_kernel(self) -> None:
        """End the kernel."""
        self.page.evaluate(f"() => {CURRENT}.sessionContext.shutdown()")

    def cell(self, cell_id: str) -> Any:
        """Scroll to a cell and return its locator; the page knows positions, the model knows ids."""
        position = self.page.evaluate(
            f"""async id => {{
              const content = {CURRENT}.content, cells = content.model.cells;
              for (let i = 0; i < cells.length; i++) if (cells.get(i).id === id) {{
                content.activeCellIndex = i; await content.scrollToItem(i, 'start'); return i;
              }}
              throw new Error('no cell ' + id);
            }}""",
            cell_id,
        )
        return self.page.locator(
            f'.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell[data-windowed-list-index="{position}"]'
        )

    def _idle(self) -> None:
        self.page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', state="attached")
