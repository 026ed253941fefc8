"""Readers of tables: text of any layout (CSV), NPZ and Parquet.

Text is UTF-8, numbers have a decimal point, cells may be empty, and lines that begin with ``#`` are skipped. Lines are
counted from 1, as in editors. In NPZ, an array of two axes is several columns, ``q[0]``, ``q[1]``. Nothing is
unpickled, and files that declare more than ``raw.LARGEST`` bytes are refused.
"""

import csv
import io
import re
import zipfile
import zlib
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from uavlab.core.errors import FileError
from uavlab.core.extras import require
from uavlab.core.text import quote
from uavlab.telemetry.logs.columns import UNITS
from uavlab.telemetry.logs.raw import Group, RawLog, open_log, quote_name, require_size

MOST_COLUMNS = 2000
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", " ": "blanks"}
SAMPLE = 5000  # rows among which the names are looked for
CELLS = 2**18  # cells turned into columns at once
NUMBER = re.compile(r"\s*[-+]?((\d+\.?|\d*[.,]\d+)(e[-+]?\d+)?|nan|inf(inity)?)\s*", re.IGNORECASE | re.ASCII)
DATE = re.compile(r"[\d\s:.,/TZ+-]*(\d:\d|\d-\d+-\d)[\d\s:.,/TZ+-]*")
EXCEL = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # a first line by which a table tells Excel its separator
NO_NAMES = {"", "-", "deg", "rad", *(unit for units in UNITS.values() for unit in units)}
WIDEST = 64  # columns in one array of NPZ

Row = tuple[int, list[str]]
"""The line on which a row ends, and its cells."""


class Layout(NamedTuple):
    """How a table is written."""

    separator: str
    names: list[str]
    skipped: int  # lines above the first row
    notes: tuple[str, ...] = ()


def read_csv(path: Path, needed: Collection[str], others: bool = True) -> RawLog:
    """Read a table of text; its header is the first line with as many cells as the rows of numbers after it."""
    with open_log(path) as handle:
        raw = handle.read()
    layout = find_layout(path, raw, _first_line(path, raw))
    names = _unique(path, [cell.strip() or f"column {at + 1}" for at, cell in enumerate(layout.names)])
    rows, notes = _open_rows(raw, layout.separator, strict=True), list(layout.notes)
    columns = {at: array("d") for at, name in enumerate(names) if others or name in needed}
    lines, numbered = array("q"), _number_rows(path, rows, layout, notes)
    try:
        while chunk := list(islice(numbered, max(1, CELLS // len(names)))):
            chunk_lines, chunk_rows = zip(*chunk, strict=True)
            cells = list(zip(*chunk_rows, strict=True))
            for at in list(columns):
                values = _parse(cells[at])
                columns[at].extend(values)
                if (wrong := len(values)) == len(chunk):
                    continue
                if names[at] in needed:
                    where = f"{path}:{chunk_lines[wrong]} column {quote_name(names[at])}"
                    raise FileError(f"{where}: {quote(cells[at][wrong])} is not a number{_hint(cells[at][wrong])}.")
                del columns[at]
            lines.extend(chunk_lines)
            require_size(path, 8 * len(lines) * (len(columns) + 1), " or more as numbers")
    except csv.Error as error:
        raise FileError(f"{path}:{rows.line_num}: {error}; check the quotes there.") from error
    fields = {names[at]: np.frombuffer(values) for at, values in columns.items()}
    return _table(path, "csv", names, fields, len(lines), np.frombuffer(lines, np.int64), tuple(notes))


def _table(
    path: Path,
    kind: str,
    names: Sequence[str],
    fields: Mapping[str, Shaped[np.ndarray, " T"]],
    rows: int,
    lines: Int[np.ndarray, " T"] | None = None,
    notes: tuple[str, ...] = (),
) -> RawLog:
    """Return the columns of a table; refuse one of fewer than two rows by a FileError."""
    if rows < 2:
        raise FileError(f"{path}: {'1 row' if rows else 'no rows'}; at least 2 rows are needed.")
    left = tuple(name for name in names if name not in fields and f"{name}[0]" not in fields)
    return RawLog(str(path), kind, {"": Group("", str(path), fields, lines=lines)}, left, notes=notes)


def _require_columns(path: Path, count: int) -> None:
    if count > MOST_COLUMNS:
        raise FileError(f"{path}: {count:,} columns; at most {MOST_COLUMNS:,} are read.")


def _unique(path: Path, names: list[str]) -> list[str]:
    """Return the names of columns; refuse too many of them, and a name that is there twice."""
    _require_columns(path, len(names))
    for at, name in enumerate(names):
        if (first := names.index(name)) < at:
            problem = f"{quote_name(name)} is column {first + 1} and column {at + 1}"
            raise FileError(f"{path}: {problem}; each name may stand there once.")
    return names


def _first_line(path: Path, raw: bytes) -> str:
    """Return the first line with text; refuse other text than UTF-8, with or without a byte-order mark."""
    try:
        text, at = raw.decode("utf-8-sig"), raw.find(b"\0")
    except UnicodeDecodeError as error:
        at = error.start
    if at >= 0:
        line = raw.count(b"\n", 0, at) + 1
        problem = f"byte 0x{raw[at]:02x} is no text in UTF-8 (UTF-16 or Latin-1?)"
        raise FileError(f"{path}:{line}: {problem}; save the file as UTF-8.")
    if (top := re.search(r"\S[^\r\n]*", text)) is None:
        raise FileError(f"{path}: empty; expected a log of a flight.")
    _require_columns(path, max(map(top[0].count, SEPARATORS)) + 1)
    return top[0]


def _open_rows(raw: bytes, separator: str, strict: bool) -> Any:
    """Return a ``csv.reader`` of a table."""
    stream: Iterator[str] = io.TextIOWrapper(io.BytesIO(raw), "utf-8-sig", newline="")
    if separator == " ":
        stream = (" ".join(line.split()) + "\n" for line in stream)
    return csv.reader(stream, delimiter=separator, strict=strict)


def _number_rows(path: Path, rows: Any, layout: Layout, notes: list[str]) -> Iterator[Row]:
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
            raise FileError(f"{path}:{rows.line_num}: {cells}; expected {width}, as in the header.")
        yield rows.line_num, row
    if comments:
        notes.append(f"{comments} lines below the header begin with # and are skipped")


def _parse(cells: Sequence[str]) -> list[float]:
    """Parse cells up to the first one that is no number; empty cells are NaN."""
    text = "".join(cells)
    if text.isascii() and "_" not in text:  # then `float` accepts what `NUMBER` does, but decimal commas
        with suppress(ValueError):
            return list(map(float, cells))
    values = []
    for cell in cells:
        if cell.strip() and (not NUMBER.fullmatch(cell) or "," in cell):
            break
        values.append(float(cell) if cell.strip() else np.nan)
    return values


def _hint(cell: str) -> str:
    if NUMBER.fullmatch(cell):
        return " (decimal comma?)"
    return " (a date or a time of day? Write seconds)" if DATE.search(cell) else ""


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
    return Layout(separator, _uncommented(header[1]), header[0])


def _split(raw: bytes, separator: str) -> tuple[list[Row], Row | None]:
    """Return the rows of text at the beginning of a table, and the first row of numbers."""
    rows = _open_rows(raw, separator, strict=False)
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
        names, comment = _complete(_uncommented(cells), row[1], separator), cells[0].startswith("#")
        if len(names) == len(row[1]) and _may_name(names):
            candidates.append((line, names, comment))
        elif len(names) == len(row[1]) and not candidates and not comment:
            last = place  # a row of data, few of them numbers
        elif not comment:
            break
    candidates = [candidate for candidate in candidates if not candidate[2]] or candidates
    if not candidates:
        return None
    units = len(candidates) > 1 and {name.strip(" []()") for name in candidates[0][1]} <= NO_NAMES
    line, names, _ = candidates[units]
    count = sum(number < line for number, _ in above)
    notes = [f"header is line {line}, {count} line{'s' * (count != 1)} above it skipped"] if count else []
    notes += [f"line {candidates[0][0]} holds units, which are not read"] if units else []
    notes += ["cells are separated by blanks"] if separator == " " and len(names) > 1 else []
    return Layout(separator, names, above[last - 1][0], tuple(notes))


def _is_data(cells: list[str]) -> bool:
    """Return whether a row begins with a number or a date, or holds numbers for the most part."""
    numbers = [NUMBER.fullmatch(cell) is not None for cell in cells]
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


def read_npz(path: Path, needed: Collection[str], others: bool = True) -> RawLog:
    """Read the arrays of an NPZ file; those of another length than the columns in ``needed`` are left out."""
    fields: dict[str, Shaped[np.ndarray, " T"]] = {}
    with open_log(path) as handle:
        try:
            archive = zipfile.ZipFile(handle)
        except zipfile.BadZipFile as error:
            raise FileError(f"{path}: damaged, or no NPZ file: {error}; copy or save it again.") from error
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        names = _unique(path, [info.filename.removesuffix(".npy") for info in infos])
        require_size(path, sum(info.file_size for info in infos), " when unpacked")
        for name, info in zip(names, infos, strict=True):
            if others or name in needed or any(field.startswith(f"{name}[") for field in needed):
                array = _array(f"{path} array {quote_name(name)}", archive, info)
                columns = _columns(name, array)
                if not columns and name in needed:
                    problem = f"{array.dtype} of shape {array.shape}; expected numbers in one row for each time"
                    raise FileError(f"{path} column {quote_name(name)}: {problem}.")
                fields |= columns
    required = [name for name in fields if name in needed]
    ((rows, _),) = Counter(len(fields[name]) for name in required or fields).most_common(1) or [(0, 0)]
    for name in required:
        if len(fields[name]) != len(fields[required[0]]):
            problem = f"{len(fields[required[0]]):,} values in {quote_name(required[0])}"
            problem += f", {len(fields[name]):,} in {quote_name(name)}"
            raise FileError(f"{path}: {problem}; expected one for each time in both.")
    fields = {name: values for name, values in fields.items() if len(values) == rows}
    return _table(path, "npz", names, fields, rows)


def _array(where: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Shaped[np.ndarray, "..."]:
    try:
        with archive.open(info) as member:
            return np.lib.format.read_array(member, allow_pickle=False)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError, MemoryError) as error:
        # RuntimeError: encrypted, or an unknown compression; MemoryError: a header that claims terabytes
        reason = str(error).partition("\n")[0].rstrip(".")
        raise FileError(f"{where}: {reason}; save plain numbers (dtype float64), or copy the file again.") from error


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

    def is_number(kind: Any) -> bool:
        tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
        return any(test(kind) for test in tests)

    fields = {}
    with open_log(path) as handle:
        try:
            file = parquet.ParquetFile(handle, memory_map=False)
            names, rows = _unique(path, file.schema_arrow.names), file.metadata.num_rows
            numeric = {name: is_number(kind) for name, kind in zip(names, file.schema_arrow.types, strict=True)}
            chosen = [name for name in names if name in needed or (others and numeric[name])]
            require_size(path, 8 * rows * len(chosen), " when unpacked")
            for name in chosen:
                if not numeric[name]:
                    kind = file.schema_arrow.field(name).type
                    seconds = " (seconds)" if pa.types.is_temporal(kind) else ""
                    raise FileError(f"{path} column {quote_name(name)}: {kind}; expected numbers{seconds}.")
                column = file.read([name], use_threads=False).column(0)  # a whole table would be held twice
                fields[name] = column.cast(pa.float64(), safe=False).to_numpy()
                if len(column) != rows:
                    raise ValueError(f"{len(column):,} rows, and its own count is {rows:,}")
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            reason = str(error).partition("\n")[0][:200].rstrip(".")
            raise FileError(f"{path}: damaged, or no Parquet file: {reason}; copy or save it again.") from error
    return _table(path, "parquet", names, fields, rows)
