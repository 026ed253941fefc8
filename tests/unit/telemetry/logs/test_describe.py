"""Descriptions hold the figures of a log, with our names or others, in values that JSON can hold."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support import ulog_writer
from uavlab.core.errors import FileError
from uavlab.telemetry.logs.columns import INPUTS
from uavlab.telemetry.logs.draft import describe, mean_rate

FOREIGN = (
    "no column of a flight found: write a mapping: uavlab flights describe {} --write-mapping a.yaml, "
    "see docs/telemetry.md"
)


def test_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,vx,temp,mode\n3,1,20,a\n3.25,,21,b\n3.5,-2,22,c\n4,2,,d\n")
    description = describe(tmp_path / "a.csv")
    assert json.loads(json.dumps(description, allow_nan=False)) == description
    left = {"name": None, "unit": None, "rows": 4, "rate_hz": None}
    assert description == {
        "file": str(tmp_path / "a.csv"),
        "format": "csv",
        "duration_s": 1.0,
        "rates_hz": {"table": 3.0},
        "columns": [
            {"name": "vx", "field": "vx", "unit": "m/s", "rows": 4, "min": -2, "max": 2, "nan": 0.25, "rate_hz": 3},
            {**left, "field": "time", "min": 3, "max": 4, "nan": 0},
            {**left, "field": "temp", "min": 20, "max": 22, "nan": 0.25},
        ],
        "missing": [name for name in INPUTS if name != "vx"],
        "others": ["mode"],
        "facts": {},
        "notes": [],
    }


def test_a_table_that_nobody_knows_is_described_as_it_stands(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", t_us=np.arange(3) * 10_000, gyro=np.full(3, np.nan))
    description = describe(tmp_path / "a.npz")
    assert (description["duration_s"], description["rates_hz"]) == (None, {})
    assert [(row["field"], row["min"], row["max"]) for row in description["columns"]] == [
        ("t_us", 0, 20_000),
        ("gyro", None, None),
    ]
    assert description["missing"] == list(INPUTS)
    assert description["notes"] == [FOREIGN.format(tmp_path / "a.npz")]
    (tmp_path / "m.yaml").write_text("columns: {time: {from: t_us, unit: us}, x: {from: t_us, unit: mm}}")
    mapped = describe(tmp_path / "a.npz", tmp_path / "m.yaml")
    assert mapped["duration_s"] == 0.02
    assert (mapped["columns"][0]["name"], mapped["columns"][0]["max"]) == ("x", 20)


def test_topics(tmp_path: Path) -> None:
    wind = "wind_estimate", ulog_writer.WIND, [[t, 3, -4] for t in range(0, 1_000_001, 500_000)]
    load = "cpuload", ulog_writer.STAMP | {"load": "float"}, [[0, 1]]
    (tmp_path / "a.ulg").write_bytes(ulog_writer.ulog(ulog_writer.position(), wind, load, after=ulog_writer.dropout(7)))
    description = describe(tmp_path / "a.ulg")
    assert json.loads(json.dumps(description, allow_nan=False)) == description
    assert description["duration_s"] == 1
    assert description["rates_hz"] == {"vehicle_local_position": 10, "cpuload": 0, "wind_estimate": 2}
    assert [row["name"] for row in description["columns"]] == ["x", "y", "z", "vx", "vy", "vz"]
    assert description["facts"]["dropouts"] == {"count": 1, "total_ms": 7, "longest_ms": 7}


def test_topics_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "a.ulg").write_bytes(
        ulog_writer.ulog(("cpuload", ulog_writer.STAMP | {"load": "float"}, [[0, 1], [500_000, 2]]))
    )
    description = describe(tmp_path / "a.ulg")
    assert [row["field"] for row in description["columns"]] == ["cpuload.load", "cpuload.timestamp"]
    assert description["rates_hz"] == {"cpuload": 2}
    assert description["notes"] == [FOREIGN.format(tmp_path / "a.ulg")]


def test_what_is_described_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,vx\n0,1\n0.1,500\n")
    with pytest.raises(FileError, match=r"a\.csv:3 column 'vx': 500 m/s; expected -150 to 150 m/s"):
        describe(tmp_path / "a.csv")


def test_rates() -> None:
    assert mean_rate(np.array([0, 0.1, 0.5])) == 4
    assert mean_rate(np.array([0, 0.3, 0.7])) == 2.857
    assert mean_rate(np.array([1.0])) == mean_rate(np.array([])) == mean_rate(np.zeros(3)) == 0
