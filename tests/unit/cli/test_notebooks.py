"""Notebooks: what is checked before, told after, and handed on to JupyterLab."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_runner import uavlab
from uavlab.cli.notebooks import lab_command
from uavlab_lab.headless import report, runner

TOUR = runner.notebook_path(Path(__file__).parents[3] / "notebooks" / "tour")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def test_lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *given: started.append(given))
    assert uavlab("lab").code == 0
    assert started == [(sys.executable, lab_command(tmp_path))]


def test_lab_in_a_folder_copies_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *given: started.append(given))
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / TOUR.name).write_text("my own")
    count = len(list(TOUR.parent.glob("*.ipynb")))
    ended = uavlab("lab", "mine", "--", "--no-browser")
    assert (ended.code, ended.out) == (0, f"{count - 1} notebooks copied to mine\n")
    assert started == [(sys.executable, lab_command(folder, "--no-browser"))]
    assert (folder / TOUR.name).read_text() == "my own"
    assert {path.name for path in folder.iterdir()} == {path.name for path in TOUR.parent.glob("*.ipynb")}
    assert uavlab("lab", "mine").out.startswith("0 notebooks")
    (tmp_path / "file").touch()
    assert uavlab("lab", "file").code == 5


def test_lab_takes_options_without_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *given: started.append(given))
    assert uavlab("lab", "--", "--no-browser").code == 0
    assert started == [(sys.executable, lab_command(tmp_path, "--no-browser"))]


@pytest.mark.parametrize(
    "option",
    [
        "--ServerApp.token=",
        "--IdentityProvider.token=",
        "--Ident=x",
        "--ServerApp.ip=*",
        "--ip=0.0.0.0",
        "--config=mine.py",
        "--ServerApp.password=",
        "--port",
        "--no-browser=1",
        "mine",
    ],
)
def test_lab_refuses_options_that_could_open_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str) -> None:
    started: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *given: started.append(given))
    ended = uavlab("lab", "mine", "--", "--no-browser", option)
    assert (ended.code, started, list(tmp_path.iterdir())) == (2, [], [])
    assert ended.err == (
        f"ConfigError: lab: option {option!r}; expected --no-browser, --port=N, --allow-root or --debug. Others could "
        "turn off the token: start `jupyter lab` yourself for them.\n"
    )


def test_lab_passes_on_what_changes_no_access(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *given: started.append(given))
    options = ["--no-browser", "--port=8899", "--allow-root", "--debug"]
    assert uavlab("lab", "--", *options).code == 0
    assert started == [(sys.executable, lab_command(tmp_path, *options))]


def test_the_laboratory_listens_here_alone_whatever_was_asked(tmp_path: Path) -> None:
    command = lab_command(tmp_path, "--no-browser", "--ServerApp.ip=0.0.0.0")
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert [word for word in command if "ip=" in word][-1] == "--ServerApp.ip=127.0.0.1"  # the last one counts
    assert not any("token" in word for word in command)


@pytest.mark.parametrize(("code", "reason"), [(0, ""), (1, "cell 3 failed"), (124, "too slow"), (138, "dead")])
def test_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, reason: str) -> None:
    given: list[Any] = []

    def run(source: Path, values: dict[str, Any], out: Path, timeout: int, progress: bool) -> Any:
        given.append((source.name, values, timeout, progress))
        return runner.NotebookRun(code, reason, out)

    monkeypatch.setattr(runner, "run_notebook", run)
    monkeypatch.setattr(report, "report", lambda source, page: None)
    monkeypatch.setattr(report, "last_printed", lambda source: "it flew\n")
    (tmp_path / "p.yaml").write_text("updates: 7\nseed: 4\n")
    ended = uavlab("notebook", TOUR, "-p", "seed", "5", "-f", "p.yaml", "--timeout", "60", "--json")
    assert given == [(TOUR.name, {"updates": 7, "seed": 5}, 60, False)]
    out = "runs/tour.ipynb"
    result = {"exit_code": code, "reason": reason, "notebook": out, "html": "runs/tour.html"}
    assert (ended.code, ended.json) == (code, result)
    assert ended.out.startswith(f"it flew\nexecuted notebook: {out}\n")
    assert ended.err.strip() == reason


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [("no_such", [], "no_such"), (TOUR, ["-p", "sed", "1"], "sed"), (TOUR, ["-p", "seed", "x"], "seed")],
)
def test_a_notebook_is_checked_before_a_kernel_starts(
    tmp_path: Path, name: str | Path, given: list[str], message: str
) -> None:
    ended = uavlab("notebook", name, *given)
    assert ended.code == 2
    assert message in ended.err
    assert os.listdir(tmp_path) == []
