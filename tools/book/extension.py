"""What the book needs of Sphinx beyond its configuration."""

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from plotly.offline import get_plotlyjs
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

from tools.book import texts

LOGGER = getLogger(__name__)
ADDED: dict[str, Callable[[Path], str]] = {"README": texts.contents, "docs/api": lambda root: texts.api()}
"""Pages with the text that is added at their end."""


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the functions below; Sphinx calls it."""
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    app.add_js_file("figures.js", loading_method="defer")
    app.connect("source-read", add_text)
    app.connect("autodoc-process-docstring", escape_shapes, priority=600)  # after napoleon
    app.connect("build-finished", add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_text(app: Sphinx, page: str, source: list[str]) -> None:
    """Add to a page what is made from the package and from file names."""
    if page in ADDED:
        source[0] += f"\n\n{ADDED[page](Path(app.srcdir))}\n"


def escape_shapes(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Escape the asterisk of shapes such as ``*lead A O`` in the types of attributes."""
    lines[:] = [line.replace("*", r"\*") if line.startswith(":vartype ") else line for line in lines]


def add_files(app: Sphinx, error: Exception | None) -> None:
    """Write plotly.js and the font of formulas beside the pages, and a first page that leads to README's."""
    out, font = Path(app.outdir), files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf"
    (out / "_static" / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    (out / "_static" / "formulas.ttf").write_bytes(font.read_bytes())
    (out / "index.html").write_text('<meta http-equiv="refresh" content="0; url=README.html">\n', encoding="utf-8")


def inline(writer: Any, node: nodes.math) -> None:
    """Write a formula within a line as MathML."""
    writer.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def block(writer: Any, node: nodes.math_block) -> None:
    """Write a formula of its own as MathML."""
    writer.body.append(f'<div class="math">{mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


def mathml(node: nodes.Element, display: str) -> str:
    """Return the MathML of a formula, and warn of commands that the converter does not know."""
    text = convert(node.astext(), display=display)
    for command in re.findall(r"\\[A-Za-z]+", text):
        LOGGER.warning("unknown command %s in a formula", command, location=node)
    return text
