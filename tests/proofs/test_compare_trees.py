"""Two trees compared as a person does it: a commit equals itself, and a changed line of an update is found."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ("--presets", "leader_follower", "--updates", "2", "--set", "hidden=8", "--set", "learning_starts=64")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Clone the last commit."""
    clone = ["git", "clone", "--quiet", "--shared", str(ROOT), str(tmp_path / "tree")]
    if subprocess.run(clone, capture_output=True).returncode:
        pytest.skip("not a git checkout")
    shutil.copy(ROOT / "tools" / "compare_trees.py", tmp_path / "tree" / "tools")
    return tmp_path / "tree"


def compare(tree: Path, *options: str, monkeypatch: pytest.MonkeyPatch) -> subprocess.CompletedProcess[str]:
    monkeypatch.setenv("PYTHONPATH", str(tree))
    command = [sys.executable, "tools/compare_trees.py", "HEAD", *SMALL, *options]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True)


@pytest.mark.parametrize("options", [(), pytest.param(("--resume",), marks=pytest.mark.soak)])
def test_a_commit_equals_itself(tree, options, monkeypatch):
    done = compare(tree, *options, monkeypatch=monkeypatch)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 1 equal to HEAD" in done.stdout


def test_a_changed_update_is_found(tree, monkeypatch):
    module = tree / "uavlab" / "learners" / "masac" / "masac.py"
    text = module.read_text()
    assert "soft = q - " in text
    module.write_text(text.replace("soft = q - ", "soft = q - 1e-3 - "))
    done = compare(tree, monkeypatch=monkeypatch)
    assert done.returncode == 1
    assert "learner/critic" in done.stdout
    assert "0 of 1 equal to HEAD" in done.stdout
