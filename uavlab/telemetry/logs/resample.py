"""Resampling of logs to one uniform time grid, as models need them."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float32, Float64

from uavlab.core.errors import ConfigError, FileError
from uavlab.telemetry.logs.columns import COLUMNS, QUATERNION
from uavlab.telemetry.logs.log import Log, Signal
from uavlab.telemetry.logs.raw import list_names

GAP = 1.0  # s: longest time without a value
SAME = 1e-6  # s: time resolution of ULog; smaller differences are ignored
MOST_VALUES = 2**28  # of one flight: a gigabyte of float32


def resample(log: Log, rate: float, columns: Sequence[str]) -> dict[str, Float32[np.ndarray, " T"]]:
    """Resample columns of a log to ``rate`` rows per second over the time that all of them share.

    Sensor values are interpolated linearly; commands and references hold their last value. Quaternions are interpolated
    linearly along the shorter arc and normalised. Rows without a value are skipped.

    Raises:
        ConfigError: The flight is too long for this rate.
        FileError: A column is missing, has a longer gap than ``GAP``, or shares no time with the others.
    """
    _require_columns(log, columns)
    known = {name: _finite_rows(log, name) for name in columns}
    first, last = _shared_time(log, known)
    for name in columns:
        _check_gaps(log.columns[name], name, known[name], first, last)
    rows = int((last - first) * rate + SAME * rate) + 1
    if rows * len(columns) > MOST_VALUES:
        raise ConfigError(
            f"{log.source}: {rows:,} rows of {len(columns)} columns; resample at a lower rate or in parts."
        )
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
