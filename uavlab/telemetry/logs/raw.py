"""What readers return, whatever the format: fields of numbers, in groups that were recorded together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64, Int, Shaped

from uavlab.core.text import one_line

TOLD = 20  # names listed in one message


@dataclass(frozen=True)
class Group:
    """Fields with common rows: a table, or one instance of a ULog topic.

    Attributes:
        name: Of the topic, ``actuator_outputs`` or ``actuator_outputs#1``; empty for a table.
        where: How messages call it.
        fields: Numbers by name, as they stand in the file.
        time: Seconds of each row as the format itself tells them; None where a field does.
        lines: Line of each row of a text file, counted from 1; None elsewhere.
    """

    name: str
    where: str
    fields: Mapping[str, Shaped[np.ndarray, " T"]]
    time: Float64[np.ndarray, " T"] | None = None
    lines: Int[np.ndarray, " T"] | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.fields.values()), ()))

    def place(self, row: int) -> str:
        """Say where a row is: by its line in a text, elsewhere by its number, counted from 0."""
        return f"{self.where} row {row}" if self.lines is None else f"{self.where}:{self.lines[row]}"

    def full(self, name: str) -> str:
        """Give the name by which a mapping asks for a field."""
        return f"{self.name}.{name}" if self.name else name


@dataclass(frozen=True)
class Recording:
    """Everything that was read from a file.

    Attributes:
        source: The file.
        format: ``csv``, ``npz``, ``parquet`` or ``ulog``.
        groups: By name; a table is one group without a name.
        others: Fields that hold no numbers, or that nobody asked for.
        facts: What the format tells besides: versions, dropouts.
        notes: What a reader should know, in sentences.
    """

    source: str
    format: str
    groups: Mapping[str, Group]
    others: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def find(self, name: str) -> tuple[Group, str] | None:
        """Find a field by its full name; instance 0 of a topic is meant where none is named."""
        group, key = self.groups.get(""), name
        if group is None:
            topic, _, key = name.partition(".")
            group = self.groups.get(topic.removesuffix("#0"))
        return (group, key) if group is not None and key in group.fields else None

    def names(self) -> list[str]:
        """List every field that was read by its full name."""
        return [group.full(name) for group in self.groups.values() for name in group.fields]


def quoted(name: str) -> str:
    """Quote a name in a message, whatever a file held."""
    return repr(name[:80])


def listed(names: list[str]) -> str:
    """List names in a message, not too many of them."""
    more = f" and {len(names) - TOLD} more" if len(names) > TOLD else ""
    return (", ".join(one_line(name)[:60] for name in names[:TOLD]) or "none") + more
