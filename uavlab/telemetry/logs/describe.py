"""What is in a log, in figures: the first thing to look at, before a mapping is written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from uavlab.telemetry.logs.column_map import PLAIN, PX4, Mapping
from uavlab.telemetry.logs.columns import COLUMNS, INPUTS, TIME
from uavlab.telemetry.logs.log import log_of, mapping_of, rate_of, recorded
from uavlab.telemetry.logs.raw import Recording

WINDS = ("wind", "wind_estimate")  # topics: a filter's guess, no truth, so it is told and never used


def described(path: Path | str, mapping: Mapping | Path | str | None = None) -> dict[str, Any]:
    """Describe a log: plain values that JSON can hold.

    A file without any of the usual names and without a mapping is described as it stands; everything else is checked
    as ``read_log`` does.

    Returns:
        ``file``, ``format``, ``duration_s``, ``rates_hz`` by topic (or ``table``), ``columns`` (ours, and others of a
        table), ``missing`` columns that models may read, ``winds`` as PX4 guessed them, ``others`` that hold no
        numbers, ``facts`` and ``notes``.

    Raises:
        FileError: As for ``read_log``.
        ConfigError: As for ``read_log``.
    """
    chosen = mapping_of(mapping)
    recording = recorded(Path(path), chosen, others=True)
    found: dict[str, Any] = {"file": recording.source, "format": recording.format}
    usual = PLAIN if "" in recording.groups else PX4
    fields = [entry.field for name, entries in usual.columns.items() if name != TIME.name for entry in entries]
    if chosen is None and not any(map(recording.find, fields)):
        duration, rates, columns = None, {}, list(_fields(recording, set()))
        missing, notes = list(INPUTS), (*recording.notes, "no column of a flight found: write a mapping")
    else:
        log = log_of(recording, chosen)
        times = [series.time for series in log.columns.values()]
        duration = float(max(time[-1] for time in times) - min(time[0] for time in times)) if times else None
        rates = {series.group.name or "table": series.rate for series in log.columns.values()}
        columns = [
            {
                **{"name": name, "field": series.field, "unit": COLUMNS[name].unit},
                **_figures(series.values),
                "rate_hz": _rounded(series.rate),
            }
            for name, series in log.columns.items()
        ]
        if "" in recording.groups:
            columns += _fields(recording, {series.field for series in log.columns.values()})
        missing, notes = log.missing, log.notes
    rates |= {
        name: rate_of(group.time) for name, group in recording.groups.items() if group.time is not None and group.rows
    }
    return {
        **found,
        "duration_s": _rounded(duration),
        "rates_hz": {name: _rounded(rate) for name, rate in rates.items()},
        "columns": columns,
        "missing": missing,
        "winds": list(_winds(recording)),
        "others": list(recording.others),
        "facts": dict(recording.facts),
        "notes": list(notes),
    }


def _fields(recording: Recording, told: set[str]) -> Iterator[dict[str, Any]]:
    """Describe fields that are no columns of ours."""
    for group in recording.groups.values():
        for name, values in group.fields.items():
            if name not in told:
                yield {"name": None, "field": group.full(name), "unit": None, **_figures(values), "rate_hz": None}


def _winds(recording: Recording) -> Iterator[dict[str, Any]]:
    for topic in WINDS:
        for way in ("windspeed_north", "windspeed_east"):
            if (place := recording.find(f"{topic}.{way}")) is not None:
                yield {"field": f"{topic}.{way}", "unit": "m/s", **_figures(place[0].fields[place[1]])}


def _figures(values: Shaped[np.ndarray, " T"]) -> dict[str, Any]:
    """Give rows, extremes, and the share of rows without a value."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
    return {"rows": len(values), "min": low, "max": high, "nan": float(np.isnan(values).mean()) if len(values) else 0.0}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
