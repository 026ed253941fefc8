"""Flight logs as checked columns with standard names and units, read from a file of any known format.

Each column keeps its own times, because a vehicle logs its sensors at different rates; ``resample`` aligns them.
Messages name the line of an error, or its row where a format has no lines.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Float64

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.text import quote, suggest
from uavlab.telemetry.logs.columns import (
    COLUMNS,
    FORCE,
    PLAIN,
    QUATERNION,
    TIME,
    UNITS,
    Column,
    ColumnMap,
    Entry,
    convert,
    fitting_units,
)  # fmt: skip
from uavlab.telemetry.logs.raw import Group, RawLog, draft_command, list_names, quote_name
from uavlab.telemetry.logs.tables import read_csv, read_npz, read_parquet
from uavlab.telemetry.logs.ulog import is_ulog, read_ulog, usual_map

READERS = {**dict.fromkeys((".csv", ".tsv", ".txt"), read_csv), ".npz": read_npz}
READERS |= dict.fromkeys((".parquet", ".pq"), read_parquet)
SLOWEST = 1.0  # s: a time without a unit that has larger steps is assumed to be in another unit
LEAST_FORCE = 3.0  # m/s^2: the median specific force of a flight is not below this; in g it is about 1
TOLERANCE = 0.05  # between the norm of a quaternion and 1
GAP = 1.0  # s: longest time without a value
SAME = 1e-6  # s: time resolution of ULog; smaller differences are ignored


@dataclass(frozen=True)
class Signal:
    """One column of a log."""

    time: Float64[np.ndarray, " T"]  # seconds after the log's start, increasing
    values: Float64[np.ndarray, " T"]  # in the column's unit; NaN where missing
    field: str  # its name in the file
    group: Group  # fields with the same rows


@dataclass(frozen=True)
class Log:
    """A flight as it was logged."""

    source: str
    columns: Mapping[str, Signal]  # by name, in the order of ``columns.COLUMNS``, without ``time``
    notes: tuple[str, ...] = ()  # remarks for the user, in sentences


def read_log(path: Path, mapping: ColumnMap | None = None) -> Log:
    """Read a log; the suffix of its name determines the format, see ``READERS``, or its first bytes for ULog.

    Without a mapping, fields of tables are named like columns, and those of ULog as in PX4's default topics.
    """
    return build_log(read_raw(path, mapping, others=False), mapping)


def read_raw(path: Path, mapping: ColumnMap | None, others: bool) -> RawLog:
    """Read the fields of a file; those in ``mapping``, or those named like columns, must hold numbers."""
    ending = path.suffix.lower()
    if is_ulog(path) or ending in (".ulg", ".ulog"):
        return read_ulog(path)
    if ending not in READERS:
        raise ConfigError(f"{path}: unknown ending {quote(ending)}; expected {', '.join(READERS)} or a ULog file.")
    used = mapping or PLAIN
    return READERS[ending](path, {*used.fields, _time_entry(used).field}, others)


def build_log(raw: RawLog, mapping: ColumnMap | None = None) -> Log:
    """Convert fields to columns with standard names and units, and check them."""
    table = "" in raw.groups
    used, remarks = (mapping, []) if mapping else usual_map(raw)
    _require_fields(raw, used, strict=mapping is not None)
    if not table and TIME.name in used.columns:
        raise ConfigError(f"{used.source}: columns.time: topics of ULog bring their time; leave this line out.")
    clock = _time_entry(used) if table else Entry("timestamp", TIME.unit)
    notes, columns, groups = [*raw.notes, *remarks], {}, {}
    for name, column in COLUMNS.items():
        if name == TIME.name or (match := _find(raw, used.columns.get(name, ()))) is None:
            continue
        entry, unordered, key = match
        if unordered.name not in groups:
            groups[unordered.name] = _in_order(unordered, clock, notes)
        group, time = groups[unordered.name]
        values = _values(group, key, entry, column)
        if np.isfinite(values).any():
            columns[name] = Signal(time, values, entry.field, group)
        else:
            notes.append(f"{name}: no value in {entry.field}")
    _check_attitude(raw.source, columns)
    _check_force(columns)
    return Log(raw.source, columns, tuple(notes))


def duration(log: Log) -> float:
    """Return the seconds between the first and the last row of any column; 0 without columns."""
    ends = [end for signal in log.columns.values() for end in signal.time[[0, -1]]]
    return float(max(ends) - min(ends)) if ends else 0.0


def _find(raw: RawLog, entries: tuple[Entry, ...]) -> tuple[Entry, Group, str] | None:
    matches = ((entry, raw.find(entry.field)) for entry in entries)
    return next(((entry, *place) for entry, place in matches if place is not None), None)


def _require_fields(raw: RawLog, mapping: ColumnMap, strict: bool) -> None:
    """Refuse a file without time or without any column of the map; with ``strict``, one that lacks any of them."""
    names = [*raw.names(), *raw.others]
    first = {name: entries[0].field for name, entries in mapping.columns.items() if name != TIME.name}
    absent = [field for name, field in first.items() if _find(raw, mapping.columns[name]) is None]
    clock = [_time_entry(mapping).field] if "" in raw.groups else []
    lacking = [field for field in clock if field not in names]
    lacking += absent if strict or len(absent) == len(first) else []
    if lacking:
        problem = f"{raw.source}: no column {quote_name(lacking[0])}{suggest(lacking[0], names)}"
        draft = f"rename columns, or name their fields in a mapping: {draft_command(raw.source)}"
        advice = f"correct {mapping.source}" if strict else draft
        expected = list_names([*clock, *first.values()])
        raise FileError(f"{problem}; expected {expected}; found {list_names(names)}; {advice}.")


def _time_entry(mapping: ColumnMap) -> Entry:
    return mapping.columns.get(TIME.name, (Entry(TIME.name),))[0]


def _values(group: Group, key: str, entry: Entry, column: Column) -> Float64[np.ndarray, " T"]:
    """Return the values of a field in the column's unit; refuse implausible ones."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        raw = group.fields[key].astype(np.float64)
    if entry.unknown is not None:
        raw = np.where(np.isclose(raw, entry.unknown, rtol=1e-6, atol=0), np.nan, raw)
    if entry.blank is not None:
        raw = np.where(np.isnan(raw), entry.blank, raw)
    unit = entry.unit or column.unit
    values = convert(raw, unit, column)
    wrong = np.flatnonzero((values < column.low) | (values > column.high))
    if len(wrong):
        row, others = int(wrong[0]), fitting_units(raw, column)
        hint = f" (is it in {others[0]}? A mapping names units)" if others and unit not in others else ""
        limits = f"{column.low:g} to {column.high:g} {column.unit}"
        problem = f"{raw[row]:.9g} {unit}; expected {limits} for {column.name!r}{hint}"
        raise FileError(f"{group.label(key, row)}: {problem}.")
    return values


def _in_order(group: Group, clock: Entry, notes: list[str]) -> tuple[Group, Float64[np.ndarray, " T"]]:
    """Return a group and its times (s), those of a table after its first; rows are sorted by them, with a note."""
    time = group.fields[clock.field].astype(np.float64) if group.time is None else group.time
    unknown = np.flatnonzero(~np.isfinite(time))
    if len(unknown):
        raise FileError(f"{group.label(clock.field, int(unknown[0]))}: no finite time; fill it in, or cut the row.")
    if len(back := np.flatnonzero(np.diff(time) < 0)):
        first = f"time goes back {len(back):,}x, first in {group.locate(int(back[0]) + 1)}"
        notes.append(f"{group.name or 'table'}: {first}; rows are sorted (if time starts anew there, cut the log)")
        order = np.argsort(time, kind="stable")
        fields = {name: values[order] for name, values in group.fields.items()}
        time, group = time[order], replace(group, fields=fields, order=order)
    if len(twice := np.flatnonzero(np.diff(time) == 0)):
        row = int(twice[0]) + 1
        problem = f"{time[row]:.9g}, the time of {group.locate(row - 1)} once more; expected one row for each time"
        advice = "Leave this topic out, by a mapping" if group.name else "Cut one of these rows out"
        raise FileError(f"{group.label(clock.field, row)}: {problem}. {advice}.")
    if group.time is not None:
        return group, time
    units, step = UNITS[TIME.unit], float(np.median(np.diff(time)))
    if clock.unit is None and step >= SLOWEST:
        likely = next((name for name in ("ms", "us") if step * units[name].factor < SLOWEST), "ns")
        problem = f"{step:.9g} from row to row; expected seconds, less than {SLOWEST:g}"
        raise FileError(f"{group.label(clock.field)}: {problem} (is it in {likely}? A mapping names units).")
    return group, (time - time[0]) * units[clock.unit or TIME.unit].factor


def _check_attitude(source: str, columns: Mapping[str, Signal]) -> None:
    absent = [name for name in QUATERNION if name not in columns]
    if len(absent) == len(QUATERNION):
        return
    if absent:
        raise FileError(f"{source}: an attitude needs {', '.join(QUATERNION)}; {', '.join(absent)} missing.")
    parts = [columns[name] for name in QUATERNION]
    if any(not np.array_equal(part.time, parts[0].time) for part in parts):
        raise FileError(f"{source}: {', '.join(QUATERNION)} have different times; take all of them from one topic.")
    length = _norm(parts)
    wrong = np.flatnonzero(np.abs(length - 1) > TOLERANCE)
    if len(wrong):
        where = f"{parts[0].group.locate(int(wrong[0]))} columns {', '.join(part.field for part in parts)}"
        problem = f"a quaternion of length {length[wrong[0]]:.4g}; expected 1 within {TOLERANCE:g}"
        raise FileError(f"{where}: {problem}. Check the columns' order and scale.")


def _check_force(columns: Mapping[str, Signal]) -> None:
    parts = [columns[name] for name in FORCE if name in columns]
    if len(parts) < len(FORCE) or len({len(part.values) for part in parts}) > 1:
        return
    force = _norm(parts)
    middle = float(np.median(known)) if len(known := force[np.isfinite(force)]) else np.inf
    if middle < LEAST_FORCE:
        where = f"{parts[0].group.where} columns {', '.join(part.field for part in parts)}"
        problem = f"a median specific force of {middle:.3g} m/s^2; expected about 9.8"
        raise FileError(f"{where}: {problem} (are they in g? A mapping names units).")


def _norm(parts: Iterable[Signal]) -> Float64[np.ndarray, " T"]:
    return np.sqrt(sum(part.values**2 for part in parts))


def resample(log: Log, rate: float, columns: Sequence[str]) -> dict[str, Float32[np.ndarray, " T"]]:
    """Resample columns of a log to ``rate`` rows per second over the time that all of them share.

    Sensor values are interpolated linearly; commands and references hold their last value. Quaternions are interpolated
    linearly along the shorter arc and normalised. Rows without a value are skipped.
    """
    _require_columns(log, columns)
    known = {name: _finite_rows(log, name) for name in columns}
    first, last = _shared_time(log, known)
    for name in columns:
        _check_gaps(log.columns[name], name, known[name], first, last)
    rows = int((last - first) * rate + SAME * rate) + 1
    time = first + np.arange(rows) / rate
    flight = {name: _interpolate(log, name, known[name], time).astype(np.float32) for name in columns}
    if set(QUATERNION) <= set(columns):
        length = np.linalg.norm([flight[name] for name in QUATERNION], axis=0)
        flight |= {name: flight[name] / length for name in QUATERNION}
    return flight


def _require_columns(log: Log, columns: Sequence[str]) -> None:
    absent = [name for name in columns if name not in log.columns]
    if absent:
        problem = f"{log.source}: no column {', '.join(map(repr, absent))}"
        notes = "".join(f" ({note})" for note in log.notes if {*note.partition(":")[0].split(", ")} & {*absent})
        expected, present = list_names(list(columns)), list_names(list(log.columns))
        raise FileError(f"{problem}{notes}; expected {expected}; found {present}.")


def _finite_rows(log: Log, name: str) -> Bool[np.ndarray, " T"]:
    """Mask the rows with a value; for an attitude, those with all four components."""
    parts = QUATERNION if name in QUATERNION else (name,)
    return np.logical_and.reduce([np.isfinite(log.columns[part].values) for part in parts])


def _shared_time(log: Log, known: Mapping[str, Bool[np.ndarray, " T"]]) -> tuple[float, float]:
    ends = {name: log.columns[name].time[rows][[0, -1]] for name, rows in known.items() if rows.any()}
    if len(ends) < len(known):
        raise FileError(f"{log.source}: no row has all of {', '.join(QUATERNION)}.")
    late, early = max(ends, key=lambda it: ends[it][0]), min(ends, key=lambda it: ends[it][1])
    first, last = float(ends[late][0]), float(ends[early][1])
    if last <= first:
        problem = f"{late!r} begins at {first:.3f} s, {early!r} ends at {last:.3f} s after the start"
        raise FileError(f"{log.source}: columns share no time: {problem}; leave one of them out.")
    return first, last


def _check_gaps(signal: Signal, name: str, known: Bool[np.ndarray, " T"], first: float, last: float) -> None:
    """Refuse gaps longer than ``GAP`` between ``first`` and ``last``."""
    rows = np.flatnonzero(known)
    time = signal.time[rows]
    long = (np.diff(time) > GAP + SAME) & (time[:-1] < last) & (time[1:] > first)
    if long.any():
        at = int(np.flatnonzero(long)[0])
        before, after = int(rows[at]), int(rows[at + 1])
        what = f"{after - before - 1} rows without a value" if after - before > 1 else "nothing"
        where = f"{signal.group.label(signal.field, before)} ({name})"
        until = f"{time[at + 1]:.3f} s after the start ({signal.group.locate(after)})"
        expected = f"expected gaps of at most {GAP:g} s; cut the log there"
        raise FileError(f"{where}: {what} from {time[at]:.3f} to {until}; {expected}.")


def _interpolate(
    log: Log, name: str, known: Bool[np.ndarray, " T"], time: Float64[np.ndarray, " N"]
) -> Float64[np.ndarray, " N"]:
    signal = log.columns[name]
    since, values = signal.time[known], signal.values[known]
    if COLUMNS[name].held:
        return values[np.searchsorted(since, time + SAME, side="right") - 1]
    if name in QUATERNION:
        values = values * _signs(log, known)
    return np.interp(time, since, values)


def _signs(log: Log, known: Bool[np.ndarray, " T"]) -> Float64[np.ndarray, " K"]:
    """Return the sign of each quaternion that makes the sequence continuous (q and -q are equal attitudes)."""
    parts = np.stack([log.columns[name].values[known] for name in QUATERNION])
    flips = np.where((parts[:, 1:] * parts[:, :-1]).sum(0) < 0, -1.0, 1.0)
    begin = -1.0 if parts[0, 0] < 0 else 1.0
    return begin * np.concatenate(([1.0], np.cumprod(flips)))
