"""What is no file, empty or too large is refused before it is read."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from uavlab.core.errors import FileError
from uavlab.telemetry.logs import safe_open as module
from uavlab.telemetry.logs.safe_open import opened, require_size


def test_a_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    with opened(tmp_path / "x") as handle:
        assert handle.read() == b"abc"


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 5 * 10**9)


def looped(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "not readable: No such file or directory."),
        (os.mkfifo, "not readable: not a regular file."),
        (Path.mkdir, "not readable: not a regular file."),
        (looped, "not readable: Too many levels of symbolic links."),
        (Path.touch, "empty; expected a log of a flight."),
        (huge, "5,000,000,000 bytes; at most 1,073,741,824 are read. Cut the log into parts."),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(FileError) as refusal, opened(path):
        raise AssertionError("it was opened")
    assert str(refusal.value) == f"{path}: {message}"


def test_an_impossible_name_and_a_failing_disk_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not readable: embedded null byte"), opened(Path("a\0b")):
        pass
    (tmp_path / "x").write_bytes(b"abc")
    with pytest.raises(FileError, match=r"x: not readable: Input/output error\.$"), opened(tmp_path / "x"):
        raise OSError(5, "Input/output error")


def test_the_limit_is_the_last_size_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 10)
    require_size(Path("x"), 10)
    with pytest.raises(FileError, match=r"^x: 11 bytes when unpacked; at most 10 are read"):
        require_size(Path("x"), 11, " when unpacked")
