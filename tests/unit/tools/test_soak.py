"""A soak that was stopped or changed goes on with the cases that did not pass with this version of the code."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import soak

CASES = ["tests/test_a.py::test[1]", "tests/test_a.py::test[2 b]", "tests/test_b.py::test"]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the cases given to pytest; ``test_a.py::test[2 b]`` fails."""
    (tmp_path / "tests").mkdir()
    for name, text in (("test_a.py", "mark.soak"), ("test_b.py", "mark.soak"), ("test_c.py", "")):
        (tmp_path / "tests" / name).write_text(text)
    names: list[str] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        if "--collect-only" in command:
            assert [Path(name).name for name in command[6:]] == ["test_a.py", "test_b.py"]
            return SimpleNamespace(stdout="\n".join([*CASES, "", "3 of 9 tests collected"]))
        names.append(command[5])
        return SimpleNamespace(returncode=int(names[-1] == CASES[1]))

    monkeypatch.setattr(soak, "ROOT", tmp_path)
    monkeypatch.setattr(soak, "RECORD", tmp_path / "build" / "soak.json")
    monkeypatch.setattr(soak, "code_version", lambda: "one")
    monkeypatch.setattr(subprocess, "run", run)
    return names


def test_what_passed_is_left_out_until_the_code_changes(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert soak.main([]) == 1
    assert soak.main([]) == 1
    assert ran == [*CASES, CASES[1]]
    monkeypatch.setattr(soak, "code_version", lambda: "another")
    soak.main([])
    assert ran[4:] == CASES
