"""Logs of flights with our names and units, checked: what a file of any known format becomes.

Each column keeps its own times, because a vehicle logs its sensors at different rates; ``resample.py`` brings them
together. Whatever is wrong is told with its line, or its row where a format has no lines.
"""

from collections.abc import Mapping as Named
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.text import quote, suggest
from uavlab.telemetry.logs import csv_reader, npz_reader, parquet_reader, ulog_reader
from uavlab.telemetry.logs.column_map import PLAIN, PX4, Entry, Mapping, read_mapping
from uavlab.telemetry.logs.columns import COLUMNS, FORCE, INPUTS, QUATERNION, TIME, Column
from uavlab.telemetry.logs.raw import Group, Recording, listed, quoted
from uavlab.telemetry.logs.units import UNITS, converted, suspected

READERS = {
    **{".csv": csv_reader.read, ".tsv": csv_reader.read, ".txt": csv_reader.read},
    **{".npz": npz_reader.read, ".parquet": parquet_reader.read, ".pq": parquet_reader.read},
}
SLOWEST = 1.0  # s between rows from which on a time without unit is taken to be no seconds
LEAST_FORCE = 3.0  # m/s^2: half of a flight's specific forces are never below this; in g they are about 1
ROUND = 0.05  # by which the length of a quaternion may differ from 1


@dataclass(frozen=True)
class Series:
    """One column of a log.

    Attributes:
        time: Seconds after the log's start, increasing.
        values: In the column's unit; NaN where there is none.
        field: Its name in the file.
        group: What it was recorded with; it knows where rows are.
    """

    time: Float64[np.ndarray, " T"]
    values: Float64[np.ndarray, " T"]
    field: str
    group: Group

    @property
    def rate(self) -> float:
        """Rows per second, on average."""
        return rate_of(self.time)


@dataclass(frozen=True)
class Log:
    """A flight as it was logged.

    Attributes:
        source: The file.
        format: ``csv``, ``npz``, ``parquet`` or ``ulog``.
        start: What the file calls its start (s).
        columns: By name, in the order of ``columns.COLUMNS``, without ``time``.
        rate: Rows per second that a mapping asks for; None if none does.
        facts: What the format tells besides.
        notes: What a reader should know, in sentences.
    """

    source: str
    format: str
    start: float
    columns: Named[str, Series]
    rate: float | None = None
    facts: Named[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """What models may read and this log has not."""
        return [name for name in INPUTS if name not in self.columns]


def read_log(path: Path | str, mapping: Mapping | Path | str | None = None) -> Log:
    """Read a log, its format told by the ending of its name, or by its first bytes if it is ULog.

    Args:
        path: The file: ``.csv``, ``.tsv``, ``.txt``, ``.npz``, ``.parquet``, ``.pq``, ``.ulg`` or any ULog.
        mapping: Which fields are which columns, or the YAML file that says so. Without one, tables bear our names, and
            ULog is read as PX4 logs by default.

    Raises:
        FileError: The file is damaged, lacks a column, or holds what cannot be a flight.
        ConfigError: The mapping is wrong, or the ending is unknown.
    """
    chosen = mapping_of(mapping)
    return log_of(recorded(Path(path), chosen, others=False), chosen)


def mapping_of(mapping: Mapping | Path | str | None) -> Mapping | None:
    """Read a mapping if it is a file.

    Raises:
        ConfigError: As for ``read_mapping``.
    """
    return read_mapping(Path(mapping)) if isinstance(mapping, Path | str) else mapping


def recorded(path: Path, mapping: Mapping | None, others: bool) -> Recording:
    """Read a file as it is; fields that ``mapping`` (or our names) asks for must hold numbers.

    Raises:
        FileError: The file is not readable as its format.
        ConfigError: The ending is unknown.
    """
    ending = path.suffix.lower()
    if ulog_reader.is_ulog(path) or ending in (".ulg", ".ulog"):
        return ulog_reader.read(path)
    if ending not in READERS:
        raise ConfigError(f"{path}: unknown ending {quote(ending)}; expected {', '.join(READERS)} or a ULog file.")
    used = mapping or PLAIN
    return READERS[ending](path, {*used.fields, _time_entry(used).field}, others)


def log_of(recording: Recording, mapping: Mapping | None = None) -> Log:
    """Give a recording our names and units, and check everything.

    Raises:
        FileError: A column is missing, or holds what cannot be a flight.
        ConfigError: The mapping tells a time of ULog, which topics have of their own.
    """
    table = "" in recording.groups
    used = mapping or (PLAIN if table else PX4)
    _require(recording, used, strict=mapping is not None)
    if not table and TIME.name in used.columns:
        raise ConfigError(f"{used.source}: columns.time: topics of ULog bring their time; leave this line out.")
    start, since = _table_time(recording, used) if table else (0.0, None)
    columns: dict[str, Series] = {}
    notes = list(recording.notes)
    times: dict[str, Float64[np.ndarray, " T"]] = {}
    for name, column in COLUMNS.items():
        found = _found(recording, used.columns.get(name, ()))
        if found is None or name == TIME.name:
            continue
        entry, group, key = found
        values = _values(group, key, entry, column)
        if not np.isfinite(values).any():
            notes.append(f"{name}: no value in {entry.field}")
            continue
        if group.name not in times:
            times[group.name] = _increasing(group, group.time, "timestamp") if since is None else since
        columns[name] = Series(times[group.name], values, entry.field, group)
    _check_attitude(recording.source, columns)
    _check_force(columns)
    return Log(recording.source, recording.format, start, columns, used.rate, recording.facts, tuple(notes))


def rate_of(time: Float64[np.ndarray, " T"]) -> float:
    """Give rows per second, on average; 0 where no time passes."""
    passed = float(time[-1] - time[0]) if len(time) > 1 else 0.0
    return (len(time) - 1) / passed if passed > 0 else 0.0


def _found(recording: Recording, entries: tuple[Entry, ...]) -> tuple[Entry, Group, str] | None:
    for entry in entries:
        if (place := recording.find(entry.field)) is not None:
            return entry, *place
    return None


def _require(recording: Recording, mapping: Mapping, strict: bool) -> None:
    """Refuse a file that lacks its time, anything that the user's mapping names, or everything that we know."""
    names = [*recording.names(), *recording.others]
    first = {name: entries[0].field for name, entries in mapping.columns.items() if name != TIME.name}
    absent = [field for name, field in first.items() if _found(recording, mapping.columns[name]) is None]
    clock = [_time_entry(mapping).field] if "" in recording.groups else []
    lacking = [field for field in clock if field not in names]
    lacking += absent if strict or len(absent) == len(first) else []
    if lacking:
        told = f"{recording.source}: no column {quoted(lacking[0])}{suggest(lacking[0], names)}"
        advice = f"correct {mapping.source}" if strict else "rename columns, or say by a mapping which they are"
        raise FileError(f"{told}; expected {listed([*clock, *first.values()])}; found {listed(names)}; {advice}.")


def _time_entry(mapping: Mapping) -> Entry:
    return mapping.columns.get(TIME.name, (Entry(TIME.name),))[0]


def _values(group: Group, key: str, entry: Entry, column: Column) -> Float64[np.ndarray, " T"]:
    """Give the values of a field in the column's unit.

    Raises:
        FileError: One of them is not plausible.
    """
    with np.errstate(invalid="ignore"):  # a NaN of the signalling kind
        raw = group.fields[key].astype(np.float64)
    if entry.unknown is not None:
        raw = np.where(np.isclose(raw, entry.unknown, rtol=1e-6, atol=0), np.nan, raw)
    if entry.blank is not None:
        raw = np.where(np.isnan(raw), entry.blank, raw)
    values = converted(raw, entry.unit or column.unit, column)
    wrong = np.flatnonzero((values < column.low) | (values > column.high))
    if len(wrong):
        row, unit = int(wrong[0]), entry.unit or column.unit
        finite = raw[np.isfinite(raw)]
        other = suspected(float(finite.min()), float(finite.max()), column) if len(finite) else ""
        hint = f" (is it in {other}? A mapping names units)" if other and other != unit else ""
        limits = f"{column.low:g} to {column.high:g} {column.unit}"
        told = f"{group.place(row)} column {quoted(key)}: {raw[row]:.9g} {unit}; expected {limits}"
        raise FileError(f"{told} for {column.name!r}{hint}.")
    return values


def _table_time(recording: Recording, mapping: Mapping) -> tuple[float, Float64[np.ndarray, " T"]]:
    """Give the start of a table (s), and the seconds of its rows after that."""
    entry = _time_entry(mapping)
    group, key = recording.groups[""], entry.field
    raw = _increasing(group, group.fields[key].astype(np.float64), key)
    if entry.unit is None:
        _check_seconds(group, key, raw)
    factor = UNITS[TIME.unit][entry.unit or TIME.unit].factor
    return float(raw[0] * factor), (raw - raw[0]) * factor


def _increasing(group: Group, time: Shaped[np.ndarray, " T"] | None, key: str) -> Float64[np.ndarray, " T"]:
    """Refuse times that do not increase, and rows without one."""
    if time is None:
        raise FileError(f"{group.where}: no field {key!r}, which tells the time; leave this topic out of the mapping.")
    unknown = np.flatnonzero(~np.isfinite(time))
    if len(unknown):
        raise FileError(
            f"{group.place(int(unknown[0]))} column {quoted(key)}: no finite time; fill it in, or cut the row."
        )
    back = np.flatnonzero(np.diff(time) <= 0)
    if len(back):
        row = int(back[0]) + 1
        order = "the same time as" if time[row] == time[row - 1] else f"comes after {time[row - 1]:.9g} in"
        told = f"{group.place(row)} column {quoted(key)}: {time[row]:.9g} {order} the row before"
        raise FileError(f"{told}; expected increasing times. Sort the rows, or cut these out.")
    return time


def _check_seconds(group: Group, key: str, time: Float64[np.ndarray, " T"]) -> None:
    step = float(np.median(np.diff(time)))
    if step < SLOWEST:
        return
    units = UNITS[TIME.unit].items()
    likely = next((name for name, unit in units if unit.factor < 1 and step * unit.factor < SLOWEST), "ns")
    told = f"{group.where} column {quoted(key)}: {step:.9g} from row to row; expected seconds, less than {SLOWEST:g}"
    raise FileError(f"{told} (is it in {likely}? A mapping names units).")


def _check_attitude(source: str, columns: Named[str, Series]) -> None:
    """Refuse an attitude that is no rotation."""
    there = [name for name in QUATERNION if name in columns]
    if not there:
        return
    if len(there) < len(QUATERNION):
        absent = [name for name in QUATERNION if name not in columns]
        raise FileError(f"{source}: an attitude needs {', '.join(QUATERNION)}; {', '.join(absent)} missing.")
    parts = [columns[name] for name in QUATERNION]
    if any(not np.array_equal(part.time, parts[0].time) for part in parts):
        raise FileError(f"{source}: {', '.join(QUATERNION)} have different times; take all of them from one topic.")
    length = np.sqrt(sum(part.values**2 for part in parts))
    wrong = np.flatnonzero(np.abs(length - 1) > ROUND)
    if len(wrong):
        place, names = parts[0].group.place(int(wrong[0])), ", ".join(part.field for part in parts)
        told = f"{place} columns {names}: a quaternion of length {length[wrong[0]]:.4g}"
        raise FileError(f"{told}; expected 1 within {ROUND:g}. Check the columns' order and scale.")


def _check_force(columns: Named[str, Series]) -> None:
    """Refuse specific forces that are too small for a vehicle which gravity pulls at."""
    parts = [columns[name] for name in FORCE if name in columns]
    if len(parts) < len(FORCE) or len({len(part.values) for part in parts}) > 1:
        return
    force = np.sqrt(sum(part.values**2 for part in parts))
    usual = float(np.median(known)) if len(known := force[np.isfinite(force)]) else np.inf
    if usual < LEAST_FORCE:
        names = ", ".join(part.field for part in parts)
        told = f"{parts[0].group.where} columns {names}: a specific force of {usual:.3g} m/s^2 in the middle"
        raise FileError(f"{told}; expected about 9.8 (are they in g? A mapping names units).")
