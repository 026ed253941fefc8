"""NPZ and Parquet are read in any order; damage, objects, bombs, doubled names and what is no number are refused."""

import io
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as library

from uavlab.core.errors import FileError
from uavlab.telemetry.logs import raw
from uavlab.telemetry.logs.raw import RawLog
from uavlab.telemetry.logs.tables import read_npz, read_parquet

TIME = np.arange(4) / 10


def write(path: Path, **arrays: Any) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def write_archive(path: Path, members: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy(array: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), version)
    return stream.getvalue()


def read(path: Path, needed: str = "time x q[0]", others: bool = True) -> RawLog:
    return read_npz(path, needed.split(), others)


def test_arrays_are_columns(tmp_path: Path) -> None:
    columns = np.asfortranarray(np.arange(8.0).reshape(4, 2))
    path = write(tmp_path / "a.npz", time=TIME, x=np.arange(4, dtype=">f4"), q=columns, on=TIME > 0, name="mine", n=7)
    table = read(path)
    fields = table.groups[""].fields
    assert list(fields) == ["time", "x", "q[0]", "q[1]", "on"]
    assert fields["x"].tolist() == [0, 1, 2, 3]
    assert fields["q[1]"].tolist() == [1, 3, 5, 7]
    assert fields["on"].tolist() == [False, True, True, True]
    assert table.others == ("name", "n")
    assert table.groups[""].locate(3) == f"{path} row 3"
    assert list(read(path, others=False).groups[""].fields) == ["time", "x", "q[0]", "q[1]"]
    assert read(path, others=False).others == ("on", "name", "n")


def test_arrays_of_another_length_are_no_columns(tmp_path: Path) -> None:
    table = read(write(tmp_path / "a.npz", time=TIME, x=TIME, gains=np.ones(3)))
    assert (list(table.groups[""].fields), table.others) == (["time", "x"], ("gains",))
    foreign = read(write(tmp_path / "b.npz", t=TIME, alt=TIME, gains=np.ones(9)))  # none of our names: what most have
    assert (list(foreign.groups[""].fields), foreign.others) == (["t", "alt"], ("gains",))


def test_a_long_header_is_read(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.npz", {"time.npy": npy(TIME, (2, 0)), "x.npy": npy(TIME)})
    assert read(path).groups[""].fields["time"].tolist() == TIME.tolist()


def header(shape: str, descr: str = "<f8") -> bytes:
    """An array with any header, and two numbers."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + bytes(16)


def damaged(path: Path) -> Path:
    np.savez(path, time=TIME, x=TIME)  # not compressed: every byte is under the sum
    content = bytearray(path.read_bytes())
    content[100] ^= 255
    path.write_bytes(content)
    return path


def cut(path: Path) -> Path:
    content = write(path, time=TIME, x=TIME).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def doubled(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy(TIME))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.npy", npy(TIME))
    return path


def objects(path: Path) -> Path:
    np.savez(path, time=TIME, x=np.array([{}, 1, 2, 3], dtype=object), allow_pickle=bool(path))
    return path


AGAIN = "; copy or save it again."
PLAIN = "; save plain numbers (dtype float64), or copy the file again."
OBJECTS = "{} array 'x': Object arrays cannot be loaded when allow_pickle=False" + PLAIN
REFUSED = [
    (cut, "{}: damaged, or no NPZ file: File is not a zip file" + AGAIN),
    (damaged, "{} array 'time': Bad CRC-32 for file 'time.npy'" + PLAIN),
    (objects, OBJECTS),
    (doubled, "{}: 'x' is column 1 and column 2; each name may stand there once."),
    (lambda path: write_archive(path, {"a.txt": b""}), "{}: no rows; at least 2 rows are needed."),
    (
        lambda path: write_archive(path, {f"{n}.npy": b"" for n in range(2001)}),
        "{}: 2,001 columns; at most 2,000 are read.",
    ),
    (
        lambda path: write(path, time=TIME, x=TIME[:3]),
        "{}: 4 values in 'time', 3 in 'x'; expected one for each time in both.",
    ),
    (lambda path: write(path, time=TIME[:1], x=TIME[:1]), "{}: 1 row; at least 2 rows are needed."),
    (lambda path: write(path, mine="a"), "{}: no rows; at least 2 rows are needed."),
    (
        lambda path: write(path, time=TIME, x=TIME.astype("datetime64[s]")),
        "{} column 'x': datetime64[s] of shape (4,); expected numbers in one row for each time.",
    ),
    (
        lambda path: write(path, time=TIME, x=np.array(["a"] * 4)),
        "{} column 'x': <U1 of shape (4,); expected numbers in one row for each time.",
    ),
    (
        lambda path: write(path, time=TIME, x=TIME.astype(complex)),
        "{} column 'x': complex128 of shape (4,); expected numbers in one row for each time.",
    ),
    (
        lambda path: write(path, time=TIME, x=np.ones((2, 2, 2))),
        "{} column 'x': float64 of shape (2, 2, 2); expected numbers in one row for each time.",
    ),
    (lambda path: write_archive(path, {"x.npy": header("(1000000000000,)")}), "{} array 'x': …" + PLAIN),
    (lambda path: write_archive(path, {"x.npy": header("(-2, -1)")}), "{} array 'x': …" + PLAIN),
    (lambda path: write_archive(path, {"x.npy": header("(" + 20_000 * " " + "2,)")}), "{} array 'x': …" + PLAIN),
    (
        lambda path: write_archive(path, {"x.npy": b"#!/bin/sh"}),
        "{} array 'x': the magic string is not correct; expected b'\\x93NUMPY', got b'#!/bin'" + PLAIN,
    ),
    (lambda path: write_archive(path, {"x.npy": header("(2,)", "|O")}), OBJECTS),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_bad_archive_is_refused(tmp_path: Path, make: Any, message: str) -> None:
    path = make(tmp_path / "a.npz")
    with pytest.raises(FileError) as refusal:
        read(path)
    assert re.fullmatch(re.escape(message.format(path)).replace("…", ".+"), str(refusal.value)), refusal.value


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    monkeypatch.setattr(raw, "LARGEST", 2**22)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        for _ in range(5):
            member.write(bytes(2**20))
    assert path.stat().st_size < 2**14
    with pytest.raises(FileError, match=r"a\.npz: 5,242,880 bytes when unpacked; at most 4,194,304 are read\."):
        read(path)


def peak(action: Callable[[], object]) -> int:
    """Return the peak of memory during an action (bytes), that of pyarrow's buffers too."""
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


TIMES = [0.0, 0.1, 0.2]


def write_parquet(path: Path, **columns: Any) -> Path:
    library.write_table(pa.table(columns), path)
    return path


def read_table(path: Path, needed: str = "time x", others: bool = True) -> RawLog:
    return read_parquet(path, needed.split(), others)


def test_parquet_columns_are_read(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "a.parquet",
        **{"time": TIMES, "x": pa.array([1, None, 3], pa.int32()), "pos.y": pa.array([1, 2, 3], pa.float32())},
        **{"on": [True, False, None], "cost": pa.array([1, 2, 3], pa.int64()).cast(pa.decimal128(21, 2))},
        **{"mode": ["a", "b", "c"], "both": [[1.0], [2.0], []]},
    )
    table = read_table(path)
    fields = table.groups[""].fields
    assert {name: values.dtype for name, values in fields.items()} == dict.fromkeys(fields, np.dtype("float64"))
    assert list(fields) == ["time", "x", "pos.y", "on", "cost"]
    np.testing.assert_array_equal(fields["x"], [1, np.nan, 3])
    np.testing.assert_array_equal(fields["on"], [1, 0, np.nan])
    assert fields["cost"].tolist() == fields["pos.y"].tolist() == [1, 2, 3]
    assert table.others == ("mode", "both")
    assert table.groups[""].locate(2) == f"{path} row 2"
    assert list(read_table(path, others=False).groups[""].fields) == ["time", "x"]
    assert read_table(path, others=False).others == ("pos.y", "on", "cost", "mode", "both")


def cut_parquet(path: Path) -> Path:
    content = write_parquet(path, time=TIMES, x=TIMES).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def damaged_parquet(path: Path) -> Path:
    library.write_table(pa.table({"time": TIMES, "x": TIMES}), path, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(56)
    path.write_bytes(content)
    return path


def doubled_parquet(path: Path) -> Path:
    library.write_table(pa.table([pa.array(TIMES)] * 3, names=["time", "x", "x"]), path)
    return path


REFUSED_PARQUET = [
    (
        cut_parquet,
        r"{}: damaged, or no Parquet file: Parquet magic bytes not found in footer\..+; copy or save it again\.",
    ),
    (damaged_parquet, r"{}: damaged, or no Parquet file: .+; copy or save it again\."),
    (doubled_parquet, r"{}: 'x' is column 2 and column 3; each name may stand there once\."),
    (lambda path: write_parquet(path, time=[0.0], x=[1.0]), r"{}: 1 row; at least 2 rows are needed\."),
    (lambda path: write_parquet(path, time=pa.array([], pa.float64())), r"{}: no rows; at least 2 rows are needed\."),
    (lambda path: write_parquet(path, time=TIMES, x=["a", "b", "c"]), r"{} column 'x': string; expected numbers\."),
    (lambda path: write_parquet(path, time=TIMES, x=[[1], [2], [3]]), r"{} column 'x': list<.+>; expected numbers\."),
    (
        lambda path: write_parquet(path, time=[datetime(2024, 5, 1, 10, n) for n in range(3)]),
        r"{} column 'time': timestamp\[us\]; expected numbers \(seconds\)\.",
    ),
    (
        lambda path: write_parquet(path, **{f"c{n}": TIMES for n in range(2001)}),
        r"{}: 2,001 columns; at most 2,000 are read\.",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED_PARQUET, ids=range(len(REFUSED_PARQUET)))
def test_bad_parquet_is_refused(tmp_path: Path, make: Any, message: str) -> None:
    path = make(tmp_path / "a.parquet")
    with pytest.raises(FileError, match="^" + message.format(path) + "$"):
        read_table(path)


def test_a_wrong_count_of_rows_is_damage(tmp_path: Path) -> None:
    """The footer holds counts as Thrift writes them: twice the number, seven bits a byte, the lowest first."""
    path = tmp_path / "a.parquet"
    library.write_table(pa.table({"time": np.zeros(8000)}), path, write_statistics=False, store_schema=False)
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[start:].replace(bytes([0x80, 0x7D]), bytes([0xD4, 0x7D]))  # 16,000 and 16,084
    path.write_bytes(content[:start] + footer)
    assert library.ParquetFile(path).metadata.num_rows == 8042
    with pytest.raises(FileError, match="no Parquet file: 8,000 rows, and its own count is 8,042; copy or save it"):
        read_table(path)


def test_a_column_is_not_held_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({name: np.arange(200_000) % 99 for name in ("time", *map(str, range(9)))})
    library.write_table(table, path, row_group_size=20_000)

    def as_a_table() -> list[Any]:
        table = library.ParquetFile(path).read()
        return [column.cast(pa.float64(), safe=False).to_numpy() for column in table.columns]

    assert peak(lambda: read_table(path)) < 1.3 * 16_000_000 < 1.9 * 16_000_000 < peak(as_a_table)


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "a.parquet", time=np.zeros(10_000), x=np.zeros(10_000))
    monkeypatch.setattr(raw, "LARGEST", 100_000)
    assert path.stat().st_size < 100_000
    with pytest.raises(FileError, match=r"160,000 bytes when unpacked; at most 100,000 are read\."):
        read_table(path)
    assert len(read_table(path, "time", others=False).groups[""].fields["time"]) == 10_000
