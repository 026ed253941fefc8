"""A soak that was stopped or changed goes on with the files that did not pass with this version of the code."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import soak


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the files given to pytest; ``test_b.py`` fails."""
    (tmp_path / "tests").mkdir()
    for name, text in (("test_a.py", "mark.soak"), ("test_b.py", "mark.soak"), ("test_c.py", "")):
        (tmp_path / "tests" / name).write_text(text)
    names: list[str] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        names.append(Path(command[5]).name)
        return SimpleNamespace(returncode=int(names[-1] == "test_b.py"))

    monkeypatch.setattr(soak, "ROOT", tmp_path)
    monkeypatch.setattr(soak, "RECORD", tmp_path / "build" / "soak.json")
    monkeypatch.setattr(soak, "code_version", lambda: "one")
    monkeypatch.setattr(subprocess, "run", run)
    return names


def test_what_passed_is_left_out_until_the_code_changes(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert soak.main([]) == 1
    assert soak.main([]) == 1
    assert ran == ["test_a.py", "test_b.py", "test_b.py"]
    monkeypatch.setattr(soak, "code_version", lambda: "another")
    soak.main([])
    assert ran[3:] == ["test_a.py", "test_b.py"]


def test_another_change_of_the_code_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    monkeypatch.setattr(soak, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "uavlab").mkdir()
    (tmp_path / "uavlab" / "a.py").write_text("1\n")
    git("init")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "a")
    first = soak.code_version()
    (tmp_path / "figures.json").write_text("{}")
    assert soak.code_version() == first
    (tmp_path / "uavlab" / "a.py").write_text("2\n")
    assert soak.code_version() != first
