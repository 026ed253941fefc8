"""Summary of a log: columns, rates and ranges, to look at before writing a column map."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped

from uavlab.core.errors import ConfigError
from uavlab.storage.files import write_text
from uavlab.telemetry.logs.column_map import ColumnMap, read_column_map
from uavlab.telemetry.logs.columns import COLUMNS, INPUTS, TIME
from uavlab.telemetry.logs.draft import draft
from uavlab.telemetry.logs.log import Log, build_log, duration, read_raw
from uavlab.telemetry.logs.raw import RawLog, draft_command
from uavlab.telemetry.logs.ulog_reader import is_ulog
from uavlab.telemetry.logs.vehicle import read_vehicle, usual_map

WINDS = ("wind", "wind_estimate")  # topics: estimates of a filter; described, but never used as truth


def describe(path: Path, mapping: Path | None = None) -> dict[str, Any]:
    """Describe a log by JSON values.

    Without a column map, a file with none of the usual names is described unchecked; other files are checked as by
    ``read_log``.

    Returns:
        ``file``, ``format``, ``duration_s``, ``rates_hz`` by topic (or ``table``), ``columns`` (known ones, and other
        fields of a table), ``missing`` columns that models need, ``winds`` estimated by PX4, ``others`` (fields that
        are not numeric), ``facts`` and ``notes``.

    Raises:
        UavlabError: See ``read_log``.
    """
    column_map = read_column_map(mapping) if mapping else None
    raw = read_raw(path, column_map, others=True)
    table = "" in raw.groups
    usual = usual_map(raw)[0].columns.items()
    fields = [entry.field for name, entries in usual if name != TIME.name for entry in entries]
    foreign = column_map is None and not any(map(raw.find, fields))
    note = f"no column of a flight found: write a mapping: {draft_command(raw.source)}, see docs/telemetry.md"
    log = Log(raw.source, {}, (*raw.notes, note)) if foreign else build_log(raw, column_map)
    columns = [
        {
            **{"name": name, "field": signal.field, "unit": COLUMNS[name].unit},
            **_figures(signal.values),
            "rate_hz": mean_rate(signal.time),
        }
        for name, signal in log.columns.items()
    ]
    if table or foreign:
        columns += _other_fields(raw, {signal.field for signal in log.columns.values()})
    times = {signal.group.name or "table": signal.time for signal in log.columns.values()}
    times |= {name: group.time for name, group in raw.groups.items() if group.time is not None and len(group.time)}
    return {
        "file": raw.source,
        "format": raw.format,
        "duration_s": round(duration(log), 3) if log.columns else None,
        "rates_hz": {name: mean_rate(time) for name, time in times.items()},
        "columns": columns,
        "missing": [name for name in INPUTS if name not in log.columns],
        "winds": list(_winds(raw)),
        "others": list(raw.others),
        "facts": {**raw.facts, **({} if table else {"vehicle": str(read_vehicle(raw))})},
        "notes": list(log.notes),
    }


def draft_mapping(path: Path, target: Path) -> list[str]:
    """Write a draft of a column map for a log; return the columns that it maps.

    Raises:
        ConfigError: The target exists.
        FileError: The log is not readable.
    """
    if target.exists():
        raise ConfigError(f"{target}: exists, and is not overwritten; name another file, or remove it.")
    text, columns = draft(read_raw(path, None if is_ulog(path) else ColumnMap("", {}), others=True))
    write_text(target, text)
    return columns


def mean_rate(time: Float64[np.ndarray, " T"]) -> float:
    """Return the mean rows per second to three decimals; 0 if all rows have the same time."""
    duration = float(time[-1] - time[0]) if len(time) > 1 else 0.0
    return round((len(time) - 1) / duration, 3) if duration > 0 else 0.0


def _other_fields(raw: RawLog, used: Collection[str]) -> Iterator[dict[str, Any]]:
    for group in raw.groups.values():
        for name, values in group.fields.items():
            if name not in used:
                yield {"name": None, "field": group.full_name(name), "unit": None, **_figures(values), "rate_hz": None}


def _winds(raw: RawLog) -> Iterator[dict[str, Any]]:
    for topic in WINDS:
        for axis in ("windspeed_north", "windspeed_east"):
            if (place := raw.find(f"{topic}.{axis}")) is not None:
                yield {"field": f"{topic}.{axis}", "unit": "m/s", **_figures(place[0].fields[place[1]])}


def _figures(values: Shaped[np.ndarray, " T"]) -> dict[str, Any]:
    """Return rows, least and largest value, and the share of NaN."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
    return {"rows": len(values), "min": low, "max": high, "nan": float(np.isnan(values).mean()) if len(values) else 0.0}
