"""Notebooks are checked against their outputs, with no option to remember, and changed results fail."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nbval.plugin import get_sanitize_patterns

from tests.support.tiny_notebook import write_notebook
from uavlab_lab.headless.runner import run_notebook
from uavlab_lab.headless.strip_outputs import find_faults, strip

ROOT = Path(__file__).parents[2]
CONFIGURATION = (
    "pyproject.toml",
    "notebooks/conftest.py",
    "notebooks/small.yaml",
    "tests/conftest.py",
    "tests/nbval_sanitize.cfg",
)
PARAMETERS = ("seed: int = 0", "parameters")
VARIES = """import datetime, os, time, uuid, warnings
warnings.warn("careful")
print(object(), uuid.uuid4(), datetime.datetime.now(), f"{time.time() % 7:.3f} s", f"{os.getpid()} steps/s")
print({"a", "b", "c", "d"})"""
SHOWS = """import plotly.graph_objects as go
from ipywidgets import Checkbox
from uavlab_lab.widgets import Panel
go.Figure(go.Scatter(y=[1, 2])).show()
Panel([Checkbox()], "A box to tick.")"""
RESULT = "print('improved:', 3 > 2)"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a project with this one's configuration, one good notebook, and bad ones where nobody should look."""
    root = tmp_path_factory.mktemp("project")
    for name in CONFIGURATION:
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    out = root / "notebooks" / "good.ipynb"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONHASHSEED", "0")
        assert run_notebook(write_notebook(root, PARAMETERS, VARIES, SHOWS, RESULT), {}, out).exit_code == 0
    strip(out)
    assert find_faults(out) == []
    for folder in ("notebooks/out", "runs"):
        (root / folder).mkdir()
        write_notebook(root / folder, "1 / 0")
    return root


def nbval(where: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nbval", *arguments]
    ended = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=300)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("where", "argument"),
    [
        ("{project}", "."),
        ("/", "{project}/notebooks"),
        ("{project}/notebooks", ""),
    ],
)
def test_no_flag_to_remember_from_any_folder(project: Path, where: str, argument: str) -> None:
    code, output = nbval(Path(where.format(project=project)), *filter(None, [argument.format(project=project)]))
    assert code == 0, output
    assert "4 passed" in output


def test_a_changed_result_fails(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "notebooks" / "good.ipynb"
    path.write_text(path.read_text().replace("improved: True", "improved: False"))
    code, output = nbval(tmp_path, "notebooks")
    assert code == 1
    assert "1 failed, 3 passed" in output


CATCHES = """import time
try:
    time.sleep(60)
except KeyboardInterrupt:
    pass"""


def test_a_cell_beyond_its_time_fails_though_it_goes_on(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    path = write_notebook(tmp_path / "notebooks", CATCHES, "1", name="slow.ipynb")
    code, output = nbval(tmp_path, str(path), "--nbval-cell-timeout", "2")
    assert code == 1
    assert "the cell ran longer than 2 s and was interrupted" in output
    assert "1 failed, 1 xpassed" in output
    (tmp_path / "notebooks" / "conftest.py").unlink()
    assert nbval(tmp_path, str(path), "--nbval-current-env", "--nbval-cell-timeout", "2")[0] == 0  # nbval alone


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("took 1.25 s", "took 13 s"),
        ("took 3 ms", "took 1,200 µs"),
        ("2.1e+04 env-steps/s", "25,049 env-steps/s"),
        ("50%|█| 5/10 [00:01<00:01, 3.2it/s]", "50%|█| 5/10 [00:02<00:03, 1.9it/s]"),
        ("<function f at 0x7f0011223344>", "<function f at 0x55aabbccddee>"),
        ("/tmp/ipykernel_12/345.py:3: UserWarning", "/tmp/ipykernel_98/76.py:3: UserWarning"),
        ("2026-01-02T03:04:05.678+00:00", "2027-11-12 13:14:15"),
        ("0a1b2c3d-0000-4111-8222-123456789abc", "ffffffff-0000-4111-8222-123456789abc"),
    ],
)
def test_the_rules_make_alike_what_chance_made_differ(one: str, other: str) -> None:
    assert sanitized(one) == sanitized(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("return 1.25", "return 1.26"),
        ("improved: True", "improved: False"),
        ("4 followers", "5 followers"),
        ("0x1", "0x2"),
    ],
)
def test_the_rules_leave_results_alone(one: str, other: str) -> None:
    assert sanitized(one) != sanitized(other)


def sanitized(text: str) -> str:
    for rule, replacement in get_sanitize_patterns((ROOT / "tests" / "nbval_sanitize.cfg").read_text()):
        text = re.sub(rule, replacement, text)
    return text
