"""Reader of text tables in UTF-8, whose layout ``table_layout`` finds.

Numbers have a decimal point; cells may be empty; lines that begin with ``#`` are skipped. Lines are counted from 1, as
in editors.
"""

import csv
import re
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from uavlab.core.errors import FileError
from uavlab.core.text import quote
from uavlab.telemetry.logs.raw import Group, RawLog, open_log, quote_name, require_columns, require_rows, require_size
from uavlab.telemetry.logs.table_layout import COMMA, DATE, NUMBER, SEPARATORS, Layout, find_layout, open_rows

CHUNK, CELLS = 4096, 2**18  # rows turned into columns at once, and cells
MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def read(path: Path, needed: Collection[str], others: bool = True) -> RawLog:
    """Read a table.

    Raises:
        FileError: The file is not UTF-8, has no or duplicate names, rows of unequal length, or text in a needed column.
    """
    with open_log(path) as handle:
        raw = handle.read()
    text = _decode(path, raw)
    top = re.search(r"\S[^\r\n]*", text)
    if top is None:
        raise FileError(f"{path}: empty; expected a log of a flight.")
    require_columns(path, max(map(top.group().count, SEPARATORS)) + 1)
    layout = find_layout(path, raw, top.group())
    body = 0
    for _ in range(layout.skipped):
        body = text.find("\n", body) + 1
    plain = text.isascii() and text.find("_", body) < 0  # then `float` accepts no other text than `NUMBER`
    del text  # a StringIO would hold four bytes for each character
    rows = open_rows(raw, layout.separator)
    try:
        return _read(path, rows, layout, needed, others, plain)
    except csv.Error as error:
        raise FileError(f"{path}:{rows.line_num}: {error}; check the quotes there.") from error


def _decode(path: Path, raw: bytes) -> str:
    """Decode UTF-8, with or without a byte-order mark, and refuse other encodings."""
    for mark, name in MARKS.items():
        if raw.startswith(mark):
            raise FileError(f"{path}: written in {name}; save the file as UTF-8.")
    if (at := raw.find(b"\0")) >= 0:
        problem = "a NUL byte; expected text in UTF-8 (is it UTF-16, or no text at all?)."
    else:
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            at = error.start
            problem = f"byte 0x{raw[at]:02x} is not UTF-8 (Latin-1?); save the file as UTF-8."
    line = raw.count(b"\n", 0, at) + 1
    raise FileError(f"{path}:{line}: {problem}")


def _read(path: Path, rows: Any, layout: Layout, needed: Collection[str], others: bool, plain: bool) -> RawLog:
    names = _names(path, layout.names)
    columns = {at: array("d") for at, name in enumerate(names) if others or name in needed}
    notes = list(layout.notes)
    lines, numbered = array("q"), _number_rows(path, rows, layout, notes)
    while chunk := list(islice(numbered, min(CHUNK, CELLS // len(names)))):
        chunk_lines, chunk_rows = zip(*chunk, strict=True)
        cells = list(zip(*chunk_rows, strict=True))
        for at in list(columns):
            values = _parse(cells[at], plain)
            columns[at].extend(values)
            if (wrong := len(values)) == len(chunk):
                continue
            if names[at] in needed:
                cell = cells[at][wrong]
                where = f"{path}:{chunk_lines[wrong]} column {quote_name(names[at])}"
                raise FileError(f"{where}: {quote(cell)} is not a number{_hint(cell)}.")
            del columns[at]
        lines.extend(chunk_lines)
        require_size(path, 8 * len(lines) * (len(columns) + 1), " or more as numbers")
    require_rows(path, len(lines), "a header without rows")
    fields = {names[at]: np.frombuffer(values) for at, values in columns.items()}
    group = Group("", str(path), fields, lines=np.frombuffer(lines, np.int64))
    left = tuple(name for name in names if name not in fields)
    return RawLog(str(path), "csv", {"": group}, left, notes=tuple(notes))


def _names(path: Path, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() or f"column {at + 1}" for at, cell in enumerate(cells)]
    for at, name in enumerate(names):
        if (first := names.index(name)) < at:
            problem = f"{quote_name(name)} is column {first + 1} and column {at + 1}"
            raise FileError(f"{path}: {problem}; each name may stand there once.")
    return names


def _number_rows(path: Path, rows: Any, layout: Layout, notes: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield each row below the names with the line on which it ends; refuse rows of another length."""
    width, comments = len(layout.names), 0
    while rows.line_num < layout.skipped:
        next(rows)
    for row in rows:
        if not row or row[0].startswith("#"):
            comments += len(row) > 0
            continue
        if len(row) != width:
            cells = f"{len(row)} cell{'s' * (len(row) != 1)}"
            hint = " (decimal commas?)" if layout.separator == "," and width < len(row) <= 2 * width else ""
            raise FileError(f"{path}:{rows.line_num}: {cells}; expected {width}, as in the header{hint}.")
        yield rows.line_num, row
    if comments:
        notes.append(f"{comments} lines below the header begin with # and are skipped")


def _parse(cells: Sequence[str], plain: bool) -> list[float]:
    """Parse cells up to the first one that is no number; empty cells are NaN."""
    with suppress(ValueError):
        if plain:
            return list(map(float, cells))
    values = []
    for cell in cells:
        if cell.strip() and not NUMBER.fullmatch(cell):
            break
        values.append(float(cell) if cell.strip() else np.nan)
    return values


def _hint(cell: str) -> str:
    if COMMA.fullmatch(cell):
        return " (decimal comma?)"
    return " (a date or a time of day? Write seconds)" if DATE.search(cell) else ""
