"""A reader neither blocks on a pipe nor reads more than its limit, and files are replaced atomically."""

import os
from pathlib import Path

import pytest

from uavlab.core.errors import FileError, ResourceError
from uavlab.storage import files
from uavlab.storage.files import atomic_write, copy_missing, open_regular, read_json, read_regular, write_json


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
    with atomic_write(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
        assert temporary.suffix == ".gz"
    assert path.read_bytes() == b"new"

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with (
        pytest.raises(ResourceError, match=r"gz: cannot be written \(No space left on device\)"),
        atomic_write(path) as temporary,
    ):
        temporary.write_bytes(b"newer")

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as temporary:
        temporary.write_bytes(b"newer")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["trace.json.gz"]


def test_a_file_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files.require_writable(tmp_path / "new" / "folder" / "page.html")
    with pytest.raises(ResourceError, match=r"file/page\.html: cannot be written \(.*file is a file\)"):
        files.require_writable(tmp_path / "file" / "page.html")


class TestJson:
    def test_written_whole_and_read_back(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        for value in ({"one": 1}, {"two": [2.5, None, "ü"]}):
            write_json(path, value)
            assert read_json(path) == value
        assert os.listdir(tmp_path) == ["a.json"]

    def test_a_refusing_disk_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "a.json"
        write_json(path, {"old": 1})

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(files.os, "fsync", full)
        with pytest.raises(ResourceError, match=r"a\.json: cannot be written \(No space left on device\); free some"):
            write_json(path, {"new": 2})
        assert read_json(path) == {"old": 1}
        assert os.listdir(tmp_path) == ["a.json"]

    def test_a_missing_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ResourceError, match="cannot be written"):
            write_json(tmp_path / "none" / "a.json", {})

    @pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[1]", b"3", b"null"])
    def test_what_is_no_object_is_refused(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "a.json"
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"a\.json: (damaged, it cannot be read as JSON|expected a JSON object)"):
            read_json(path)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match=r"a\.json: cannot be read \(No such file or directory\)\.$"):
            read_json(tmp_path / "a.json")


def test_only_missing_files_are_copied(tmp_path: Path) -> None:
    sources = [tmp_path / name for name in ("a", "b", "c")]
    for source in sources:
        source.write_text(f"new {source.name}")
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    (folder / "a").write_text("old")
    (folder / "b").symlink_to(tmp_path / "nowhere")  # writing through it would make a file elsewhere
    assert copy_missing(sources, folder) == [folder / "c"]
    assert ((folder / "a").read_text(), (folder / "c").read_text()) == ("old", "new c")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(ResourceError, match="choose another folder"):
        copy_missing(sources, tmp_path / "a")
