"""Tables as text and as HTML, and cards at the end of a notebook's cell, without scripts, in the page's colours."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from uavlab.core.text import markup, one_line

WIDTH, HEIGHT, EDGE = 120, 12, 2  # of a bar, and beside it (px)
RULES = {
    "": "color: var(--jp-ui-font-color1, currentColor); line-height: 1.5; overflow-wrap: anywhere",
    " p": "margin: .3em 0",
    " .facts": "display: flex; flex-wrap: wrap; gap: 0 1.5em",
    " .name": "opacity: .75",
    " .scroll": "overflow-x: auto",
    " table": "color: inherit; border-collapse: collapse; margin: .5em 0; overflow-wrap: normal",
    " :is(th, td)": "text-align: left; vertical-align: top; padding: .2em .8em; max-width: 45em; "
    "border: none; border-bottom: 1px solid var(--jp-border-color2, #8888); font-variant-numeric: tabular-nums",
    " summary": "cursor: pointer",
}
STYLE = "\n".join(f"div.uavlab-card{part} {{ {rule} }}" for part, rule in RULES.items())


class Html(str):
    """HTML that this module wrote; any other text is escaped."""


def card(title: object, facts: Mapping[str, object], *parts: Html) -> Html:
    """Return a heading, a line of facts without those that are None or empty, and then the parts."""
    line = "".join(
        f"<span><span class='name'>{markup(name)}:</span> {_html(value)}</span>"
        for name, value in facts.items()
        if value is not None and value != ""
    )
    head = f"<p role='heading' aria-level='4'><b>{markup(title)}</b></p><div class='facts'>{line}</div>"
    return Html(f"<style>{STYLE}</style><div class='uavlab-card'>{head}{''.join(parts)}</div>")


def table(heads: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table, which scrolls sideways in a narrow page; without rows it is empty."""
    head = "".join(f"<th scope='col'>{_html(cell)}</th>" for cell in heads)
    body = "\n".join(f"<tr>{''.join(f'<td>{_html(cell)}</td>' for cell in row)}</tr>" for row in rows)
    whole = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
    return Html(f"<div class='scroll'>{whole}</div>" if body else "")


@dataclass(frozen=True)
class Table:
    """Cells in columns under heads, for a terminal and for a card."""

    heads: Sequence[object]
    rows: Sequence[Sequence[object]]

    def lines(self, form: str, with_heads: bool = True) -> list[str]:
        """Return each row as a line of the form, which may leave out the last columns."""
        rows = [self.heads, *self.rows] if with_heads and self.heads else self.rows
        return [form.format(*(one_line(str(cell)) for cell in row)).rstrip() for row in rows]

    def width(self, column: int, least: int = 0) -> int:
        """Return the number of characters of the longest cell in a column, at least so many."""
        return max([least, *(len(one_line(str(row[column]))) for row in (self.heads, *self.rows))])

    def html(self) -> Html:
        return table(self.heads, self.rows)


def notes(texts: Iterable[object]) -> Html:
    return Html("".join(f"<p>{_html(text)}</p>" for text in texts))


def folded(summary: object, *parts: Html) -> Html:
    """Return parts that show their summary alone until somebody unfolds them."""
    return Html(f"<details><summary>{markup(summary)}</summary>{''.join(parts)}</details>")


def strong(text: object) -> Html:
    return Html(f"<b>{markup(text)}</b>")


def interval_bar(low: float, mean: float, high: float) -> Html:
    """Return a drawing of an interval and its mean, on an axis from 0, for shares to 1; empty if one is not finite."""
    if not math.isfinite(abs(low) + abs(mean) + abs(high)):
        return Html("")
    first, last = min(low, 0.0), 1.0 if low >= 0 and high <= 1 else max(high, 0.0)
    left, middle, right = (EDGE + WIDTH * (x - first) / ((last - first) or 1.0) for x in (low, mean, high))
    shapes = (
        f"<rect x='{EDGE}' y='{HEIGHT / 2}' width='{WIDTH}' height='1' opacity='.4'/>"
        f"<rect x='{left:.1f}' y='{HEIGHT / 4}' width='{right - left:.1f}' height='{HEIGHT / 2}' opacity='.4'/>"
        f"<rect x='{middle - 1:.1f}' y='0' width='2' height='{HEIGHT}'/>"
    )
    size = f"width='{WIDTH + 2 * EDGE}' height='{HEIGHT}'"
    return Html(f"<svg {size} fill='currentColor' aria-hidden='true'>{shapes}</svg>")


def _html(value: object) -> str:
    return value if isinstance(value, Html) else markup(value)
