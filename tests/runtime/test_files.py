"""A reader neither waits for what is no file nor reads more than it was told to."""

import os
from pathlib import Path

import pytest

from uavlab.runtime.files import open_regular, read_regular


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    assert read_regular(path, 3) == b"abc"
    with open_regular(path) as handle:
        assert handle.read() == b"abc"
    (tmp_path / "link").symlink_to(path)
    assert read_regular(tmp_path / "link", 3) == b"abc"


def test_what_is_larger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    with pytest.raises(OSError, match="larger than 2 bytes"):
        read_regular(tmp_path / "x", 2)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(path, 9)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
