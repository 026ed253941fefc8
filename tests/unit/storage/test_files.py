"""A reader neither waits for what is no file nor reads more than it was told to."""

import os
from pathlib import Path

import pytest

from uavlab.core.errors import ResourceError
from uavlab.storage import files
from uavlab.storage.files import open_regular, read_regular, replacing


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


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(b"old")
    with replacing(path) as beside:
        beside.write_bytes(b"new")
        assert path.read_bytes() == b"old"
        assert beside.suffix == ".gz"
    assert path.read_bytes() == b"new"

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with (
        pytest.raises(ResourceError, match=r"gz: cannot be written \(No space left on device\)"),
        replacing(path) as beside,
    ):
        beside.write_bytes(b"newer")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["trace.json.gz"]
