"""Notebooks for the book: figures stay interactive, by one plotly.js for all pages."""

import json
from typing import Any

import nbformat

from uavlab_lab.headless.strip_outputs import FIGURE, PICTURE, WIDGET


def read(text: str) -> Any:
    """Return a notebook whose plotly figures are HTML and whose attached pictures are in its text.

    Where no JavaScript runs, the picture beside a figure shows.
    """
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        for name, ((kind, picture),) in ((name, each.items()) for name, each in cell.get("attachments", {}).items()):
            cell.source = cell.source.replace(f"attachment:{name}", f"data:{kind};base64,{picture}")
    for data in (output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output):
        if len(data) > 1:
            data.pop(WIDGET, None)
        if FIGURE in data:
            data["text/html"] = html(data.pop(FIGURE), data.pop(PICTURE, ""))
    return notebook


def html(figure: Any, picture: str) -> str:
    """Return the HTML of a figure, which ``docs/_static/figures.js`` draws."""
    height = figure.get("layout", {}).get("height", 450)  # 450 px is plotly's own
    spec = json.dumps(figure, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    data = f'<script type="application/json">{spec}</script>'
    return f'<div class="figure" style="min-height:{height}px">{data}<noscript>{picture}</noscript></div>'
