"""Layout of a text table: its separator, and the line that holds the names of its columns.

The names are the first line with as many cells as the rows of numbers after it; all lines above it are skipped.
"""

import csv
import io
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from uavlab.core.errors import FileError
from uavlab.telemetry.logs.columns import UNITS

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
    """Find the separator and the names; ``first`` is the first line with text.

    Raises:
        FileError: The table begins with numbers.
    """
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
