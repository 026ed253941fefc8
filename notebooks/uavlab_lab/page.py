"""Pages that need no network: text, tables and plotly figures in one HTML file, on light, on dark and on paper.

A policy in the head of a page names the digests of its own two scripts. A browser runs nothing else and loads nothing.
"""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from uavlab.core.errors import ResourceError
from uavlab.core.text import markup
from uavlab.storage.files import write_text

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --page: #fff; --line: #80808059; --soft: #8080801a }
@media (prefers-color-scheme: dark) { :root { --ink: #d5dae1; --page: #111418 } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 1000px; margin: auto; padding: 0 1em 3em }
h1, h2, h3 { line-height: 1.25; overflow-wrap: anywhere }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: 14px; margin: .5em 0 1em }
th, td { padding: .25em .7em; border-bottom: 1px solid var(--line); vertical-align: top }
th { background: var(--soft) }
code, pre { font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere }
pre { background: var(--soft); padding: .6em .8em }
.note { border-left: 4px solid #ad8200; padding: .2em .8em }
summary { cursor: pointer }
@media print {
  :root { color-scheme: light; --ink: #000; --page: #fff }
  body { max-width: none; font-size: 11pt }
  .figure, tr { break-inside: avoid }
  h1, h2, h3 { break-after: avoid }
  details::details-content { content-visibility: visible; block-size: auto }
}
"""
DRAW = """
const figures = {};
for (const [id, figure] of Object.entries(figures)) Plotly.newPlot(id, {...figure, config: {responsive: true}});
const fit = width => Object.keys(figures).forEach(id => Plotly.relayout(id, {width}));
addEventListener("beforeprint", () => fit(680));
addEventListener("afterprint", () => fit(null));
"""


class Page:
    """The parts of a page in their order; all text that they are given is shown as it is.

    Attributes:
        parts: HTML so far.
        figures: JSON of each figure by the id of its place.
    """

    def __init__(self, title: str) -> None:
        """Start an empty page."""
        self.title = title
        self.parts: list[str] = []
        self.figures: dict[str, str] = {}

    def add(self, tag: str, text: object, kind: str = "") -> None:
        """Add one element with text: ``h2``, ``p`` or ``pre``; ``kind`` is a class of the style."""
        self.parts.append(f"<{tag}{f' class={kind!r}' if kind else ''}>{markup(text)}</{tag}>")

    def add_table(self, table: object, summary: str = "") -> None:
        """Add a table (``charts.Table``); with a ``summary`` it is folded, and unfolds on paper."""
        body = f"<div class='scroll'>{table._repr_html_()}</div>"  # type: ignore[attr-defined]
        folded = f"<details><summary>{markup(summary)}</summary>{body}</details>"
        self.parts.append(folded if summary else body)

    def add_figure(self, figure: go.Figure) -> None:
        """Add a plotly figure with its frames and buttons."""
        name = f"figure-{len(self.figures)}"
        self.figures[name] = str(figure.to_json()).replace("<", "\\u003c")
        self.parts.append(f"<div class='figure' id='{name}'></div>")

    def html(self) -> str:
        """Return the whole page."""
        data = ", ".join(f'"{name}": {figure}' for name, figure in self.figures.items())
        scripts = [get_plotlyjs(), DRAW.replace("{}", f"{{{data}}}", 1)] if self.figures else []
        policy = "; ".join(
            (
                "default-src 'none'",
                "style-src 'unsafe-inline'",
                "img-src data: blob:",
                f"script-src {_digests(scripts)}",
            )
        )
        head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
        head += f"<title>{markup(self.title)}</title><style>{STYLE}</style>"
        body = "\n".join([*self.parts, *(f"<script>{script}</script>" for script in scripts)])
        return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'

    def write(self, path: Path) -> None:
        """Write the page, over an older one; folders are created."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(f"{path}: cannot be written ({error.strerror}); choose another page.") from error
        write_text(path, self.html())


def _digests(scripts: Sequence[str]) -> str:
    """Return the sources of a policy that allows these scripts alone."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
