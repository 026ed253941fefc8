"""Sizes in the headers of Parquet's pages: pyarrow allocates them, whatever the file's footer declares.

Source: the definition of the Parquet format, and the compact protocol of Thrift in which headers are written.
"""

from collections.abc import Collection, Iterator
from io import BufferedReader
from typing import Any

HEADER = 2**16  # bytes; the header of a page of numbers has less than 200
MOST_PAGES = 1_000_000
DEEPEST = 8  # structs within each other
WIDTHS = {1: 0, 2: 0, 3: 1, 7: 8}  # kinds of values with a constant number of bytes: booleans, a byte, a double
INTEGERS, I32, BINARY, STRUCT = (4, 5, 6), 5, 8, 12  # other kinds


def unpacked_bytes(handle: BufferedReader, metadata: Any, columns: Collection[str]) -> int:
    """Return the bytes of all pages of some columns when unpacked, as their headers declare.

    Raises:
        ValueError: A header is damaged, or there are more than ``MOST_PAGES`` pages.
    """
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
