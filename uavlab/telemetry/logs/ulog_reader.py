"""ULog, the logs of PX4, by pyulog: each topic is a group, ``topic#1`` its second instance.

pyulog reads past damage without a word, so what it read is compared with a walk through the file's messages.
"""

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uavlab.core.errors import FileError
from uavlab.core.text import one_line
from uavlab.telemetry.logs.raw import Group, Recording
from uavlab.telemetry.logs.safe_open import opened
from uavlab.telemetry.logs.ulog_integrity import MAGIC, Frames, walk

TOLD = {"sys_name": "system", "ver_hw": "hardware", "ver_sw": "software"}
"""What a log says of its vehicle, and how we call it."""


def is_ulog(path: Path) -> bool:
    """Tell whether a file begins as ULog does.

    Raises:
        FileError: As for ``opened``.
    """
    with opened(path) as handle:
        return handle.read(len(MAGIC)) == MAGIC


def read(path: Path) -> Recording:
    """Read a ULog file.

    Raises:
        FileError: It is no ULog, cut off, damaged, or made to take much memory.
    """
    with opened(path) as handle:
        raw = handle.read()
    if not raw.startswith(MAGIC):
        raise FileError(f"{path}: not a ULog file; one begins with the bytes {MAGIC.hex(' ')}.")
    frames = walk(raw)
    if frames.bomb:
        raise FileError(f"{path}: topics with {frames.bomb}; such a log is not read.")
    if frames.problem:
        raise FileError(_loss(path, raw, frames))
    log, said = _decoded(path, raw)
    got = sum(len(topic.data["timestamp"]) for topic in log.data_list)
    if log.file_corruption or got != frames.rows:
        told = f"{got:,} of {frames.rows:,} messages of data could be read" if got != frames.rows else "damaged inside"
        raise FileError(f"{path}: {told}; copy the log again, or export what is left of it (ulog2csv).")
    groups, notes = _groups(path, log)
    notes += [f"pyulog: {line}" for line in dict.fromkeys(said.splitlines())]
    return Recording(str(path), "ulog", groups, facts=_facts(log, frames), notes=tuple(notes))


def _decoded(path: Path, raw: bytes) -> tuple[Any, str]:
    """Let pyulog read bytes that may be anything; the second is what it printed."""
    from pyulog import ULog

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            log = ULog(io.BytesIO(raw))
        for topic in log.data_list:
            if "timestamp" not in topic.data or topic.data["timestamp"].dtype != np.uint64:
                raise ValueError(f"topic {topic.name!r} has no timestamp of type uint64_t")
    except MemoryError:
        raise
    except Exception as error:  # whatever a parser of unknown bytes stumbles over
        why = one_line(f"{type(error).__name__}: {error}")[:200]
        raise FileError(f"{path}: not readable as ULog: {why}; copy the log again.") from error
    return log, said.getvalue()


def _loss(path: Path, raw: bytes, frames: Frames) -> str:
    """Say what is left of a file that is not whole, and how to use it."""
    told = f"{path}: {frames.problem}; copy the log again"
    try:
        log, _ = _decoded(path, raw[: frames.whole])
        seconds = (log.last_timestamp - log.start_timestamp) / 1e6
    except FileError:
        seconds = 0.0
    if seconds <= 0:
        return f"{told}: no data before that."
    left = f"the first {seconds:.1f} s ({frames.whole:,} of {len(raw):,} bytes) are intact"
    return f"{told}, or use what is left: {left}: head -c {frames.whole} {path} > part.ulg"


def _groups(path: Path, log: Any) -> tuple[Mapping[str, Group], list[str]]:
    groups: dict[str, Group] = {}
    notes = []
    for topic in log.data_list:
        name = topic.name + (f"#{topic.multi_id}" if topic.multi_id else "")
        if name in groups:
            notes.append(f"{name} is there twice; its first part is used")
            continue
        fields = {field: values for field, values in topic.data.items() if field != "timestamp"}
        since = (topic.data["timestamp"] - np.uint64(log.start_timestamp)).astype(np.int64) / 1e6
        groups[name] = Group(name, f"{path} {name}", {**fields, "timestamp": topic.data["timestamp"]}, since)
    return groups, notes


def _facts(log: Any, frames: Frames) -> dict[str, Any]:
    info = log.msg_info_dict
    facts: dict[str, Any] = {told: one_line(str(info[key])) for key, told in TOLD.items() if key in info}
    with contextlib.suppress(TypeError):  # its number is no number
        if release := log.get_version_info_str():
            facts["release"] = release
    lost = [dropout.duration for dropout in log.dropouts]
    facts["dropouts"] = {"count": len(lost), "total_ms": sum(lost), "longest_ms": max(lost, default=0)}
    facts["appended_parts"] = len(frames.appended)
    return facts
