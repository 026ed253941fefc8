"""Tables as text: CSV, or with semicolons or tabs between cells, in UTF-8, with a line of names on top.

Numbers are written with a decimal point; a cell may be empty. Lines are counted from 1, as editors do.
"""

import csv
import io
import re
from array import array
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from uavlab.core.errors import FileError
from uavlab.core.text import quote
from uavlab.telemetry.logs.raw import Group, Recording, quoted
from uavlab.telemetry.logs.safe_open import opened

SEPARATORS = ",;\t"
MOST_COLUMNS = 2000
CHUNK = 4096  # rows turned into columns at once
NUMBER = re.compile(r"\s*[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|inf(inity)?)\s*", re.IGNORECASE | re.ASCII)
COMMA = re.compile(r"\s*[-+]?\d*,\d+\s*", re.ASCII)
MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def read(path: Path, needed: Collection[str], others: bool = True) -> Recording:
    """Read a table.

    Args:
        path: The file.
        needed: Columns that must hold numbers, if they are there at all.
        others: Read other columns too; those that hold no numbers are named.

    Raises:
        FileError: It is not UTF-8, has no names, names twice, rows of another length, or text in a needed column.
    """
    with opened(path) as handle:
        text = decoded(path, handle.read())
    top = re.search(r"\S[^\r\n]*", text)
    if top is None:
        raise FileError(f"{path}: empty; expected a log of a flight.")
    separator = max(SEPARATORS, key=top.group().count)
    if (count := top.group().count(separator) + 1) > MOST_COLUMNS:
        raise FileError(f"{path}: {count:,} columns; at most {MOST_COLUMNS:,} are read.")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    plain = text.isascii() and text.find("_", top.end()) < 0  # then Python takes nothing else for a number
    try:
        return _read(path, rows, needed, others, plain)
    except csv.Error as error:
        raise FileError(f"{path}:{rows.line_num}: {error}; check the quotes there.") from error


def decoded(path: Path, raw: bytes) -> str:
    """Give the text of a file in UTF-8, with or without a mark.

    Raises:
        FileError: It is in another encoding.
    """
    for mark, name in MARKS.items():
        if raw.startswith(mark):
            raise FileError(f"{path}: written in {name}; save the file as UTF-8.")
    if (at := raw.find(b"\0")) >= 0:
        told = "a NUL byte; expected text in UTF-8 (is it UTF-16, or no text at all?)"
        raise FileError(f"{path}:{_line(raw, at)}: {told}.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        told = f"byte 0x{raw[error.start]:02x} is not UTF-8 (Latin-1?); save the file as UTF-8"
        raise FileError(f"{path}:{_line(raw, error.start)}: {told}.") from error


def _line(raw: bytes, at: int) -> int:
    return raw.count(b"\n", 0, at) + 1


def _read(path: Path, rows: Iterator[list[str]], needed: Collection[str], others: bool, plain: bool) -> Recording:
    names = _header(path, rows)
    kept = {at: array("d") for at, name in enumerate(names) if others or name in needed}
    left = [name for at, name in enumerate(names) if at not in kept]
    lines = array("q")
    for chunk, at_lines in _chunks(path, rows, len(names)):
        columns = list(zip(*chunk, strict=True))
        for at, cells in ((at, columns[at]) for at in list(kept)):
            try:
                if not plain:
                    raise ValueError  # `1_000` or Arabic digits may be in it
                kept[at].extend(list(map(float, cells)))
            except ValueError:
                values, wrong = _numbers(cells)
                if wrong is None:
                    kept[at].extend(values)
                elif names[at] in needed:
                    told = f"{path}:{at_lines[wrong]} column {quoted(names[at])}: {quote(cells[wrong])}"
                    raise FileError(f"{told} is not a number{_hint(cells[wrong])}.") from None
                else:
                    del kept[at]
                    left.append(names[at])
        lines.extend(at_lines)
    if len(lines) < 2:
        got = "a header without rows" if not lines else "1 row"
        raise FileError(f"{path}: {got}; at least 2 rows are needed.")
    fields = {names[at]: np.array(values, dtype=np.float64) for at, values in kept.items()}
    group = Group("", str(path), fields, lines=np.array(lines, dtype=np.int64))
    return Recording(str(path), "csv", {"": group}, tuple(left))


def _header(path: Path, rows: Iterator[list[str]]) -> list[str]:
    found = next(row for row in rows if any(cell.strip() for cell in row))
    if all(NUMBER.fullmatch(cell) for cell in found):
        raise FileError(f"{path}: numbers in the first line; expected the names of the columns there.")
    found[0] = found[0].removeprefix("#")  # as numpy writes it
    names = [cell.strip() or f"column {at + 1}" for at, cell in enumerate(found)]
    first: dict[str, int] = {}
    for at, name in enumerate(names):
        if name in first:
            told = f"{quoted(name)} is column {first[name] + 1} and column {at + 1}"
            raise FileError(f"{path}: {told}; each name may stand there once.")
        first[name] = at
    return names


def _chunks(path: Path, rows: Iterator[list[str]], width: int) -> Iterator[tuple[list[list[str]], list[int]]]:
    """Give rows of the right length, and the line on which each ends, some thousands at once."""
    chunk: list[list[str]] = []
    lines: list[int] = []
    for row in rows:
        if not row:
            continue
        line = getattr(rows, "line_num", 0)
        if len(row) != width:
            hint = " (decimal commas?)" if len(row) > width else ""
            raise FileError(
                f"{path}:{line}: {len(row)} cell{'s' * (len(row) != 1)}; expected {width}, as in the header{hint}."
            )
        chunk.append(row)
        lines.append(line)
        if len(chunk) == CHUNK:
            yield chunk, lines
            chunk, lines = [], []
    if chunk:
        yield chunk, lines


def _numbers(cells: Collection[str]) -> tuple[list[float], int | None]:
    """Read cells one by one, empty ones as NaN; the second is the number of the first that is no number."""
    values = []
    for at, cell in enumerate(cells):
        if not cell.strip():
            values.append(np.nan)
        elif NUMBER.fullmatch(cell):
            values.append(float(cell))
        else:
            return values, at
    return values, None


def _hint(cell: str) -> str:
    if COMMA.fullmatch(cell):
        return " (decimal comma?)"
    if re.search(r"\d:\d|\d-\d+-\d", cell):
        return " (a date or a time of day? Write seconds)"
    return ""
