"""The set-up installs once, again when something changed, and ends with a sentence where it cannot go on."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "setup.py"


class Machine:
    """A checkout in which programs are recorded instead of run."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Load the set-up with a folder of its own and a recorder of programs."""
        spec = importlib.util.spec_from_file_location("setup_script", SCRIPT)
        self.setup: ModuleType = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.setup)
        self.monkeypatch, self.root, self.code = monkeypatch, root, 0
        for name, value in {"ROOT": root, "VENV": root / ".venv", "STAMP": root / ".venv" / "stamp"}.items():
            monkeypatch.setattr(self.setup, name, value)
        monkeypatch.setattr(self.setup, "PYTHON", root / ".venv" / "bin" / "python")
        monkeypatch.setattr(self.setup.subprocess, "run", self.program)
        monkeypatch.delenv("TORCH", raising=False)
        self.free(100e9)
        for name in ("pyproject.toml", "constraints.txt", "requirements.lock"):
            (root / name).write_text("")

    def free(self, size: float) -> None:
        """Set the free bytes of the disk."""
        self.monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size))

    def program(self, command: list[str], **_: object) -> subprocess.CompletedProcess:
        """Record a program; venv leaves a Python behind."""
        if "venv" in command:
            self.setup.PYTHON.parent.mkdir(parents=True, exist_ok=True)
            self.setup.PYTHON.write_text("")
        if "--version" in command:
            return subprocess.CompletedProcess(command, 0)
        self.ran.append(" ".join(command[2:]).replace(str(self.root), "."))
        return subprocess.CompletedProcess(command, self.code)

    def make(self, *arguments: str, torch: str = "") -> list[str]:
        """Run the set-up and return what it ran."""
        self.ran: list[str] = []
        self.monkeypatch.setattr(sys, "argv", ["setup.py", *arguments])
        self.monkeypatch.setenv("TORCH", torch)
        self.setup.main()
        return self.ran


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


PIP = "pip install --no-input --disable-pip-version-check --quiet"
VENV = "venv --clear ./.venv"
LOCKED = f"{PIP} --require-hashes --no-deps --only-binary :all: -r requirements.lock"
TORCH = f"{PIP} -c constraints.txt torch"
INDEXED = f"{PIP} -c constraints.txt --index-url file:///cpu --no-deps --force-reinstall torch"
PACKAGE = f"{PIP} -c constraints.txt --no-build-isolation -e .[all,dev]"
ALL = [LOCKED, TORCH, PACKAGE]


def test_the_first_time_installs_and_the_second_does_nothing(machine: Machine) -> None:
    assert machine.make() == [VENV, *ALL]
    assert machine.make() == []


@pytest.mark.parametrize("build", ["cpu", "cu130"])
def test_a_build_of_torch_is_named_by_its_folder(machine: Machine, build: str) -> None:
    address = f"https://download.pytorch.org/whl/{build}"
    assert machine.make(torch=build) == [VENV, LOCKED, INDEXED.replace("file:///cpu", address), PACKAGE]


def test_torch_comes_from_its_own_index_and_stays(machine: Machine) -> None:
    assert machine.make(torch="file:///cpu") == [VENV, LOCKED, INDEXED, PACKAGE]
    assert machine.make() == []  # later commands need not name it again
    assert machine.make(torch="file:///cpu") == []
    assert machine.make(torch="file:///other") == [LOCKED, INDEXED.replace("cpu", "other"), PACKAGE]
    assert "file:///" not in machine.setup.STAMP.read_text()  # an address may hold a password


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", "requirements.lock"])
def test_a_changed_requirement_installs_again(machine: Machine, name: str) -> None:
    machine.make()
    (machine.root / name).write_text("x")
    assert machine.make() == ALL


def test_another_python_or_place_makes_a_new_venv(machine: Machine) -> None:
    machine.make()
    assert machine.make("--this-python") == []
    for key in ("python", "root"):
        stamp = json.loads(machine.setup.STAMP.read_text())
        machine.setup.STAMP.write_text(json.dumps({**stamp, key: "another"}))
        assert machine.make("--this-python") == [VENV, *ALL]


def test_a_failed_install_is_not_marked_as_done(machine: Machine) -> None:
    machine.make()
    (machine.root / "constraints.txt").write_text("x")
    machine.code = 1
    with pytest.raises(SystemExit, match=r"setup: pip failed; its reason is above\."):
        machine.make()
    machine.code = 0
    assert machine.make() == ALL


def test_an_old_python_is_told_apart(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.make()
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    assert machine.make() == []  # what was installed by a newer one is there
    shutil.rmtree(machine.setup.VENV)
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "python3.12" else None)
    with pytest.raises(
        SystemExit, match=r"needs Python 3\.11 or newer; .* is 3\.9\.\nsetup: Try: make setup PYTHON=python3\.12"
    ):
        machine.make()


def test_a_python_without_venv_is_told_apart(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"lacks the module venv\.\nsetup: On Debian"):
        machine.make()


def test_a_full_disk_is_told_before_anything_is_written(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    machine.free(2.94e9)
    with pytest.raises(SystemExit, match=r"has 2\.9 GB free; the packages need 3 GB\."):
        machine.make()
    assert machine.ran == []
    machine.free(5e9)
    machine.make(torch="file:///cpu")
    assert "CUDA" not in capsys.readouterr().out
    shutil.rmtree(machine.setup.VENV)
    machine.make()
    assert "5.0 GB are free; torch with CUDA takes up to 8 GB." in capsys.readouterr().out
