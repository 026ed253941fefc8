"""Tables of measured rows, which a page shows as HTML and a terminal as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from uavlab.core.text import markup, one_line
from uavlab_lab.labels import is_raw, label_of

Row = Mapping[str, Any]


class Table:
    """A table that a page shows as HTML, whose text can be selected and copied, and a terminal as text."""

    def __init__(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Hold the texts of the head and of each row."""
        self.heads, self.rows = list(heads), [list(row) for row in rows]

    def _repr_html_(self) -> str:
        left = "style='text-align: left; white-space: pre-wrap'"
        head, *body = (
            "".join(f"<{tag} {left}>{markup(text)}</{tag}>" for text in texts)
            for tag, texts in [("th", self.heads), *(("td", row) for row in self.rows)]
        )
        lines = "\n".join(f"<tr>{row}</tr>" for row in body)
        return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{lines}</tbody></table>"

    def __repr__(self) -> str:
        return "\n".join(" | ".join(map(one_line, row)) for row in [self.heads, *self.rows])


def table(rows: Sequence[Row], columns: Mapping[str, str | tuple[str, str]]) -> Table:
    """Format rows as a table.

    ``columns`` maps a key to a header, or to a header and a format: ``{"ms": ("time (ms)", ".2f")}``. None becomes a
    dash, and the raw name of a metric, setting or column its label.
    """
    heads = {key: (head, "") if isinstance(head, str) else head for key, head in columns.items()}
    cells = [[_cell(row.get(key), shape) for key, (_, shape) in heads.items()] for row in rows]
    return Table([head for head, _ in heads.values()], cells)


def _cell(value: Any, shape: str) -> str:
    if isinstance(value, str) and is_raw(value):
        return label_of(value)
    return "-" if value is None else f"{value:{shape}}"
