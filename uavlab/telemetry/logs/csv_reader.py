"""Reader of text tables in UTF-8, whose layout is found from its lines.

Numbers have a decimal point; cells may be empty; lines that begin with ``#`` are skipped. Lines are counted from 1, as
in editors.
"""

import csv
import io
import re
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from uavlab.core.errors import FileError
from uavlab.core.text import quote
from uavlab.telemetry.logs.columns import UNITS
from uavlab.telemetry.logs.raw import Group, RawLog, open_log, quote_name, require_columns, require_rows, require_size

# The names of columns are the first line with as many cells as the rows of numbers after it.
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", " ": "blanks"}
SAMPLE = 5000  # rows among which the names are looked for
NUMBER = re.compile(r"\s*[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|inf(inity)?)\s*", re.IGNORECASE | re.ASCII)
COMMA = re.compile(r"\s*[-+]?\d*,\d+\s*", re.ASCII)
DATE = re.compile(r"[\d\s:.,/TZ+-]*(\d:\d|\d-\d+-\d)[\d\s:.,/TZ+-]*")
EXCEL = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # a first line by which a table tells Excel its separator
NO_NAMES = {"", "-", "deg", "rad", *(unit for units in UNITS.values() for unit in units)}

Row = tuple[int, list[str]]
"""The line on which a row ends, and its cells."""


class Layout(NamedTuple):
    """How a table is written."""

    separator: str
    names: list[str]
    skipped: int  # lines above the first row
    notes: tuple[str, ...]


def open_rows(raw: bytes, separator: str, strict: bool = True) -> Any:
    """Return a ``csv.reader`` of a table."""
    stream: Iterator[str] = io.TextIOWrapper(io.BytesIO(raw), "utf-8-sig", newline="")
    if separator == " ":
        stream = (" ".join(line.split()) + "\n" for line in stream)
    return csv.reader(stream, delimiter=separator, strict=strict)


def find_layout(path: Path, raw: bytes, first: str) -> Layout:
    """Find the separator and the names; ``first`` is the first line with text."""
    excel = EXCEL.fullmatch(first.strip())
    separators = [excel[1]] if excel else list(SEPARATORS)
    layouts = [layout for separator in separators if (layout := _match(raw, separator)) is not None]
    if layouts:  # blanks may be part of cells that something else separates
        return max(layouts, key=lambda layout: (len(layout.names) > 1, layout.separator != " ", len(layout.names)))
    separator = max(separators, key=first.count)
    above, row = _split(raw, separator)
    texts = [(line, cells) for line, cells in above if not cells[0].startswith("#") and _may_name(cells)]
    if row and not texts:
        problem = f"numbers in {f'line {row[0]}' if above else 'the first line'}"
        raise FileError(f"{path}: {problem}; expected the names of the columns {'above' if above else 'there'}.")
    header = texts[-1 if row else bool(excel) and len(texts) > 1] if texts else above[0]
    return Layout(separator, _uncommented(header[1]), header[0], ())


def _split(raw: bytes, separator: str) -> tuple[list[Row], Row | None]:
    """Return the rows of text at the beginning of a table, and the first row of numbers."""
    rows = open_rows(raw, separator, strict=False)
    above: list[Row] = []
    with suppress(csv.Error):  # the reader of the table names its place
        for cells in islice(filter(None, rows), SAMPLE):
            if _is_data(cells):
                return above, (rows.line_num, cells)
            above.append((rows.line_num, cells))
    return above, None


def _match(raw: bytes, separator: str) -> Layout | None:
    """Return the layout with this separator, if a line has as many names as the first row of numbers has cells."""
    above, row = _split(raw, separator)
    if row is None or (len(row[1]) == 1 and any(mark in row[1][0].strip() for mark in SEPARATORS)):
        return None
    candidates, last = [], len(above)
    for place, (line, cells) in reversed([*enumerate(above)]):
        names = _complete(_uncommented(cells), row[1], separator)
        if len(names) == len(row[1]) and _may_name(names):
            candidates.append((line, names, cells[0].startswith("#")))
        elif len(names) == len(row[1]) and not candidates and not cells[0].startswith("#"):
            last = place  # a row of data, few of them numbers
        elif not cells[0].startswith("#"):
            break
    candidates = [candidate for candidate in candidates if not candidate[2]] or candidates
    if not candidates:
        return None
    units = [
        line
        for line, names, _ in candidates[:1]
        if len(candidates) > 1 and {name.strip(" []()") for name in names} <= NO_NAMES
    ]
    line, names, _ = candidates[len(units)]
    count = sum(number < line for number, _ in above)
    notes = [f"header is line {line}, {count} line{'s' * (count != 1)} above it skipped"] if count else []
    notes += [f"line {number} holds units, which are not read" for number in units]
    notes += ["cells are separated by blanks"] if separator == " " and len(names) > 1 else []
    return Layout(separator, names, above[last - 1][0], tuple(notes))


def _is_data(cells: list[str]) -> bool:
    """Return whether a row begins with a number or a date, or holds numbers for the most part."""
    numbers = [bool(NUMBER.fullmatch(cell) or COMMA.fullmatch(cell)) for cell in cells]
    dated = len(cells) > 1 and DATE.fullmatch(cells[0]) is not None
    return numbers[0] or dated or sum(numbers) > len(cells) / 2


def _may_name(cells: list[str]) -> bool:
    """Return whether a row may hold names: it has some text, and no number."""
    return any(map(str.strip, cells)) and not any(map(NUMBER.fullmatch, cells))


def _uncommented(cells: list[str]) -> list[str]:
    """Return the cells of a line that may begin with ``#``, as numpy writes names."""
    if not cells[0].startswith("#"):
        return cells
    first = cells[0].lstrip("#").strip()
    return [first, *cells[1:]] if first else cells[1:]


def _complete(names: list[str], row: list[str], separator: str) -> list[str]:
    """Add an empty name where a row ends in a separator, or begins with an index without a name, as R writes it."""
    if len(row) != len(names) + 1:
        return names
    if not row[-1].strip():
        return [*names, ""]
    return ["", *names] if separator != "," and row[0] in ("0", "1") else names


CHUNK, CELLS = 4096, 2**18  # rows turned into columns at once, and cells
MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def read(path: Path, needed: Collection[str], others: bool = True) -> RawLog:
    """Read a table."""
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
