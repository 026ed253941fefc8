"""Reader of Parquet files, by pyarrow; a cell without value is NaN."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from uavlab.core.errors import FileError
from uavlab.telemetry.logs.raw import Group, RawLog, open_log, quote_name, require_columns, require_rows, require_size


def read(path: Path, needed: Collection[str], others: bool = True) -> RawLog:
    """Read a Parquet file.

    Raises:
        FileError: It is damaged or too large, names a column twice, or a needed column holds no numbers.
    """
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
            require_size(path, rows * 8 * len(selection), " when unpacked")
            table = file.read(columns=selection, use_threads=False)
            fields = {name: table.column(name).cast(pa.float64(), safe=False).to_numpy() for name in selection}
            if table.num_rows != rows:
                raise ValueError(f"{table.num_rows:,} rows, and its own count is {rows:,}")
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            reason = str(error).partition("\n")[0][:200].rstrip(".")
            raise FileError(f"{path}: damaged, or no Parquet file: {reason}; copy or save it again.") from error
    left = tuple(name for name in names if name not in fields)
    return RawLog(str(path), "parquet", {"": Group("", str(path), fields)}, left)


def _numeric(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))
