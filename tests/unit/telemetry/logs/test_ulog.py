"""ULog files are read topic by topic; damage that pyulog skips is found by a walk through the messages."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest
import pyulog

from tests.support import ulog_writer
from uavlab.core.errors import FileError
from uavlab.telemetry.logs.draft import describe
from uavlab.telemetry.logs.log import read_raw
from uavlab.telemetry.logs.raw import RawLog
from uavlab.telemetry.logs.ulog import is_ulog


def write(folder: Path, raw: bytes) -> str:
    (folder / "a.ulg").write_bytes(raw)
    return str(folder / "a.ulg")


def read(folder: Path, raw: bytes) -> RawLog:
    write(folder, raw)
    return read_raw(folder / "a.ulg", None, others=True)


def test_topics_are_groups(tmp_path: Path) -> None:
    second = "actuator_outputs#1", ulog_writer.OUTPUTS, [[0, 4, 1, 2, 3, 4]]
    raw = read(tmp_path, ulog_writer.ulog(ulog_writer.position(), ulog_writer.outputs(), second))
    assert list(raw.groups) == ["actuator_outputs", "actuator_outputs#1", "vehicle_local_position"]
    group = raw.groups["vehicle_local_position"]
    assert group.time.tolist() == [n / 10 for n in range(11)]
    assert group.fields["x"].tolist() == [np.float32(n / 10) for n in range(11)]
    assert group.locate(3) == f"{tmp_path / 'a.ulg'} vehicle_local_position row 3"
    assert raw.groups["actuator_outputs#1"].fields["output[2]"].tolist() == [3]


def test_facts_of_a_log(tmp_path: Path) -> None:
    facts = read(tmp_path, ulog_writer.old()).facts
    assert facts["hardware"] == "AUAV_X21"
    assert facts["dropouts"] == {"count": 1, "total_ms": 26, "longest_ms": 26}
    assert facts["appended_parts"] == 0


def test_times_before_the_start_are_negative(tmp_path: Path) -> None:
    name, fields, _ = ulog_writer.position()
    raw = read(tmp_path, ulog_writer.ulog((name, fields, [[t, 0, 0, 0, 0, 0, 0] for t in (-500_000, 0, 250_000)])))
    assert raw.groups[name].time.tolist() == [-0.5, 0, 0.25]


def test_a_topic_that_is_there_twice_is_noted(tmp_path: Path) -> None:
    raw = read(tmp_path, ulog_writer.ulog(ulog_writer.position(), ulog_writer.position(3)))
    assert raw.notes == ("vehicle_local_position is there twice; its first part is used",)


def test_what_pyulog_prints_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = bytearray(ulog_writer.old())
    raw[7] = 2
    raw = read(tmp_path, bytes(raw))
    assert raw.notes == ("pyulog: Warning: unknown file version. Will attempt to read it anyway",)
    assert capsys.readouterr().out == ""


MISSION = "mission", ulog_writer.STAMP | {"seq": "int32_t"}, [[1_194_000_000, 0]]  # stamped long after the flight


def test_a_stamp_of_another_topic_does_not_make_the_flight_longer(tmp_path: Path) -> None:
    raw = ulog_writer.ulog(MISSION, ulog_writer.position(), ulog_writer.sensors())
    assert pyulog.ULog(write(tmp_path, raw)).last_timestamp - ulog_writer.START == 1_194_000_000  # the longer one
    assert describe(tmp_path / "a.ulg")["duration_s"] == 1.0


def test_a_start_that_cannot_be_is_no_overflow(tmp_path: Path) -> None:
    raw = ulog_writer.ulog(ulog_writer.position(2))
    raw = read(tmp_path, ulog_writer.header(2**64 - 1) + raw[16:])
    assert raw.groups["vehicle_local_position"].time.tolist() == [5.000001, 5.100001]


OTHER = ulog_writer.STAMP | {"x": "float", "y": "float"}
AGAIN = "copy the log again, or export what is left of it (ulog2csv)."
REFUSED = [
    (b"time,x\n0,1\n", "{}: not a ULog file; one begins with the bytes 55 4c 6f 67 01 12 35."),
    (
        ulog_writer.header()[:12],
        "{}: not readable as ULog: ULogException: Invalid file format (Header too short); copy the log again.",
    ),
    (ulog_writer.header() + b"\x09", "{}: cut off in the middle of a message; copy the log again."),
    (ulog_writer.old()[:-1], "{}: cut off in the middle of a message; copy the log again."),
    (
        ulog_writer.old() + bytes(512),  # as a card leaves it when power is lost
        f"{{}}: damaged at byte {len(ulog_writer.old()):,}; copy the log again.",
    ),
    (
        ulog_writer.ulog(ulog_writer.position(), after=ulog_writer.row(9, ulog_writer.POSITION, [0] * 7)),
        "{}: 11 of 12 messages of data could be read; " + AGAIN,
    ),
    (
        ulog_writer.ulog(ulog_writer.position(), after=ulog_writer.row(0, OTHER, [0] * 3)),
        "{}: 11 of 12 messages of data could be read; " + AGAIN,
    ),
    (
        ulog_writer.ulog(("odd", {"x": "uint64_t"}, [])) + ulog_writer.message("D", struct.pack("<HQ", 0, 1)),
        "{}: not readable as ULog: ValueError: topic 'odd' has no timestamp of type uint64_t; copy the log again.",
    ),
    (
        ulog_writer.header() + ulog_writer.message("F", b"no colon") + ulog_writer.old()[16:],
        "{}: damaged inside; " + AGAIN,
    ),
    (
        ulog_writer.header() + ulog_writer.message("B", bytes(8) + b"\x02" + bytes(31)) + ulog_writer.old()[16:],
        "{}: not readable as ULog: ULogIncompatibleFlagException: Unknown incompatible flag set: cannot parse the "
        "log; copy the log again.",
    ),
    (
        ulog_writer.header() + ulog_writer.form("a", {"x": "a"}) + ulog_writer.subscribe(0, "a"),
        "{}: not readable as ULog: RecursionError: maximum recursion depth exceeded…; copy the log again.",
    ),
]


@pytest.mark.parametrize(("raw", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_bad_log_is_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    with pytest.raises(FileError) as refusal:
        read(tmp_path, raw)
    message = re.escape(message.format(tmp_path / "a.ulg")).replace("…", ".*")
    assert re.fullmatch(message, str(refusal.value)), refusal.value


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError("deep"), struct.error("short"), TypeError("\x1b[2J")])
def test_whatever_pyulog_raises_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(pyulog.ULog, "__init__", fail)
    with pytest.raises(FileError, match=rf"a\.ulg: not readable as ULog: {type(error).__name__}: .*; copy the log ag"):
        read(tmp_path, ulog_writer.old())


def test_memory_that_runs_out_is_no_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(pyulog.ULog, "__init__", fail)
    with pytest.raises(MemoryError):
        read(tmp_path, ulog_writer.old())


def test_no_changed_byte_brings_another_error_than_ours(tmp_path: Path) -> None:
    raw, chance = ulog_writer.new(), np.random.default_rng(1)
    refused = 0
    for _ in range(300):
        changed = bytearray(raw)
        for at in chance.integers(7, len(raw), 3):
            changed[at] = chance.integers(256)
        try:
            read(tmp_path, bytes(changed))
        except FileError:
            refused += 1
    assert 50 < refused < 300  # most bytes are measured values, which may be anything


def test_ulog_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    for name, raw, known in (
        ("a.bin", ulog_writer.old(), True),
        ("a.ulg", b"ULog\x02\x12\x35", False),
        ("b", b"U", False),
    ):
        (tmp_path / name).write_bytes(raw)
        assert is_ulog(tmp_path / name) is known


def test_every_cut_is_seen_but_those_between_messages(tmp_path: Path) -> None:
    raw = ulog_writer.ulog(ulog_writer.position(3))
    ends = {16}
    while max(ends) < len(raw):
        at = max(ends)
        ends.add(at + 3 + int.from_bytes(raw[at : at + 2], "little"))
    for size in range(17, len(raw)):
        if size in ends:
            assert len(read(tmp_path, raw[:size]).groups) <= 1
        else:
            with pytest.raises(FileError, match=r"a\.ulg: cut off in the middle of a message; copy the log again\.$"):
                read(tmp_path, raw[:size])


@pytest.mark.parametrize("junk", [bytes(64), b"\x05\0z12345", b"\0\0D", b"\x02\0D\0\0", b"\x09\0D" + bytes(9)])
def test_damage_is_found_where_it_begins(tmp_path: Path, junk: bytes) -> None:
    raw = ulog_writer.old()
    with pytest.raises(FileError, match=f"damaged at byte {len(raw):,}; copy the log again"):
        read(tmp_path, raw + junk + raw[16:])


def appended(cut: int) -> bytes:
    """Two rows, one of which ``cut`` bytes are lost, and a report that was appended after a crash."""
    name, fields, rows = ulog_writer.position(5)
    first = ulog_writer.ulog((name, fields, rows[:3]), before=ulog_writer.flags(1))
    offset = len(first) - cut
    first = ulog_writer.ulog((name, fields, rows[:3]), before=ulog_writer.flags(offset))
    return first[:offset] + ulog_writer.info("hardfault", "a report")


@pytest.mark.parametrize(("cut", "rows"), [(0, 3), (1, 2), (30, 2)])
def test_a_message_cut_off_by_a_crash_is_no_loss(tmp_path: Path, cut: int, rows: int) -> None:
    raw = appended(cut)
    log = read(tmp_path, raw)
    assert len(log.groups["vehicle_local_position"].time) == rows
    assert log.facts["appended_parts"] == 1
    with pytest.raises(FileError, match="cut off in the middle of a message"):
        read(tmp_path, raw[:-1])


def test_impossible_offsets_are_ignored_or_damage(tmp_path: Path) -> None:
    log = read(tmp_path, ulog_writer.ulog(ulog_writer.position(3), before=ulog_writer.flags(10**9)))
    assert (log.facts["appended_parts"], len(log.groups["vehicle_local_position"].time)) == (0, 3)
    for offsets in ((300, 200), (4, 200), (200, 200)):
        with pytest.raises(FileError, match=r"copy the log again, or export what is left of it \(ulog2csv\)\.$"):
            read(tmp_path, ulog_writer.ulog(ulog_writer.position(3), before=ulog_writer.flags(*offsets)))
