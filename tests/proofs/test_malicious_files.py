"""No file makes uavlab run code, hang or take much memory: each is refused with an error of its class."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import numpy as np
import pytest
from ruamel.yaml import YAML

from tests.support import malicious_files
from tests.support.malicious_files import GALLERY, complaint
from uavlab.core import text
from uavlab.experiment import config
from uavlab_lab.headless.report import report

MOST_MEMORY = 2**30  # bytes, the interpreter with torch among them


def test_a_gallery_of_hostile_files_is_refused(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    env = {**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}  # would let torch unpickle, if it were asked to load
    command = [sys.executable, "-m", "tests.support.malicious_files", str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["complaints"] == {}
    assert result["read"] == len(GALLERY) >= 30
    assert result["peak"] < MOST_MEMORY
    slowest, seconds = result["longest"]
    proof(
        "malicious files",
        f"{result['read']} refused, 0 side effects, at most {result['peak'] / 2**20:.0f} MiB, "
        f"{seconds:.1f} s ({slowest})",
    )


@pytest.fixture
def read_one(tmp_path: Path, one_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Read one of the gallery, and come back to this folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(malicious_files, "PATIENCE", 1)
    return lambda name: complaint(GALLERY[name], tmp_path / "here", one_checkpoint)


def test_a_reader_that_unpickles_is_caught(read_one: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    load = np.load
    monkeypatch.setattr(np, "load", lambda file, allow_pickle: load(file, allow_pickle=True))
    assert "made" in read_one("group: objects")


def test_a_reader_that_builds_objects_is_caught(
    read_one: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(given: str, where: str, lines: bool = False) -> object:
        with pytest.warns(PendingDeprecationWarning):
            return YAML(typ="unsafe", pure=True).load(given)

    monkeypatch.setattr("uavlab.experiment.config.yaml_value", load)
    assert "made" in read_one("yaml: apply")


def test_a_reader_that_waits_is_caught(read_one: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "read_regular", lambda path, most: path.read_bytes())
    assert read_one("yaml: pipe") == "Hung: "


def test_a_reader_that_expands_is_caught(read_one: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_forbidden_constructs", lambda events: iter(()))
    assert read_one("yaml: merge bomb") == "Hung: "


def test_a_page_holds_what_a_cell_printed_as_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\x1b[31m"
    cell = nbformat.v4.new_code_cell("1")
    cell.outputs = [
        nbformat.v4.new_output("stream", text=evil),
        nbformat.v4.new_output("error", ename=evil, evalue=evil, traceback=[evil]),
        nbformat.v4.new_output("display_data", {"text/plain": evil}),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "a.ipynb")
    report(tmp_path / "a.ipynb", tmp_path / "a.html", code=True)
    page = (tmp_path / "a.html").read_text()
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert") == 3
