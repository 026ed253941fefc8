"""Common parts of the readers of all formats: opening a log, limits, and the fields that they return.

Readers take a path, the fields that must be numeric if the file has them, and whether to read other fields; other
fields that are not numeric are listed in ``RawLog.others``. They raise a FileError for files that cannot be read.
"""

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int, Shaped

from uavlab.core.errors import FileError
from uavlab.core.installation import program
from uavlab.core.text import one_line
from uavlab.storage.files import open_regular

LARGEST = 2**30  # bytes of a log, compressed or not
LISTED = 20  # names in one message


@dataclass(frozen=True)
class Group:
    """Fields with common rows: a table, or one instance of a ULog topic."""

    name: str  # of the topic, ``actuator_outputs`` or ``actuator_outputs#1``; empty for a table
    where: str  # name of the group in messages
    fields: Mapping[str, Shaped[np.ndarray, " T"]]  # numbers by name, as in the file
    time: Float64[np.ndarray, " T"] | None = None  # seconds of each row, if the format itself has a time
    lines: Int[np.ndarray, " T"] | None = None  # line of each row of a text file, from 1
    order: Int[np.ndarray, " T"] | None = None  # row in the file of each row, if they were sorted

    def locate(self, row: int) -> str:
        """Return the place of a row for messages: its line in a text file, else its index from 0."""
        row = row if self.order is None else int(self.order[row])
        return f"{self.where} row {row}" if self.lines is None else f"{self.where}:{self.lines[row]}"

    def label(self, key: str, row: int | None = None) -> str:
        """Return the name of a field for messages, with its row if given."""
        return f"{self.where if row is None else self.locate(row)} column {quote_name(key)}"

    def full_name(self, name: str) -> str:
        """Return the name by which a column map refers to a field."""
        return f"{self.name}.{name}" if self.name else name


@dataclass(frozen=True)
class RawLog:
    """Contents of a file."""

    source: str
    format: str  # ``csv``, ``npz``, ``parquet`` or ``ulog``
    groups: Mapping[str, Group]  # by name; a table is one group without a name
    others: tuple[str, ...] = ()  # fields that are not numeric or were not read
    facts: Mapping[str, Any] = field(default_factory=dict)  # other records of the format: versions, dropouts
    notes: tuple[str, ...] = ()  # remarks for the user, in sentences
    parameters: Mapping[str, float] = field(default_factory=dict)  # of a ULog's vehicle

    def find(self, name: str) -> tuple[Group, str] | None:
        """Find a field by its full name; a topic without a number is its instance 0."""
        group, key = self.groups.get(""), name
        if group is None:
            topic, _, key = name.partition(".")
            group = self.groups.get(topic.removesuffix("#0"))
        return (group, key) if group is not None and key in group.fields else None

    def names(self) -> list[str]:
        """List all fields by their full names."""
        return [group.full_name(name) for group in self.groups.values() for name in group.fields]


@contextmanager
def open_log(path: Path) -> Iterator[BufferedReader]:
    try:
        with open_regular(path) as handle:
            size = os.fstat(handle.fileno()).st_size
            if size == 0:
                raise FileError(f"{path}: empty; expected a log of a flight.")
            require_size(path, size)
            yield handle
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise FileError(f"{path}: not readable: {getattr(error, 'strerror', None) or error}.") from error


def require_size(path: Path | str, size: int, what: str = "") -> None:
    """Refuse a log of more than ``LARGEST`` bytes by a FileError; ``what`` describes these bytes."""
    if size > LARGEST:
        raise FileError(f"{path}: {size:,} bytes{what}; at most {LARGEST:,} are read. Cut the log into parts.")


def draft_command(source: str) -> str:
    """Return the command that drafts a mapping for a log, in a file with the name of the log."""
    return f"{program()} {shlex.join(['flights', 'describe', source, '--write-mapping', f'{Path(source).stem}.yaml'])}"


def quote_name(name: str) -> str:
    """Quote a name from a file for a message."""
    return repr(name[:80])


def list_names(names: list[str]) -> str:
    """List the first names from a file for a message."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return (", ".join(one_line(name)[:60] for name in names[:LISTED]) or "none") + more
