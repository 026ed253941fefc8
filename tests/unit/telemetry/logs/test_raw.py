"""Fields by their full names, places of rows, and logs that are refused before they are read."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from uavlab.core.errors import FileError
from uavlab.telemetry.logs import raw as module
from uavlab.telemetry.logs.raw import Group, RawLog, list_names, open_log, quote_name, require_size

VALUES = np.arange(3.0)


def test_fields_of_topics() -> None:
    topics = {name: Group(name, f"a.ulg {name}", {"x": VALUES, "current.lat": VALUES}) for name in ("pos", "pos#1")}
    raw = RawLog("a.ulg", "ulog", topics)
    assert raw.find("pos.x") == (topics["pos"], "x")
    assert raw.find("pos#0.x") == (topics["pos"], "x")
    assert raw.find("pos#1.current.lat") == (topics["pos#1"], "current.lat")
    for name in ("pos", "pos.y", "pos#2.x", "x", ""):
        assert raw.find(name) is None
    assert raw.names() == ["pos.x", "pos.current.lat", "pos#1.x", "pos#1.current.lat"]
    assert topics["pos"].locate(2) == "a.ulg pos row 2"


def test_fields_of_a_table() -> None:
    group = Group("", "a.csv", {"pos.x": VALUES}, lines=np.array([2, 3, 5]))
    raw = RawLog(str(Path("a.csv")), "csv", {"": group})
    assert raw.find("pos.x") == (group, "pos.x")
    assert raw.find("x") is None
    assert raw.names() == ["pos.x"]
    assert group.locate(2) == "a.csv:5"


def test_names_are_quoted_on_one_line() -> None:
    assert quote_name("vehicle_local_position_setpoint.acceleration[0]") == (
        "'vehicle_local_position_setpoint.acceleration[0]'"
    )
    assert quote_name("a\n" + "b" * 999) == r"'a\n" + "b" * 78 + "'"


def test_lists_of_names_are_short() -> None:
    assert list_names([]) == "none"
    assert list_names(["a", "b\n"]) == r"a, b\n"
    assert list_names([f"c{n}" for n in range(22)]).endswith("c19 and 2 more")


def test_a_file_is_open_log(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    with open_log(tmp_path / "x") as handle:
        assert handle.read() == b"abc"


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 5 * 10**9)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "not readable: No such file or directory."),
        (os.mkfifo, "not readable: not a regular file."),
        (Path.mkdir, "not readable: not a regular file."),
        (loop, "not readable: Too many levels of symbolic links."),
        (Path.touch, "empty; expected a log of a flight."),
        (huge, "5,000,000,000 bytes; at most 1,073,741,824 are read. Cut the log into parts."),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(FileError) as refusal, open_log(path):
        raise AssertionError("it was opened")
    assert str(refusal.value) == f"{path}: {message}"


def test_an_impossible_name_and_a_failing_disk_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not readable: embedded null byte"), open_log(Path("a\0b")):
        pass
    (tmp_path / "x").write_bytes(b"abc")
    with pytest.raises(FileError, match=r"x: not readable: Input/output error\.$"), open_log(tmp_path / "x"):
        raise OSError(5, "Input/output error")


def test_the_limit_is_the_last_size_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 10)
    require_size(Path("x"), 10)
    with pytest.raises(FileError, match=r"^x: 11 bytes when unpacked; at most 10 are read"):
        require_size(Path("x"), 11, " when unpacked")
