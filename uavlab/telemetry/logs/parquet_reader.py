"""Tables as Parquet files, by pyarrow; a cell without value is NaN."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from uavlab.core.errors import FileError
from uavlab.telemetry.logs.raw import Group, Recording, quoted
from uavlab.telemetry.logs.safe_open import opened, require_size

MOST_COLUMNS = 2000


def read(path: Path, needed: Collection[str], others: bool = True) -> Recording:
    """Read a Parquet file.

    Args:
        path: The file.
        needed: Columns that must hold numbers, if they are there at all.
        others: Read other columns too; those that hold no numbers are named.

    Raises:
        FileError: It is damaged or too large, names a column twice, or a needed column holds no numbers.
    """
    import pyarrow as pa
    from pyarrow import parquet

    with opened(path) as handle:
        try:
            file = parquet.ParquetFile(handle)
            names, rows = file.schema_arrow.names, file.metadata.num_rows
            kinds = dict(zip(names, file.schema_arrow.types, strict=True))
            _require_shape(path, names, rows)
            kept = [name for name in names if name in needed or (others and _numeric(kinds[name]))]
            for name in kept:
                if not _numeric(kinds[name]):
                    expected = f"expected numbers{' (seconds)' if pa.types.is_temporal(kinds[name]) else ''}"
                    raise FileError(f"{path} column {quoted(name)}: {kinds[name]}; {expected}.")
            require_size(path, rows * 8 * len(kept), " when unpacked")
            table = file.read(columns=kept, use_threads=False)
            fields = {name: _floats(table.column(name)) for name in kept}
            if table.num_rows != rows:
                raise ValueError(f"{table.num_rows:,} rows, and its own count is {rows:,}")
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            told = str(error).partition("\n")[0][:200].rstrip(".")
            raise FileError(f"{path}: damaged, or no Parquet file: {told}; copy or save it again.") from error
    unfit = tuple(name for name in names if name not in fields)
    return Recording(str(path), "parquet", {"": Group("", str(path), fields)}, unfit)


def _require_shape(path: Path, names: list[str], rows: int) -> None:
    if len(names) > MOST_COLUMNS:
        raise FileError(f"{path}: {len(names):,} columns; at most {MOST_COLUMNS:,} are read.")
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise FileError(f"{path}: two columns {quoted(twice[0])}; each name may stand there once.")
    if rows < 2:
        raise FileError(f"{path}: {rows} row{'' if rows else 's'}; at least 2 rows are needed.")


def _numeric(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def _floats(column: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return column.cast(pa.float64(), safe=False).to_numpy()
