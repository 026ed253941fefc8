"""Strings that try to run, to become markup or to command a terminal, and what a page would show of them."""

import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from typing import Any

import plotly.graph_objects as go
from torch import Tensor

import uavlab as ul
from tests.support.registries import outside

Drift, State = outside.Drift, outside.State
RUN = "window.intruder=1"
HOSTILE = (
    f"<script>{RUN}</script>",
    f'"><script>{RUN}</script>',
    f"</script><script>{RUN}</script>",
    f"</title></style></textarea><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"' onmouseover='{RUN}' autofocus onfocus='{RUN}' x='",
    f'" onclick="{RUN}" style="position:fixed;inset:0" x="',
    f"<svg onload={RUN}>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"javascript:{RUN}",
    f'<a href="javascript:{RUN}">link</a>',
    f'[link](javascript:{RUN}) ![x](x" onerror="{RUN})',
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"{{{{constructor.constructor('{RUN}')()}}}} {{% {RUN} %}}",
    f"${{{RUN}}} `${{alert(1)}}`",
    f"$\\href{{javascript:{RUN}}}{{x}}$",
    "%{customdata} %s %n {0.__class__} <extra>x</extra>",
    "\x1b[2J\x1b]0;title\x07\x9b31m",
    "name\u202egnp.exe\u2066\u200f",
    f"--><!--<script>{RUN}</script>-->]]>",
    f"&lt;script&gt;{RUN}&lt;/script&gt;&#60;img src=x onerror={RUN}&#62;",
    f"<math><mtext><style><img src=x onerror={RUN}></style></mtext></math>",
    "line\r\nnext\u2028<b>bold</b>\t<br>",
)
HARMLESS = tuple(f"text {number}" for number in range(len(HOSTILE)))
"""As many other strings: both make equal pages, apart from their text."""

TAG = re.compile(r"<(?!br>)[^>]*>")  # a title of several lines has breaks


class Skeleton(HTMLParser):
    """The elements of a page with their attributes' names, without text; scripts alone keep their number of lines."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, *(name for name, _ in attrs)))
        self.addresses += [value for _, value in attrs if value and re.match(r"\s*\w+script:", value, re.I)]

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment",))


def skeleton(page: str) -> list[tuple[str, ...]]:
    """Return the elements of a page; none of them may run anything of its own."""
    parser = Skeleton()
    parser.feed(page)
    assert [each for each in parser.elements if any(name.startswith("on") for name in each[1:])] == []
    assert parser.addresses == []
    return parser.elements


def texts(value: Any) -> Iterator[str]:
    """Yield every string of a figure."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts(each)


def figure_markup(figure: go.Figure) -> list[str]:
    """Return what plotly would take for markup, a formula or the place of a value in a figure, and odd characters."""
    strings = list(texts(figure.to_plotly_json()))
    marks = [mark for text in strings for mark in (*TAG.findall(text), *re.findall(r"\$[^$]*\$|%\{[^}]*\}", text))]
    return sorted(marks) + [character for text in strings for character in text if not character.isprintable()]


def printable(text: str) -> bool:
    """Return whether a terminal takes no part of a text for a command."""
    return all(line.isprintable() for line in text.split("\n"))


def environment(words: Sequence[str]) -> type[Drift]:
    """Return an environment whose name, metrics, units and settings are these words; not registered."""
    metrics = tuple(ul.Metric(word, "mean", word) for word in words)

    def measure(env: Drift, state: State, action: Tensor, after: State) -> dict[str, Tensor]:
        return dict.fromkeys(words, after.pos.abs().mean(-1))

    about = f"Drift.\n\nAttributes:\n    word: {' '.join(words[0].split())}\n"
    body = {"__doc__": about, "__module__": __name__, "__annotations__": {"word": str}, "word": words[-2]}
    scores = dict.fromkeys(words[:4], 1.0)
    return type(words[0], (Drift,), {**body, "metrics": metrics, "score": scores, "measure": measure})
