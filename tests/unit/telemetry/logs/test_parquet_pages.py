"""The headers of pages hold what pyarrow unpacks, and a footer that declares less does not hide it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from uavlab.core.errors import FileError
from uavlab.telemetry.logs import columnar_readers, raw
from uavlab.telemetry.logs.columnar_readers import read_parquet, unpacked_bytes

ROWS = 2_000_000
FORMS: list[dict[str, Any]] = [
    {},
    {"data_page_version": "2.0", "compression": "zstd"},
    {"compression": "none", "write_page_checksum": True, "use_dictionary": False},
    {"row_group_size": 1000, "write_statistics": False},
    {"compression": "gzip", "data_page_size": 100},
]


@pytest.mark.parametrize("form", FORMS, ids=range(len(FORMS)))
def test_sizes_are_those_of_the_footer(tmp_path: Path, form: dict[str, Any]) -> None:
    values = np.random.default_rng(0).normal(size=20_000)
    table = pa.table({"a": values, "b": np.arange(20_000) % 5, "c": pa.array([None, 1] * 10_000), "d": values > 0})
    parquet.write_table(table, tmp_path / "a.parquet", **form)
    with (tmp_path / "a.parquet").open("rb") as handle:
        metadata = parquet.ParquetFile(handle).metadata
        size = unpacked_bytes(handle, metadata, "acd")
        groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    declared = sum(group.column(n).total_uncompressed_size for group in groups for n in (0, 2, 3))  # with headers
    assert 0.9 * declared < size < declared


def varint(number: int, width: int = 0) -> bytes:
    """Return an integer as Thrift writes it, in ``width`` bytes if given."""
    left, parts = 2 * number, []
    while left or len(parts) < width:
        parts.append(left & 127 | 128)
        left >>= 7
    return bytes([*parts[:-1], parts[-1] & 127])


@pytest.fixture(scope="module")
def lie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of one page of 16 MB whose footer declares ten rows of 200 bytes."""
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    whole = {"data_page_size": 2**31 - 1, "max_rows_per_page": ROWS, "write_batch_size": ROWS, "row_group_size": ROWS}
    form = {"use_dictionary": False, "write_statistics": False, "store_schema": False, "compression": "zstd"}
    parquet.write_table(pa.table({"time": np.zeros(ROWS)}), path, **whole, **form)
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    size = parquet.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size
    footer = content[start:]
    for number, claim in ((ROWS, 10), (size, 200)):
        footer = footer.replace(varint(number), varint(claim, len(varint(number))))
    path.write_bytes(content[:start] + footer)
    assert (parquet.ParquetFile(path).metadata.num_rows, path.stat().st_size < 20_000) == (10, True)
    return path


def test_a_page_beyond_the_limit_is_refused(lie: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "LARGEST", 15_000_000)
    with pytest.raises(FileError, match=r": 16,000,0\d\d bytes when unpacked; at most 15,000,000 are read\. Cut"):
        read_parquet(lie, ["time"])


def test_a_limit_that_believes_the_footer_is_caught(lie: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "LARGEST", 15_000_000)
    monkeypatch.setattr(columnar_readers, "unpacked_bytes", lambda *_: 0)
    assert len(read_parquet(lie, ["time"]).groups[""].fields["time"]) == 10
    assert pa.default_memory_pool().max_memory() > 16_000_000


def test_pages_are_counted(lie: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar_readers, "MOST_PAGES", 0)
    with pytest.raises(FileError, match="no Parquet file: more than 0 pages; copy or save it again"):
        read_parquet(lie, ["time"])


@pytest.mark.parametrize(
    "header", [b"", b"\x15", b"\x00", b"\x25\x02\x15\x03\x00", b"\x15" + b"\xff" * 11, b"\x1c" * 40, b"\x19\x00"]
)
def test_a_damaged_header_is_refused(header: bytes) -> None:
    with pytest.raises((ValueError, KeyError)):
        columnar_readers._page(header)


def test_a_header_by_hand() -> None:
    nested = b"\x2c" + b"\x15\x04\x18\x02ab\x11\x17" + bytes(8) + b"\x00"
    assert columnar_readers._page(b"\x15\x00\x15\x90\x03\x15\x40" + nested + b"\x00rest") == (
        200,
        32,
        7 + len(nested) + 1,
    )
    assert columnar_readers._page(b"\x05\x04\x0a\x15\x02\x00")[:2] == (5, 1)  # a field by its number
