"""Integrity of a ULog file: a walk through its messages before they are decoded.

A message is its length (2 bytes), its kind (1 byte) and that many bytes. A vehicle that crashed may have appended data
later, at offsets in the first message; the message that the crash cut off there is no loss.

Source: the ULog file format, as PX4's developer guide describes it.
"""

import struct
from collections import Counter
from dataclasses import dataclass

MAGIC = b"ULog\x01\x12\x35"
HEADER = 16  # bytes before the first message
MOST_FIELDS = 100_000  # of all topics together
DEEPEST = 16  # formats within formats
BASIC = {
    *("int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t"),
    *("float", "double", "bool", "char"),
}

Format = list[tuple[str, int]]
"""Type and count of each field."""


@dataclass(frozen=True)
class Integrity:
    """Result of the walk."""

    whole: int  # bytes from the start that are intact
    problem: str  # what ends them; empty if the file is whole
    bomb: str  # why decoding would not end; empty if it would
    rows: int  # messages of data
    appended: tuple[int, ...]  # offsets of data appended after a crash


def walk(raw: bytes) -> Integrity:
    """Walk through the messages of a ULog file that begins with the magic bytes."""
    size, at = len(raw), min(HEADER, len(raw))
    ends = [*(offset for offset in _appended(raw) if offset < size), size]
    problem = "cut off within its header" if size < HEADER else ""
    counts: Counter[int] = Counter()
    formats: dict[str, Format] = {}
    topics: list[str] = []
    for end in ends:
        while at < end and not problem:
            length, kind = struct.unpack_from("<HB", raw, at) if at + 3 <= size else (0, 255)
            after = at + 3 + length
            if after > end or at + 3 > end:
                problem = "" if end < size else "cut off in the middle of a message"
                break
            if length == 0 or not 65 <= kind <= 90:
                problem = f"damaged at byte {at:,}"
                break
            counts[kind] += 1
            if kind == ord("F"):
                name, fields = _format(raw[at + 3 : after])
                formats[name] = fields
            elif kind == ord("A"):
                topics.append(raw[at + 6 : after].decode("utf-8", "replace"))
            at = after
        at = at if problem or end == size else end
    return Integrity(at, problem, _bomb(formats, topics), counts[ord("D")], tuple(ends[:-1]))


def _appended(raw: bytes) -> list[int]:
    """Read the offsets of appended data from the first message, if it holds them."""
    if len(raw) < HEADER + 43 or raw[HEADER + 2 : HEADER + 3] != b"B" or not raw[HEADER + 11] & 1:
        return []
    offsets = [offset for offset in struct.unpack_from("<3Q", raw, HEADER + 19) if offset]
    return offsets if offsets == sorted(set(offsets)) and offsets[0] > HEADER else []


def _format(raw: bytes) -> tuple[str, Format]:
    """Parse ``name:type[count] field;...``; a count that is no number is 1."""
    name, _, rest = raw.decode("utf-8", "replace").partition(":")
    fields = []
    for field in rest.split(";"):
        kind, bracket, count = field.partition(" ")[0].partition("[")
        digits = count.partition("]")[0]
        fields.append((kind, max(1, int(digits)) if bracket and digits.isdecimal() and len(digits) < 7 else 1))
    return name, fields


def _bomb(formats: dict[str, Format], topics: list[str]) -> str:
    """Describe formats that contain each other, or more fields than a vehicle logs."""
    known: dict[str, int] = {}

    def count(name: str, depth: int) -> int:
        if depth > DEEPEST:
            return MOST_FIELDS + 1
        if name not in known:
            total = 0
            for kind, times in formats.get(name, ()):
                total += times * (1 if kind in BASIC else count(kind, depth + 1))
                if total > MOST_FIELDS:
                    break
            known[name] = total
        return known[name]

    if sum(count(topic, 0) for topic in topics) > MOST_FIELDS:
        return f"more than {MOST_FIELDS:,} fields, or formats that hold each other"
    return ""
