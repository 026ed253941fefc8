"""The tables of README and of the guides, made from figures/records: ``python -m tools.tables --write``.

A page is a template beside this file, in the language of Jinja: sentences as they are read, with figures of records in
braces. What the braces call is in ``records`` and ``figures``.
"""

from pathlib import Path

import jinja2

from tools.tables import figures, records
from tools.tables.records import ROOT, read  # noqa: F401 - for those who check the pages

MARKS = {
    "README.md": ("<!-- headline: made by tools/tables -->", "<!-- end of headline -->"),
    "docs/measurements.md": ("<!-- tables: made by tools/tables -->", "<!-- end of tables -->"),
    "docs/reliability.md": ("<!-- proofs: made by tools/tables -->", "<!-- end of proofs -->"),
}
TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("tools.tables", ""), undefined=jinja2.StrictUndefined, trim_blocks=True
)
for module in (records, figures):
    functions = {name: f for name, f in vars(module).items() if getattr(f, "__module__", "") == module.__name__}
    TEMPLATES.globals |= functions
    TEMPLATES.filters |= functions


def render(template: str, **names: object) -> str:
    return TEMPLATES.get_template(f"{template}.md.j2").render(names).strip()


def block(name: str = "docs/measurements.md") -> str:
    """Return the text of a file between its two marks."""
    begin, end = MARKS[name]
    return "\n\n".join([begin, render(name.rpartition("/")[2].removesuffix(".md").lower()), end])


def write(name: str) -> None:
    """Put a file's tables into it."""
    put(ROOT / name, block(name), *MARKS[name])


def put(path: Path, text: str, begin: str, end: str) -> None:
    """Replace what a file has between two marks, and the marks."""
    page = path.read_text(encoding="utf-8")
    path.write_text(page.split(begin)[0] + text + page.split(end)[1], encoding="utf-8")
