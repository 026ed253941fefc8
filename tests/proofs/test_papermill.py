"""Notebooks run by papermill itself with changed parameters, and show their figures; a wrong value ends one.

Three of them do so in the proofs, where nbval runs every notebook; the soak has the rest.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from ruamel.yaml import YAML

from uavlab.core.installation import ROOT
from uavlab_lab.headless.parameters import declared_parameters
from uavlab_lab.headless.runner import short_name
from uavlab_lab.headless.strip_outputs import figures

NOTEBOOKS = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if declared_parameters(path)]
FEW = ("tour", "live", "claims")
CASES = [pytest.param(path, marks=[pytest.mark.soak] * (short_name(path) not in FEW)) for path in NOTEBOOKS]
SMALL: dict[str, Any] = YAML(typ="safe").load(ROOT / "notebooks" / "small.yaml")


def papermill(path: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "papermill", str(path), str(out), "--cwd", str(path.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("path", CASES, ids=short_name)
def test_a_notebook_with_changed_parameters(path: Path, tmp_path: Path) -> None:
    with (tmp_path / "small.yaml").open("w") as file:
        YAML(typ="safe").dump({**SMALL[short_name(path)], "seed": 5}, file)
    out = tmp_path / "out.ipynb"
    ended = papermill(path, out, "-f", str(tmp_path / "small.yaml"))
    assert ended.returncode == 0, ended.stderr
    assert len(figures(nbformat.read(out, 4))) == len(figures(nbformat.read(path, 4)))


def test_a_wrong_value_ends_the_run(tmp_path: Path) -> None:
    ended = papermill(NOTEBOOKS[0], tmp_path / "out.ipynb", "-p", "seed", "-3")
    assert ended.returncode == 1
    assert "seed = -3, expected int in [0, 2147483648]" in ended.stderr
