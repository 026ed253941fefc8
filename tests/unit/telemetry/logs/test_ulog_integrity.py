"""The walk through a ULog file: how much of it is intact, and formats that would exhaust memory."""

import pytest

from tests.support import ulog_writer
from uavlab.telemetry.logs.ulog_integrity import MOST_FIELDS, walk


def test_a_whole_file() -> None:
    raw = ulog_writer.old()
    integrity = walk(raw)
    assert (integrity.whole, integrity.problem, integrity.bomb, integrity.appended) == (len(raw), "", "", ())
    assert integrity.rows == 11 + 21 + 51 + 11


def test_every_cut_is_seen_but_those_between_messages() -> None:
    raw = ulog_writer.ulog(ulog_writer.position(3))
    ends = {16}
    while max(ends) < len(raw):
        at = max(ends)
        ends.add(at + 3 + int.from_bytes(raw[at : at + 2], "little"))
    for size in range(7, len(raw)):
        integrity = walk(raw[:size])
        if size < 16:
            assert (integrity.whole, integrity.problem) == (size, "cut off within its header")
        elif size in ends:
            assert (integrity.whole, integrity.problem) == (size, "")
        else:
            expected = max(end for end in ends if end < size), "cut off in the middle of a message"
            assert (integrity.whole, integrity.problem) == expected


@pytest.mark.parametrize("junk", [bytes(64), b"\x05\0z12345", b"\0\0D"])
def test_damage_is_found_where_it_begins(junk: bytes) -> None:
    raw = ulog_writer.old()
    integrity = walk(raw + junk + raw[16:])
    assert (integrity.whole, integrity.problem) == (len(raw), f"damaged at byte {len(raw):,}")


def appended(cut: int) -> bytes:
    """Two rows, a message of which ``cut`` bytes are lost, and two rows appended after a crash."""
    name, fields, rows = ulog_writer.position(5)
    first = ulog_writer.ulog((name, fields, rows[:3]), before=ulog_writer.flags(1))
    offset = len(first) - cut
    first = ulog_writer.ulog((name, fields, rows[:3]), before=ulog_writer.flags(offset))
    return first[:offset] + b"".join(ulog_writer.row(0, fields, values) for values in rows[3:])


@pytest.mark.parametrize(("cut", "rows"), [(0, 5), (1, 4), (30, 4)])
def test_a_message_cut_off_by_a_crash_is_no_loss(cut: int, rows: int) -> None:
    raw = appended(cut)
    integrity = walk(raw)
    assert (integrity.whole, integrity.problem, integrity.rows) == (len(raw), "", rows)
    assert len(integrity.appended) == 1
    assert walk(raw[:-1]).problem == "cut off in the middle of a message"


def test_impossible_offsets_are_ignored() -> None:
    raw = ulog_writer.ulog(ulog_writer.position(3), before=ulog_writer.flags(10**9))
    assert walk(raw).appended == ()
    assert walk(raw).whole == len(raw)
    for offsets in ((300, 200), (4, 200), (200, 200)):
        raw = ulog_writer.ulog(ulog_writer.position(3), before=ulog_writer.flags(*offsets))
        assert (walk(raw).appended, walk(raw).whole) == ((), len(raw))


def nested(depth: int, count: int) -> bytes:
    """Formats within formats, ``count`` of each in the one above."""
    forms = [ulog_writer.form(f"a{n}", {"x": f"a{n + 1}[{count}]"}) for n in range(depth)]
    return (
        ulog_writer.header()
        + b"".join(forms)
        + ulog_writer.form(f"a{depth}", {"x": "float"})
        + ulog_writer.subscribe(0, "a0")
    )


BOMB = f"more than {MOST_FIELDS:,} fields, or formats that hold each other"


@pytest.mark.parametrize(
    ("raw", "bomb"),
    [
        (nested(2, 300), ""),
        (nested(2, 317), BOMB),  # 317 x 317 > 100 000
        (nested(12, 65535), BOMB),
        (nested(17, 1), BOMB),  # deeper than any vehicle logs
        (nested(12, 0), ""),  # what has no length is one
        (ulog_writer.header() + ulog_writer.form("a", {"x": "a"}) + ulog_writer.subscribe(0, "a"), BOMB),
        (ulog_writer.header() + ulog_writer.form("a", {"x": "a[0]", "y": "a"}) + ulog_writer.subscribe(0, "a"), BOMB),
        (ulog_writer.header() + ulog_writer.form("a", {"x": "float[60000]"}) + ulog_writer.subscribe(0, "a"), ""),
        (ulog_writer.header() + ulog_writer.form("a", {"x": "float[60000]"}) + 2 * ulog_writer.subscribe(0, "a"), BOMB),
        (ulog_writer.header() + ulog_writer.form("a", {"x": "float[9999999]"}) + ulog_writer.subscribe(0, "b"), ""),
    ],
)
def test_formats_that_exhaust_memory_are_refused(raw: bytes, bomb: str) -> None:
    assert walk(raw).bomb == bomb
