"""Parquet files are read column by column; damage, names that come twice and what is no number are refused."""

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as library

from uavlab.core.errors import FileError
from uavlab.telemetry.logs import parquet_reader
from uavlab.telemetry.logs import raw as module
from uavlab.telemetry.logs.raw import RawLog

TIME = [0.0, 0.1, 0.2]


def write(path: Path, **columns: Any) -> Path:
    library.write_table(pa.table(columns), path)
    return path


def read(path: Path, needed: str = "time x", others: bool = True) -> RawLog:
    return parquet_reader.read(path, needed.split(), others)


def test_columns_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        **{"time": TIME, "x": pa.array([1, None, 3], pa.int32()), "pos.y": pa.array([1, 2, 3], pa.float32())},
        **{"on": [True, False, None], "cost": pa.array([1, 2, 3], pa.int64()).cast(pa.decimal128(21, 2))},
        **{"mode": ["a", "b", "c"], "both": [[1.0], [2.0], []]},
    )
    table = read(path)
    fields = table.groups[""].fields
    assert {name: values.dtype for name, values in fields.items()} == dict.fromkeys(fields, np.dtype("float64"))
    assert list(fields) == ["time", "x", "pos.y", "on", "cost"]
    np.testing.assert_array_equal(fields["x"], [1, np.nan, 3])
    np.testing.assert_array_equal(fields["on"], [1, 0, np.nan])
    assert fields["cost"].tolist() == fields["pos.y"].tolist() == [1, 2, 3]
    assert table.others == ("mode", "both")
    assert table.groups[""].locate(2) == f"{path} row 2"
    assert list(read(path, others=False).groups[""].fields) == ["time", "x"]
    assert read(path, others=False).others == ("pos.y", "on", "cost", "mode", "both")


def cut(path: Path) -> Path:
    content = write(path, time=TIME, x=TIME).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def damaged(path: Path) -> Path:
    library.write_table(pa.table({"time": TIME, "x": TIME}), path, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(56)
    path.write_bytes(content)
    return path


def doubled(path: Path) -> Path:
    library.write_table(pa.table([pa.array(TIME)] * 3, names=["time", "x", "x"]), path)
    return path


REFUSED = [
    (cut, r"{}: damaged, or no Parquet file: Parquet magic bytes not found in footer\..+; copy or save it again\."),
    (damaged, r"{}: damaged, or no Parquet file: .+; copy or save it again\."),
    (doubled, r"{}: two columns 'x'; each name may stand there once\."),
    (lambda path: write(path, time=[0.0], x=[1.0]), r"{}: 1 row; at least 2 rows are needed\."),
    (lambda path: write(path, time=pa.array([], pa.float64())), r"{}: 0 rows; at least 2 rows are needed\."),
    (lambda path: write(path, time=TIME, x=["a", "b", "c"]), r"{} column 'x': string; expected numbers\."),
    (lambda path: write(path, time=TIME, x=[[1], [2], [3]]), r"{} column 'x': list<.+>; expected numbers\."),
    (
        lambda path: write(path, time=[datetime(2024, 5, 1, 10, n) for n in range(3)]),
        r"{} column 'time': timestamp\[us\]; expected numbers \(seconds\)\.",
    ),
    (
        lambda path: write(path, **{f"c{n}": TIME for n in range(2001)}),
        r"{}: 2,001 columns; at most 2,000 are read\.",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_bad_file_is_refused(tmp_path: Path, make: Any, message: str) -> None:
    path = make(tmp_path / "a.parquet")
    with pytest.raises(FileError, match="^" + message.format(path) + "$"):
        read(path)


def test_a_wrong_count_of_rows_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", time=TIME)
    whole = library.ParquetFile.read
    monkeypatch.setattr(library.ParquetFile, "read", lambda *args, **options: whole(*args, **options).slice(1))
    with pytest.raises(FileError, match="no Parquet file: 2 rows, and its own count is 3; copy or save it again"):
        read(path)


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", time=np.zeros(10_000), x=np.zeros(10_000))
    monkeypatch.setattr(module, "LARGEST", 100_000)
    assert path.stat().st_size < 100_000
    with pytest.raises(FileError, match=r"160,000 bytes when unpacked; at most 100,000 are read\."):
        read(path)
    assert len(read(path, "time", others=False).groups[""].fields["time"]) == 10_000
