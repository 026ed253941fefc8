"""What a killed process left of compiled code is removed, and nothing else."""

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from uavlab.runtime import wrappers
from uavlab.runtime.wrappers import MARKERS, OURS, VARIABLE, compilation, keep_compiled_code

KILLED = """
import os, signal
from pathlib import Path
from uavlab.runtime.wrappers import compilation, keep_compiled_code
keep_compiled_code()
with compilation():
    Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "short.so").write_bytes(b"")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of compiled code, with two whole files."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    keep_compiled_code()
    with compilation():
        (tmp_path / OURS / "ab").mkdir()
        (tmp_path / OURS / "ab" / "one.so").write_bytes(bytes(range(100)))
        (tmp_path / OURS / "two.py").write_text("x = 1\n")
    for name in ("ab/one.so", "two.py"):
        os.utime(tmp_path / OURS / name, (time.time() - 10,) * 2)
    return tmp_path / OURS


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.suffix in (".so", ".py")}


def test_what_a_killed_process_left_is_removed(folder: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED]).returncode == -9
    assert names(folder) == {"ab/one.so", "two.py", "short.so"}
    with compilation():
        assert names(folder) == {"ab/one.so", "two.py"}
    assert len([*(folder / MARKERS).iterdir()]) == 0


def test_a_compilation_that_fails_leaves_nothing(folder: Path) -> None:
    def interrupt() -> None:
        with compilation():
            (folder / "short.so").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    with compilation():
        assert names(folder) == {"ab/one.so", "two.py"}


def test_a_suspended_process_does_not_keep_others_from_compiling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrappers, "WAIT_S", 0.1)
    with (folder / wrappers.MUTEX).open("ab") as suspended:
        fcntl.flock(suspended, fcntl.LOCK_EX)
        with compilation():
            assert [*(folder / MARKERS).iterdir()] == []
    with compilation():
        assert len([*(folder / MARKERS).iterdir()]) == 1


def test_files_of_compilations_that_go_on_are_left_alone(folder: Path) -> None:
    with compilation():
        (folder / "mine.so").touch()
        with compilation():
            (folder / "other.so").touch()
        assert subprocess.run([sys.executable, "-c", KILLED]).returncode == -9
        with compilation():
            assert names(folder) == {"ab/one.so", "two.py", "mine.so", "other.so", "short.so"}
    with compilation():
        assert names(folder) == {"ab/one.so", "two.py", "mine.so", "other.so"}  # of before the one that did not end


def test_torch_marks_what_it_compiles(folder: Path) -> None:
    markers: list[int] = []

    def backend(graph: Any, inputs: Any) -> Callable:
        markers.append(len([*(folder / MARKERS).iterdir()]))
        (folder / "three.so").touch()
        return graph.forward

    torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2))
    assert markers == [1]
    with compilation():
        assert names(folder) == {"ab/one.so", "two.py", "three.so"}


@pytest.mark.parametrize("failures", [1, 2])
def test_code_that_cannot_be_loaded_is_compiled_once_more_elsewhere(
    folder: Path, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []

    def compiler(fn: Any, **options: Any) -> Any:
        def call(*given: Any) -> Any:
            folders.append(os.environ[VARIABLE])
            if len(folders) <= failures:
                raise ImportError("x.main.so: file too short")
            return fn(*given)

        return call

    monkeypatch.setattr(torch, "compile", compiler)
    monkeypatch.setattr(wrappers, "check_vector_instructions", lambda: None)  # it writes files, too
    reasons: list[str] = []
    fn = wrappers.compile_function(lambda x: x + 1, "plus", "default", reasons.append)
    assert [fn(1), fn(2)] == [2, 3]
    assert folders[0] == str(folder)
    assert str(folder) not in folders[1:]
    assert reasons == ["plus: ImportError: x.main.so: file too short"] * (failures == 2)


class TestFolder:
    @pytest.fixture(autouse=True)
    def cache(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        return tmp_path / "uavlab" / "compiled"

    @pytest.mark.parametrize("present", [None, "torchinductor_someone"])  # torch sets the variable to its own folder
    def test_it_is_in_the_users_cache(self, cache: Path, present: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(VARIABLE)
        if present:
            monkeypatch.setenv(VARIABLE, str(Path(tempfile.gettempdir(), present)))
        for _ in range(2):
            keep_compiled_code()
            assert os.environ[VARIABLE] == str(cache)
        assert cache.is_dir()

    def test_in_a_folder_of_the_users_it_is_one_of_its_own(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "letter").write_text("precious")
        monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
        for _ in range(2):  # as in a process that this one starts
            keep_compiled_code()
            assert os.environ[VARIABLE] == str(tmp_path / "mine" / OURS)
        with compilation():
            pass
        assert (tmp_path / "mine" / "letter").read_text() == "precious"
        assert not cache.exists()

    def test_a_folder_of_others_is_left_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        letter = tmp_path / "mine" / OURS / "letter"
        letter.parent.mkdir(parents=True)
        letter.write_text("precious")
        monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
        keep_compiled_code()
        for _ in range(2):
            with compilation():
                pass
        assert os.environ[VARIABLE] == str(tmp_path / "mine")
        assert [path.name for path in letter.parent.iterdir()] == ["letter"]

    def test_where_no_folder_can_be_made_torch_chooses(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(VARIABLE)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        (tmp_path / "file").write_text("a file")
        keep_compiled_code()
        assert VARIABLE not in os.environ
        with compilation():
            pass
