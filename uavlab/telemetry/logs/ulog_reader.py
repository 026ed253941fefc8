"""Reader of ULog, the logs of PX4, by pyulog: each topic is a group, ``topic#1`` its second instance.

pyulog skips damage silently, so the messages that it read are counted against a walk through the file.
"""

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uavlab.core.errors import FileError
from uavlab.core.text import one_line
from uavlab.telemetry.logs.raw import Group, RawLog, open_log
from uavlab.telemetry.logs.ulog_integrity import MAGIC, Integrity, walk

FACTS = {"sys_name": "system", "ver_hw": "hardware", "ver_sw": "software"}
"""Keys of a log's information, and our names for them."""


def is_ulog(path: Path) -> bool:
    """Return whether a file begins with the magic bytes of ULog.

    Raises:
        FileError: It cannot be opened.
    """
    with open_log(path) as handle:
        return handle.read(len(MAGIC)) == MAGIC


def read(path: Path) -> RawLog:
    """Read a ULog file.

    Raises:
        FileError: It is no ULog, cut off, damaged, or made to exhaust memory.
    """
    with open_log(path) as handle:
        raw = handle.read()
    if not raw.startswith(MAGIC):
        raise FileError(f"{path}: not a ULog file; one begins with the bytes {MAGIC.hex(' ')}.")
    integrity = walk(raw)
    if integrity.bomb:
        raise FileError(f"{path}: topics with {integrity.bomb}; such a log is not read.")
    if integrity.problem:
        raise FileError(_describe_loss(path, raw, integrity))
    log, output = _decode(path, raw)
    rows = sum(len(topic.data["timestamp"]) for topic in log.data_list)
    if log.file_corruption or rows != integrity.rows:
        counts = f"{rows:,} of {integrity.rows:,} messages of data could be read"
        problem = counts if rows != integrity.rows else "damaged inside"
        raise FileError(f"{path}: {problem}; copy the log again, or export what is left of it (ulog2csv).")
    groups, notes = _groups(path, log)
    notes += [f"pyulog: {line}" for line in dict.fromkeys(output.splitlines())]
    return RawLog(str(path), "ulog", groups, facts=_facts(log, integrity), notes=tuple(notes))


def _decode(path: Path, raw: bytes) -> tuple[Any, str]:
    """Decode bytes by pyulog; also return its output on stdout."""
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
    except Exception as error:  # whatever a parser of unknown bytes raises
        reason = one_line(f"{type(error).__name__}: {error}")[:200]
        raise FileError(f"{path}: not readable as ULog: {reason}; copy the log again.") from error
    return log, output.getvalue()


def _describe_loss(path: Path, raw: bytes, integrity: Integrity) -> str:
    """Describe how much of a damaged file is intact, and how to use it."""
    problem = f"{path}: {integrity.problem}; copy the log again"
    try:
        log, _ = _decode(path, raw[: integrity.whole])
        seconds = (log.last_timestamp - log.start_timestamp) / 1e6
    except FileError:
        seconds = 0.0
    if seconds <= 0:
        return f"{problem}: no data before that."
    left = f"the first {seconds:.1f} s ({integrity.whole:,} of {len(raw):,} bytes) are intact"
    return f"{problem}, or use what is left: {left}: head -c {integrity.whole} {path} > part.ulg"


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
    with contextlib.suppress(TypeError):  # the number of the release may be anything
        if release := log.get_version_info_str():
            facts["release"] = release
    lost = [dropout.duration for dropout in log.dropouts]
    facts["dropouts"] = {"count": len(lost), "total_ms": sum(lost), "longest_ms": max(lost, default=0)}
    facts["appended_parts"] = len(integrity.appended)
    return facts
