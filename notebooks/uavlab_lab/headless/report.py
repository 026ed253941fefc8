"""Write an executed notebook as one HTML file that needs no network; plotly figures stay interactive.

python -m uavlab_lab.headless.report out/tour.ipynb out/tour.html
"""

import html
import re
import sys
from pathlib import Path
from typing import Any

import plotly.io
from jinja2 import pass_context
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from plotly.offline import get_plotlyjs

from uavlab.storage.files import write_text
from uavlab_lab.headless.strip_outputs import EXECUTED, FIGURE, PICTURE, WIDGET, read_notebook

SCREEN = {"responsive": True, "displaylogo": False}  # figures follow the width of the page
FRAGMENT = {"full_html": False, "include_plotlyjs": False, "auto_play": False, "validate": False, "config": SCREEN}
FIGURES = ".plotly-graph-div, div:has(> .plotly-graph-div)"
TALL = f"<style>{FIGURES} {{ height: auto !important }}</style>"  # a view may be taller than the first one
CODE_OR_FORMULA = re.compile(r"(<(code|pre)\b.*?</\2>)|\$\$([^<]+?)\$\$|\$(?!\s)([^$<]+?)(?<!\s)\$", re.DOTALL)
NO_DOWNLOADS = dict.fromkeys(("mathjax_url", "require_js_url", "jquery_url", "mermaid_js_url"), "")


class Exporter(HTMLExporter):
    """Exports formulas as MathML, which browsers draw without a network."""

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Return a cell of text as HTML."""
        return draw_formulas(super().markdown2html(context, source))


def draw_formulas(page: str) -> str:
    """Replace formulas outside code, ``$...$`` and ``$$...$$``, by MathML; one that holds a link stays as it is."""

    def draw(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        text = html.unescape(match[3] or match[4]).replace("<", r"\lt ").replace(">", r"\gt ")  # never a tag
        try:
            formula = str(convert(text, display="block" if match[3] else "inline"))
        except Exception:  # of many types: it is no formula
            return match[0]
        return match[0] if "href=" in formula else formula

    return CODE_OR_FORMULA.sub(draw, page)


def report(source: Path, target: Path, code: bool = False) -> None:
    """Write an executed notebook as an HTML file, with ``code`` its code cells too; plotly.js, 5 MB, is in it once."""
    exporter = Exporter(
        template_name="lab",
        exclude_input=not code,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        embed_images=True,
        **NO_DOWNLOADS,
    )
    nb = read_notebook(source, EXECUTED)
    _convert_figures(nb)
    body, _ = exporter.from_notebook_node(nb)
    write_text(target, body.replace("</head>", f"{TALL}<script>{get_plotlyjs()}</script></head>", 1))


def last_printed(source: Path) -> str:
    """Return the text that the last code cell of an executed notebook printed."""
    cells = [cell for cell in read_notebook(source, EXECUTED).cells if cell.cell_type == "code"]
    outputs = cells[-1].outputs if cells else []
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def _convert_figures(nb: Any) -> None:
    """Replace plotly's JSON by HTML and drop live widgets, which need a kernel."""
    nb.metadata.pop("widgets", None)
    data = [output.data for cell in nb.cells for output in cell.get("outputs", []) if "data" in output]
    for number, bundle in enumerate(data):
        if len(bundle) > 1:
            bundle.pop(WIDGET, None)
        if figure := bundle.pop(FIGURE, None):
            figure.pop("config", None)
            bundle.pop(PICTURE, None)
            bundle["text/html"] = plotly.io.to_html(figure, div_id=f"figure-{number}", **FRAGMENT)


if __name__ == "__main__":
    report(Path(sys.argv[1]), Path(sys.argv[2]), code="--code" in sys.argv)
