"""Draft of a column map: fields and units guessed from names and values, to be corrected by hand."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Shaped

from uavlab.core.errors import ConfigError
from uavlab.core.text import one_line
from uavlab.storage.files import write_text
from uavlab.telemetry.logs.columns import (
    COLUMNS,
    FORCE,
    INPUTS,
    MOTORS,
    QUATERNION,
    TIME,
    UNITS,
    Column,
    ColumnMap,
    Entry,
    fitting_units,
    read_column_map,
)  # fmt: skip
from uavlab.telemetry.logs.log import Log, build_log, duration, read_raw
from uavlab.telemetry.logs.raw import RawLog, draft_command
from uavlab.telemetry.logs.ulog import TOPICS, is_ulog, read_vehicle, usual_map

HEAD = """\
# Drafted from {source}. Each line is a guess: correct it, then use it by --mapping.
# World frame: x north, y east, z down. Body frame: x forward, y right, z down. Axes and signs are not guessed.
columns:
"""
QUANTITIES: dict[str, tuple[Sequence[str], str]] = {
    "attitude": (QUATERNION, "q quat quaternion orientation attitude"),
    "turn rate": (("p", "q", "r"), "gyro gyr omega rate rates ang angular w"),
    "force": (FORCE, "acc accel accelerometer acceleration a"),
    "voltage": (("voltage",), "voltage vbat volts"),
    "current": (("current",), "current amperage amps"),
    "motor": (MOTORS, "motor motors m u pwm rotor esc throttle"),
    "velocity": (("vx", "vy", "vz"), "v vel velocity speed"),
    "time": ((TIME.name,), "time timestamp t seconds"),
    "position": (("x", "y", "z"), "position pos p state local odom pose"),
}
"""Columns of a quantity, and words of names that suggest it; the first quantity counts."""
BY_UNIT = {"rad/s": "turn rate", "m/s^2": "force", "m/s": "velocity", "m": "position"}
REFERENCE = {"ref", "reference", "setpoint", "sp", "desired", "target", "cmd"}
AXES = {"x": 0, "y": 1, "z": 2, "n": 0, "e": 1, "d": 2, "north": 0, "east": 1, "down": 2}
TURNS = {"roll": 0, "pitch": 1, "yaw": 2}
SPELLINGS = {
    **{"sec": "s", "second": "s", "millisecond": "ms", "msec": "ms", "microsecond": "us", "µs": "us", "usec": "us"},
    **{"nanosecond": "ns", "nsec": "ns", "feet": "ft", "foot": "ft", "meter": "m", "metre": "m", "dps": "deg/s"},
    **{"°/s": "deg/s", "degree/s": "deg/s", "kph": "km/h", "kmh": "km/h", "knot": "kn", "kt": "kn", "m/s²": "m/s^2"},
    **{"m/s2": "m/s^2", "m/s/s": "m/s^2", "volt": "V", "v": "V", "mv": "mV", "a": "A", "amp": "A", "ma": "mA"},
}
BRACKETS = re.compile(r"\s*[\[(]([^\[\]()]*[^\[\]()\d\s][^\[\]()]*)[\])]\s*$")
SUFFIX = re.compile(r"_(ns|us|ms|s|deg_s|rad_s|m_s2|m_s|mm|cm|m|ft|mv|ma)(\[\d+\])?$", re.IGNORECASE)
TOKENS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
SHORT = re.compile(r"[avpqw][xyz]|qw|[vp][ned]")  # a quantity and its axis
USUAL = {"V": (2.0, 60.0), "A": (0.5, 200.0)}
"""Usual largest values of quantities of which each unit would be plausible."""


class Guess(NamedTuple):
    """A line of the draft."""

    column: str
    field: str
    unit: str
    reason: str
    sure: bool = True  # whether the line is no comment
    missing: str = ""  # keys of a column map for missing values


class Field(NamedTuple):
    """A name and what it suggests."""

    name: str
    words: tuple[str, ...]
    unit: str  # as in ``UNITS``, or else as it stands in the name; empty without one


def draft(raw: RawLog) -> tuple[str, list[str]]:
    """Return a column map as YAML with comments, and the columns that it maps."""
    table = "" in raw.groups
    guesses = list(_guess_table(raw) if table else _guess_topics(raw))
    mapped = [guess.column for guess in guesses if guess.sure]
    lines = []
    for column, field, unit, reason, sure, missing in guesses:
        entry = f"{column}: {{from: {json.dumps(field)}, unit: {json.dumps(unit)}{missing}}}"
        lines.append(f"  {'' if sure else '# '}{entry}  # {one_line(reason)}")
    absent = [name for name in (*([TIME.name] if table else ()), *INPUTS) if name not in mapped]
    lines += [f"# Not guessed: {', '.join(absent)}"] if absent else []
    rest = [*raw.names(), *raw.others] if table else []
    lines += [f"# Not used: {json.dumps(name)}" for name in rest if name not in {guess.field for guess in guesses}]
    return HEAD.format(source=one_line(raw.source)) + "\n".join(lines) + "\n", mapped


def _guess_topics(raw: RawLog) -> Iterator[Guess]:
    used, notes = usual_map(raw)
    for name in COLUMNS:
        entry = next((entry for entry in used.columns.get(name, ()) if raw.find(entry.field)), None)
        if entry is not None:
            reason = "; ".join(["a topic of PX4", *(notes if name == MOTORS[0] else ())])
            yield Guess(name, entry.field, entry.unit or COLUMNS[name].unit, reason, missing=_missing(entry))
    for group in raw.groups.values() if MOTORS[0] not in used.columns else ():
        entry = TOPICS.get(group.name.partition("#")[0])
        for field, values in group.fields.items() if entry else ():
            if entry and field.startswith(f"{entry.field}[") and np.any(values):
                reason = f"{values.min():g} to {values.max():g}: a rotor? Then number it"
                yield Guess(MOTORS[0], group.full_name(field), entry.unit or "", reason, False, _missing(entry))


def _missing(entry: Entry) -> str:
    numbers = {"unknown": entry.unknown, "blank": entry.blank}
    return "".join(f", {key}: {number:g}" for key, number in numbers.items() if number is not None)


def _guess_table(raw: RawLog) -> Iterator[Guess]:
    group = raw.groups[""]
    fields = [_field(name) for name in group.fields]
    chosen: dict[str, Field] = {}
    for field in fields:
        name = field.name if field.name in COLUMNS else _column(field, fields)
        if name and (name not in chosen or field.name == name):
            chosen[name] = field
    for name in QUATERNION if not set(QUATERNION) <= set(chosen) else ():
        chosen.pop(name, None)
    values = {name: group.fields[field.name].astype(np.float64) for name, field in chosen.items()}
    values = {name: numbers[np.isfinite(numbers)] for name, numbers in values.items()}
    for name, column in COLUMNS.items():
        if len(values.get(name, ())):
            yield _guess(column, chosen[name], values)


def _guess(column: Column, field: Field, values: dict[str, Float64[np.ndarray, " T"]]) -> Guess:
    numbers, known = values[column.name], UNITS[column.unit]
    extent, fitting = f"{numbers.min():g} to {numbers.max():g}", fitting_units(numbers, column)
    unit = field.unit or _unit(column.name, values)
    if unit not in known:
        reason = f"{extent}, unit {unit or 'unknown'}; known units: {', '.join(known)}"
        return Guess(column.name, field.name, column.unit, reason, sure=False)
    problem = "" if unit in fitting else f", outside {column.low:g} to {column.high:g} {column.unit}"
    rest = [other for other in fitting if known[other] != known[unit]]
    if rest and not field.unit and column.name not in (TIME.name, *FORCE):
        problem += f"; others would fit, too: {', '.join(rest)}"
    reason = f"unit by its {'name' if field.unit else 'values'}, {extent}{problem}"
    return Guess(column.name, field.name, unit, reason, unit in fitting)


def _unit(name: str, values: dict[str, Float64[np.ndarray, " T"]]) -> str:
    """Guess the unit of a column from its values; empty if none is plausible."""
    units, finite = UNITS[COLUMNS[name].unit], values[name]
    largest = float(np.abs(finite).max())
    if name == TIME.name:
        step = float(np.median(np.abs(np.diff(finite)))) if len(finite) > 1 else 0.0
        return next((unit for unit in ("s", "ms", "us") if step * units[unit].factor < 1), "ns")
    if name in FORCE:
        norm = float(np.sqrt(sum(np.median(values[axis] ** 2) for axis in FORCE if len(values.get(axis, ())))))
        return next((unit for unit, scale in units.items() if 7 < norm * scale.factor < 13), "")
    if COLUMNS[name].unit in USUAL:
        low, high = USUAL[COLUMNS[name].unit]
        return next((unit for unit, scale in units.items() if low <= largest * scale.factor <= high), "")
    return next(iter(fitting_units(finite, COLUMNS[name])), "")


def _field(name: str) -> Field:
    """Split a name into words and a unit."""
    bare, unit = name, ""
    if match := BRACKETS.search(name):
        bare, unit = name[: match.start()], _spelling(match[1])
    elif match := SUFFIX.search(name):
        bare, unit = name[: match.start()] + (match[2] or ""), _spelling(match[1].replace("_", "/", 1))
    words = [word.lower() for word in TOKENS.findall(bare)]
    return Field(name, tuple(part for word in words for part in (word if SHORT.fullmatch(word) else [word])), unit)


def _spelling(text: str) -> str:
    """Return a unit as in ``UNITS``, if it is one of these."""
    plain = text.strip().lower().replace("degrees", "degree").replace("/sec", "/s")
    plain = re.sub(r"[\s*·]*\b([a-z]+)\^?-1$", r"/\1", plain)
    plain = re.sub(r"[\s*·]*\b([a-z]+)\^?-2$", r"/\1^2", plain).replace(" ", "")
    known = {unit for units in UNITS.values() for unit in units} - {"1"}
    choices = (plain, SPELLINGS.get(plain, ""), SPELLINGS.get(plain.removesuffix("s"), ""))
    return next((unit for unit in choices if unit in known), text.strip())


def _column(field: Field, fields: Sequence[Field]) -> str:
    """Return the column that a field may be; empty if none."""
    words = {*field.words}
    quantity = next((name for name, (_, known) in QUANTITIES.items() if words & {*known.split()}), "")
    of_unit = next((name for unit, name in BY_UNIT.items() if field.unit in UNITS[unit]), "")
    if of_unit and quantity != "motor":
        quantity = of_unit
    if words & {"ang", "angular"} and words & {*QUANTITIES["force"][1].split()}:
        return ""
    columns, _ = QUANTITIES.get(quantity or ("position" if len(words) == 1 and not field.unit else ""), ((), ""))
    if len(columns) == 1:
        return columns[0]
    above, last = field.words[:-1], field.words[-1] if field.words else ""
    axes = {**AXES, **(TURNS if quantity == "turn rate" else {}), **{str(n): n for n in range(len(columns))}}
    if quantity == "attitude":
        axes |= {"w": 0, "x": 1, "y": 2, "z": 3}
    if quantity == "motor" and (*above, "0") not in [name.words for name in fields]:
        axes = {str(n + 1): n for n in range(len(columns))}
    axis = next((axes[word] for word in (last, *field.words) if word in axes), None)
    if axis is None or axis >= len(columns):
        return ""
    prefix = "ref_" if REFERENCE & words and quantity in ("position", "velocity") else ""
    return prefix + columns[axis]


def describe(path: Path, mapping: Path | None = None) -> dict[str, Any]:
    """Describe a log by JSON values: what it is, rates by topic (or ``table``), columns, and what is missing.

    Without a column map, a file with none of the usual names is described unchecked; other files are checked as by
    ``read_log``.
    """
    column_map = read_column_map(mapping) if mapping else None
    raw = read_raw(path, column_map, others=True)
    table = "" in raw.groups
    usual = usual_map(raw)[0].columns.items()
    fields = [entry.field for name, entries in usual if name != TIME.name for entry in entries]
    foreign = column_map is None and not any(map(raw.find, fields))
    note = f"no column of a flight found: write a mapping: {draft_command(raw.source)}, see docs/telemetry.md"
    log = Log(raw.source, {}, (*raw.notes, note)) if foreign else build_log(raw, column_map)
    signals, used = log.columns.items(), {signal.field for signal in log.columns.values()}
    columns = [
        _row(name, signal.field, COLUMNS[name].unit, signal.values, mean_rate(signal.time)) for name, signal in signals
    ]
    if table or foreign:
        groups = [(group, name) for group in raw.groups.values() for name in group.fields if name not in used]
        columns += [_row(None, group.full_name(name), None, group.fields[name], None) for group, name in groups]
    times = {signal.group.name or "table": signal.time for _, signal in signals}
    times |= {name: group.time for name, group in raw.groups.items() if group.time is not None and len(group.time)}
    return {
        "file": raw.source,
        "format": raw.format,
        "duration_s": round(duration(log), 3) if log.columns else None,
        "rates_hz": {name: mean_rate(time) for name, time in times.items()},
        "columns": columns,
        "missing": [name for name in INPUTS if name not in log.columns],
        "others": list(raw.others),
        "facts": {**raw.facts, **({} if table else {"vehicle": str(read_vehicle(raw))})},
        "notes": list(log.notes),
    }


def draft_mapping(path: Path, target: Path) -> list[str]:
    """Write a draft of a column map for a log; return the columns that it maps."""
    if target.exists():
        raise ConfigError(f"{target}: exists, and is not overwritten; name another file, or remove it.")
    text, columns = draft(read_raw(path, None if is_ulog(path) else ColumnMap("", {}), others=True))
    write_text(target, text)
    return columns


def mean_rate(time: Float64[np.ndarray, " T"]) -> float:
    """Return the mean rows per second to three decimals; 0 if all rows have the same time."""
    duration = float(time[-1] - time[0]) if len(time) > 1 else 0.0
    return round((len(time) - 1) / duration, 3) if duration > 0 else 0.0


def _row(
    name: str | None, field: str, unit: str | None, values: Shaped[np.ndarray, " T"], rate: float | None
) -> dict[str, Any]:
    """Describe a field: its rows, least and largest value, and the share of NaN."""
    finite, nan = values[np.isfinite(values)], float(np.isnan(values).mean()) if len(values) else 0.0
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
    figures = {"rows": len(values), "min": low, "max": high, "nan": nan}
    return {"name": name, "field": field, "unit": unit, **figures, "rate_hz": rate}
