"""Readers of tables that are stored column by column: NPZ and Parquet.

In NPZ, an array of two axes is several columns, ``q[0]``, ``q[1]``. ``np.load`` would allocate the size in a header
before it reads, so headers are compared with the sizes of members. Nothing is unpickled, files that would be larger
than ``raw.LARGEST`` when unpacked are refused, and no member is unpacked beyond the size that the file declares.
"""

import io
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped

from uavlab.core.errors import FileError
from uavlab.core.extras import require
from uavlab.telemetry.logs.raw import Group, RawLog, open_log, quote_name, require_columns, require_rows, require_size

# Sizes in the headers of Parquet's pages, in Thrift's compact protocol: pyarrow allocates them, whatever the footer
# says.
HEADER = 2**16  # bytes; the header of a page of numbers has less than 200
MOST_PAGES = 1_000_000
DEEPEST = 8  # structs within each other
WIDTHS = {1: 0, 2: 0, 3: 1, 7: 8}  # kinds of values with a constant number of bytes: booleans, a byte, a double
INTEGERS, I32, BINARY, STRUCT = (4, 5, 6), 5, 8, 12  # other kinds


def unpacked_bytes(handle: BufferedReader, metadata: Any, columns: Collection[str]) -> int:
    """Return the bytes of all pages of some columns when unpacked, as their headers declare."""
    total = 0
    for count, size in enumerate(_sizes(handle, metadata, columns)):
        if count == MOST_PAGES:
            raise ValueError(f"more than {MOST_PAGES:,} pages")
        total += size
    return total


def _sizes(handle: BufferedReader, metadata: Any, columns: Collection[str]) -> Iterator[int]:
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for column in range(metadata.num_columns):
            chunk = row_group.column(column)
            if chunk.path_in_schema in columns:
                starts = (chunk.dictionary_page_offset or 0, chunk.data_page_offset)
                at = min(start for start in starts if start > 0)
                end = at + chunk.total_compressed_size
                while at < end:
                    handle.seek(at)
                    unpacked, packed, length = _page(handle.read(HEADER))
                    yield unpacked
                    at += length + packed


def _page(raw: bytes) -> tuple[int, int, int]:
    """Return the unpacked and packed bytes of a page, and the length of its header, with which ``raw`` begins."""
    try:
        numbers, end = _struct(raw, 0, 0)
        unpacked, packed = numbers[2], numbers[3]
    except (IndexError, KeyError) as error:
        raise ValueError("a page without a header") from error
    if min(unpacked, packed) < 0:
        raise ValueError("a page of a negative size")
    return unpacked, packed, end


def _struct(raw: bytes, at: int, depth: int) -> tuple[dict[int, int], int]:
    """Return the 32-bit integers of a struct by field, and where it ends."""
    numbers: dict[int, int] = {}
    field = 0
    while kind := raw[at] & 15:
        step, at = raw[at] >> 4, at + 1
        if step == 0:
            step, at = _integer(raw, at)
            field = 0
        field += step
        if kind in INTEGERS:
            value, at = _integer(raw, at)
            if kind == I32:
                numbers[field] = value
        elif kind == BINARY:
            length, at = _varint(raw, at)
            at += length
        elif kind == STRUCT and depth < DEEPEST:
            _, at = _struct(raw, at, depth + 1)
        else:
            at += WIDTHS[kind]
    return numbers, at + 1


def _integer(raw: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(raw, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        value |= (raw[at] & 127) << shift
        at += 1
        if raw[at - 1] < 128:
            return value, at
    raise ValueError("an integer of more than ten bytes")


WIDEST = 64  # columns in one array
BATCH = 2**16  # rows of a column that are converted at once
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those of numpy; others cannot be unpacked in part
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError, KeyError)
"""Errors of the libraries on damaged or encrypted archives, or unknown compression."""


def read_npz(path: Path, needed: Collection[str], others: bool = True) -> RawLog:
    with open_log(path) as handle:
        try:
            archive = zipfile.ZipFile(handle)
            members = _members(path, archive)
            arrays = {
                name: _array(f"{path} array {quote_name(name)}", _unpack(archive, info))
                for name, info in members.items()
                if others or name in needed or any(field.startswith(f"{name}[") for field in needed)
            }
        except BROKEN as error:
            raise FileError(f"{path}: damaged, or no NPZ file: {error}; copy or save it again.") from error
    left = [name for name in members if name not in arrays]
    fields: dict[str, Shaped[np.ndarray, " T"]] = {}
    for name, array in arrays.items():
        columns = _columns(name, array)
        if not columns and name in needed:
            expected = "expected numbers in one row for each time"
            raise FileError(f"{path} column {quote_name(name)}: {array.dtype} of shape {array.shape}; {expected}.")
        left += [] if columns else [name]
        fields |= columns
    required = [name for name in fields if name in needed]
    most_common = Counter(map(len, fields.values())).most_common(1) or [(0, 0)]
    rows = len(fields[required[0]]) if required else most_common[0][0]
    for name in required:
        if len(fields[name]) != rows:
            problem = f"{rows:,} values in {quote_name(required[0])}, {len(fields[name]):,} in {quote_name(name)}"
            raise FileError(f"{path}: {problem}; expected one for each time in both.")
    require_rows(path, rows)
    left += [name for name in fields if len(fields[name]) != rows]
    group = Group("", str(path), {name: values for name, values in fields.items() if len(values) == rows})
    return RawLog(str(path), "npz", {"": group}, tuple(left))


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    if not infos:
        raise FileError(f"{path}: no arrays in it; expected a file that numpy.savez wrote.")
    require_columns(path, len(infos), "arrays")
    require_size(path, sum(info.file_size for info in infos), " when unpacked")
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename.removesuffix(".npy")
        if name in members:
            raise FileError(f"{path}: two arrays {quote_name(name)}; each name may stand there once.")
        members[name] = info
    return members


def _unpack(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Unpack at most the declared size of a member; without a count, ``read`` would first unpack all of it."""
    if info.compress_type not in COMPRESSIONS:
        raise NotImplementedError(f"compression method {info.compress_type}, which numpy.savez does not write")
    with archive.open(info) as member:
        return member.read(info.file_size + 1)


def _array(where: str, raw: bytes) -> Shaped[np.ndarray, "..."]:
    """Parse an array in numpy's format, if its header agrees with its size."""
    stream = io.BytesIO(raw)
    version = np.lib.format.read_magic(stream)
    if version not in HEADERS:
        raise FileError(f"{where}: npy format {version[0]}.{version[1]}; expected 1.0 or 2.0. Save plain numbers.")
    shape, fortran, dtype = HEADERS[version](stream)
    if dtype.hasobject:
        raise FileError(f"{where}: object arrays refused; they would run code. Save plain numbers (dtype float64).")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(raw) - stream.tell():
        raise FileError(f"{where}: its header claims {count:,} values, and others follow; save it again.")
    return np.frombuffer(raw, dtype, count, stream.tell()).reshape(shape, order="F" if fortran else "C")


def _columns(name: str, array: Shaped[np.ndarray, "..."]) -> dict[str, Shaped[np.ndarray, " T"]]:
    numeric = array.dtype.kind in "fiub"
    if numeric and array.ndim == 1:
        return {name: array}
    if numeric and array.ndim == 2 and array.shape[1] <= WIDEST:
        return {f"{name}[{at}]": array[:, at] for at in range(array.shape[1])}
    return {}


def read_parquet(path: Path, needed: Collection[str], others: bool = True) -> RawLog:
    """Read a Parquet file by pyarrow; cells without a value are NaN."""
    require("telemetry", str(path), "pyarrow")
    import pyarrow as pa
    from pyarrow import parquet

    with open_log(path) as handle:
        try:
            file = parquet.ParquetFile(handle)
            names, rows = file.schema_arrow.names, file.metadata.num_rows
            types = dict(zip(names, file.schema_arrow.types, strict=True))
            require_columns(path, len(names))
            if len(types) < len(names):
                twice = next(name for at, name in enumerate(names) if name in names[:at])
                raise FileError(f"{path}: two columns {quote_name(twice)}; each name may stand there once.")
            require_rows(path, rows)
            selection = [name for name in names if name in needed or (others and _numeric(types[name]))]
            for name in selection:
                if not _numeric(types[name]):
                    expected = f"expected numbers{' (seconds)' if pa.types.is_temporal(types[name]) else ''}"
                    raise FileError(f"{path} column {quote_name(name)}: {types[name]}; {expected}.")
            size = max(rows * 8 * len(selection), unpacked_bytes(handle, file.metadata, selection))
            require_size(path, size, " when unpacked")
            fields = {name: _parquet_column(file, name, rows) for name in selection}
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            reason = str(error).partition("\n")[0][:200].rstrip(".")
            raise FileError(f"{path}: damaged, or no Parquet file: {reason}; copy or save it again.") from error
    left = tuple(name for name in names if name not in fields)
    return RawLog(str(path), "parquet", {"": Group("", str(path), fields)}, left)


def _parquet_column(file: Any, name: str, rows: int) -> Float64[np.ndarray, " rows"]:
    """Read a column in batches; a whole table would be held twice while it is converted."""
    from pyarrow import float64

    values, at = np.empty(rows), 0
    for batch in file.iter_batches(BATCH, columns=[name], use_threads=False):
        part = batch.column(name).cast(float64(), safe=False).to_numpy(zero_copy_only=False)
        values[at : at + len(part)] = part[: rows - at]
        at += len(part)
    if at != rows:
        raise ValueError(f"{at:,} rows, and its own count is {rows:,}")
    return values


def _numeric(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))
