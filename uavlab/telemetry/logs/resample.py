"""Logs resampled to one uniform grid of time, as models read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float32, Float64

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.text import quote, suggest
from uavlab.telemetry.logs.column_map import check_rate
from uavlab.telemetry.logs.columns import COLUMNS, INPUTS, QUATERNION, TRUTH
from uavlab.telemetry.logs.log import Log, Signal
from uavlab.telemetry.logs.raw import list_names

GAP = 1.0  # s
SAME = 1e-6  # s: ULog's own step of time; smaller differences are none
MOST_VALUES = 2**28  # of one flight: a gigabyte


@dataclass(frozen=True)
class Flight:
    """A flight with one row for each moment of a uniform grid."""

    source: str
    rate: float  # rows per second
    start: float  # seconds of the first row after the start of the log
    columns: tuple[str, ...]
    values: Float32[np.ndarray, "T C"]  # in the units of ``columns.COLUMNS``, all finite
    filled: Mapping[str, int] = field(default_factory=dict)  # rows of the log without a value, by column

    @property
    def time(self) -> Float64[np.ndarray, " T"]:
        """Seconds of each row after the start of the log."""
        return self.start + np.arange(len(self.values)) / self.rate

    def column(self, name: str) -> Float32[np.ndarray, " T"]:
        """Return one column."""
        return self.values[:, self.columns.index(name)]


def resample(
    log: Log,
    rate: float | None = None,
    columns: Sequence[str] | None = None,
    gap: float = GAP,
    span: tuple[float, float] | None = None,
) -> Flight:
    """Resample the columns of a log to a uniform grid over the time that all of them share.

    Sensor values are interpolated linearly; commands and references keep their previous value. Attitudes are
    interpolated along the shorter way and normalised. Rows without a value are skipped.

    Args:
        log: The log.
        rate: Rows per second; that of the column map if None.
        columns: Names in order; all that the log has if None.
        gap: Longest time without a value (s).
        span: Limits of the time, in seconds after the log's start; all of it if None.

    Raises:
        ConfigError: No rate is given, or an argument is out of range.
        FileError: A column is missing, has a longer gap, or shares no time with the others.
    """
    rate = log.rate if rate is None else rate
    if rate is None:
        raise ConfigError(f"{log.source}: no rate to resample at; give one, or `rate: 100` in the mapping.")
    check_rate(rate, f"{log.source}: rate")
    if not gap > 0:
        raise ConfigError(f"{log.source}: gap: expected seconds above 0, got {quote(gap)}.")
    names = _column_names(log, columns)
    known = {name: _finite_rows(log, name) for name in names}
    first, last = _shared_time(log, known, span)
    for name in names:
        _check_gaps(log.columns[name], name, known[name], first, last, gap)
    rows = int((last - first) * rate + SAME * rate) + 1
    if rows * len(names) > MOST_VALUES:
        raise ConfigError(f"{log.source}: {rows:,} rows of {len(names)} columns; resample at a lower rate or in parts.")
    time = first + np.arange(rows) / rate
    values = np.empty((rows, len(names)), np.float32)
    for at, name in enumerate(names):
        values[:, at] = _interpolate(log, name, known[name], time)
    if all(name in names for name in QUATERNION):
        where = [names.index(name) for name in QUATERNION]
        values[:, where] /= np.linalg.norm(values[:, where], axis=1, keepdims=True)
    times = {name: log.columns[name].time[~known[name]] for name in names}
    filled = {name: int(((time > first) & (time < last)).sum()) for name, time in times.items()}
    return Flight(log.source, float(rate), first, names, values, {name: n for name, n in filled.items() if n})


def _column_names(log: Log, columns: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(log.columns) if columns is None else tuple(columns)
    for name in names:
        if name not in INPUTS | TRUTH:
            raise ConfigError(f"{log.source}: unknown column {quote(name)}{suggest(name, INPUTS | TRUTH)}.")
    absent = [name for name in names if name not in log.columns]
    if absent or not names:
        problem = f"{log.source}: no column {', '.join(map(repr, absent)) or 'at all'}"
        notes = "".join(f" ({note})" for note in log.notes if note.partition(":")[0] in absent)
        expected, present = list_names(list(names)), list_names(list(log.columns))
        raise FileError(f"{problem}{notes}; expected {expected}; found {present}.")
    return names


def _finite_rows(log: Log, name: str) -> Bool[np.ndarray, " T"]:
    """Mask the rows with a value; of an attitude those with all four."""
    parts = QUATERNION if name in QUATERNION else (name,)
    return np.logical_and.reduce([np.isfinite(log.columns[part].values) for part in parts])


def _shared_time(
    log: Log, known: Mapping[str, Bool[np.ndarray, " T"]], span: tuple[float, float] | None
) -> tuple[float, float]:
    """Return the limits of the time that all columns share, within ``span``."""
    ends = {name: log.columns[name].time[rows][[0, -1]] for name, rows in known.items() if rows.any()}
    if len(ends) < len(known):
        raise FileError(f"{log.source}: no row has all of {', '.join(QUATERNION)}.")
    late, early = max(ends, key=lambda it: ends[it][0]), min(ends, key=lambda it: ends[it][1])
    first, last = float(ends[late][0]), float(ends[early][1])
    if last <= first:
        problem = f"{late!r} begins at {first:.3f} s, {early!r} ends at {last:.3f} s after the start"
        raise FileError(f"{log.source}: columns share no time: {problem}; leave one of them out.")
    if span is None:
        return first, last
    if not (span[0] < span[1] and max(first, span[0]) < min(last, span[1])):
        expected = f"expected two times between {first:.3f} and {last:.3f} s after the start"
        raise ConfigError(f"{log.source}: span: {expected}, got {quote(span)}.")
    return max(first, float(span[0])), min(last, float(span[1]))


def _check_gaps(
    signal: Signal, name: str, known: Bool[np.ndarray, " T"], first: float, last: float, gap: float
) -> None:
    """Refuse times without a value between ``first`` and ``last`` that are longer than ``gap``."""
    rows = np.flatnonzero(known)
    time = signal.time[rows]
    long = (np.diff(time) > gap + SAME) & (time[:-1] < last) & (time[1:] > first)
    if long.any():
        at = int(np.flatnonzero(long)[0])
        before, after = int(rows[at]), int(rows[at + 1])
        what = f"{after - before - 1} rows without a value" if after - before > 1 else "nothing"
        where = f"{signal.group.label(signal.field, before)} ({name})"
        until = f"{time[at + 1]:.3f} s after the start ({signal.group.locate(after)})"
        advice = f"expected gaps of at most {gap:g} s: choose a span without it, or a longer gap"
        raise FileError(f"{where}: {what} from {time[at]:.3f} to {until}; {advice}.")


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
    """Return the signs by which an attitude never jumps between its two quaternions, and begins with qw >= 0."""
    parts = np.stack([log.columns[name].values[known] for name in QUATERNION])
    flips = np.where((parts[:, 1:] * parts[:, :-1]).sum(0) < 0, -1.0, 1.0)
    begin = -1.0 if parts[0, 0] < 0 else 1.0
    return begin * np.concatenate(([1.0], np.cumprod(flips)))
