"""Reader of ULog, the logs of PX4, by pyulog: each topic is a group, ``topic#1`` its second instance.

pyulog skips damage silently, so ``walk`` first measures how much of a file is intact. A message is its length
(2 bytes), its kind (1 byte) and that many bytes. After a crash, a vehicle may have appended data at offsets that the
first message lists; the incomplete message before such an offset does not count as damage.

Source: the ULog file format, as PX4's developer guide describes it.
"""

import contextlib
import io
import shlex
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uavlab.core.errors import FileError, UavlabError
from uavlab.core.extras import require
from uavlab.core.text import one_line
from uavlab.telemetry.logs.raw import Group, RawLog, open_log

MAGIC = b"ULog\x01\x12\x35"
HEADER = 16  # bytes before the first message
LEAST_DATA = 10  # bytes of a message of data: its topic's number, and a time
MOST_FIELDS = 100_000  # of all topics together
MOST_OTHERS = 1_000_000  # messages that are no data; decoded, each takes up to 0.3 kB
DEEPEST = 16  # levels of nested formats
BASIC = {f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"float", "double", "bool", "char"}
FACTS = {"sys_name": "system", "ver_hw": "hardware", "ver_sw": "software"}
"""Keys of a log's information messages, and their names in ``RawLog.facts``."""

Format = list[tuple[str, int]]
"""Type and count of each field."""


@dataclass(frozen=True)
class Integrity:
    """Result of ``walk``."""

    whole: int  # intact bytes from the start
    problem: str  # damage after these bytes; empty if the file is intact
    bomb: str  # why decoding would exhaust time or memory; empty if it would not
    rows: int  # messages of data
    appended: tuple[int, ...]  # offsets of data appended after a crash


def is_ulog(path: Path) -> bool:
    """Return whether a file begins with the magic bytes of ULog; raise a FileError if it is not readable."""
    with open_log(path) as handle:
        return handle.read(len(MAGIC)) == MAGIC


def read(path: Path, duration: Callable[[RawLog], float]) -> RawLog:
    """Read a ULog file; ``duration`` returns the seconds of a flight, for the message on a damaged file."""
    with open_log(path) as handle:
        raw = handle.read()
    if not raw.startswith(MAGIC):
        raise FileError(f"{path}: not a ULog file; one begins with the bytes {MAGIC.hex(' ')}.")
    integrity = walk(raw)
    if integrity.bomb:
        raise FileError(f"{path}: {integrity.bomb}; such a log is not read.")
    if integrity.problem:
        raise FileError(_describe_loss(path, raw, integrity, duration))
    log, output = _decode(path, raw)
    rows = sum(len(topic.data["timestamp"]) for topic in log.data_list)
    if log.file_corruption or rows != integrity.rows:
        counts = f"{rows:,} of {integrity.rows:,} messages of data could be read"
        problem = counts if rows != integrity.rows else "damaged inside"
        raise FileError(f"{path}: {problem}; copy the log again, or export what is left of it (ulog2csv).")
    groups, notes = _groups(path, log)
    notes += [f"pyulog: {line}" for line in dict.fromkeys(output.splitlines())]
    numbers = {name: value for name, value in log.initial_parameters.items() if isinstance(value, int | float)}
    parameters = {name: float(value) for name, value in numbers.items() if np.isfinite(value)}
    return RawLog(str(path), "ulog", groups, (), _facts(log, integrity), tuple(notes), parameters)


def _decode(path: Path, raw: bytes) -> tuple[Any, str]:
    """Decode bytes by pyulog; also return what pyulog printed."""
    require("telemetry", str(path), "pyulog")
    from pyulog import ULog

    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            log = ULog(io.BytesIO(raw))
        for topic in log.data_list:
            if "timestamp" not in topic.data or topic.data["timestamp"].dtype != np.uint64:
                raise ValueError(f"topic {topic.name!r} has no timestamp of type uint64_t")
    except MemoryError:
        raise
    except Exception as error:  # a parser of unknown bytes may raise any
        reason = one_line(f"{type(error).__name__}: {error}")[:200]
        raise FileError(f"{path}: not readable as ULog: {reason}; copy the log again.") from error
    return log, output.getvalue()


def _describe_loss(path: Path, raw: bytes, integrity: Integrity, duration: Callable[[RawLog], float]) -> str:
    """Describe how much of a damaged file is intact, and how to use that part.

    The command reads and writes by redirection, so a name may begin with a dash, and ``set -C`` keeps the shell from
    overwriting a file.
    """
    problem, seconds = f"{path}: {integrity.problem}; copy the log again", 0.0
    with contextlib.suppress(UavlabError):
        log, _ = _decode(path, raw[: integrity.whole])
        seconds = duration(RawLog(str(path), "ulog", _groups(path, log)[0]))
    if seconds <= 0:
        return f"{problem}: no flight before that."
    left = f"the first {seconds:.1f} s ({integrity.whole:,} of {len(raw):,} bytes) are intact"
    source, target = (shlex.quote(str(name)) for name in (path, f"{path.stem}.intact.ulg"))
    return f"{problem}, or use what is left: {left}: (set -C; head -c {integrity.whole} < {source} > {target})"


def _groups(path: Path, log: Any) -> tuple[Mapping[str, Group], list[str]]:
    groups: dict[str, Group] = {}
    notes = []
    for topic in log.data_list:
        name = topic.name + (f"#{topic.multi_id}" if topic.multi_id else "")
        if name in groups:
            notes.append(f"{name} is there twice; its first part is used")
            continue
        time = (topic.data["timestamp"] - np.uint64(log.start_timestamp)).astype(np.int64) / 1e6
        fields = {field: values for field, values in topic.data.items() if field != "timestamp"}
        groups[name] = Group(name, f"{path} {name}", {**fields, "timestamp": topic.data["timestamp"]}, time)
    return groups, notes


def _facts(log: Any, integrity: Integrity) -> dict[str, Any]:
    info = log.msg_info_dict
    facts: dict[str, Any] = {name: one_line(str(info[key])) for key, name in FACTS.items() if key in info}
    with contextlib.suppress(TypeError):  # the file may hold a release of any type
        if release := log.get_version_info_str():
            facts["release"] = release
    gaps = [dropout.duration for dropout in log.dropouts]
    facts["dropouts"] = {"count": len(gaps), "total_ms": sum(gaps), "longest_ms": max(gaps, default=0)}
    facts["appended_parts"] = len(integrity.appended)
    return facts


def walk(raw: bytes) -> Integrity:
    """Check the messages of a ULog file that begins with the magic bytes, one by one."""
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
            if length == 0 or not 65 <= kind <= 90 or (kind == ord("D") and length < LEAST_DATA):
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
    rows = counts.pop(ord("D"), 0)
    others = f"more than {MOST_OTHERS:,} messages beside data" if counts.total() > MOST_OTHERS else ""
    return Integrity(at, problem, others or _bomb(formats, topics), rows, tuple(ends[:-1]))


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
    """Describe formats that contain each other or more than ``MOST_FIELDS`` fields; empty if there are none."""
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
        return f"topics with more than {MOST_FIELDS:,} fields, or formats that hold each other"
    return ""
