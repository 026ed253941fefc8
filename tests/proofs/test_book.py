"""The book is built without a warning, and its pages open in a browser without a network."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.support.lab_browser import browsing
from uavlab_lab.headless.strip_outputs import FIGURE

pytest.importorskip("sphinx", reason="sphinx is not installed")
ROOT = Path(__file__).parents[2]
WIDTHS = (1280, 1920)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
COLOUR = "getComputedStyle(document.body).backgroundColor"


def build(*arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.book", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def one(book: Path, name: str) -> Path:
    """Return the page of a notebook by a pattern of its name; numbers may change."""
    (page,) = book.glob(f"notebooks/{name}.html")
    return page


@pytest.mark.browser
def test_the_book_opens_without_a_network(tmp_path: Path) -> None:
    out = tmp_path / "book"
    done = build(out)
    assert (done.returncode, done.stderr) == (0, "")
    pages = sorted(path for path in out.rglob("*.html") if "_static" not in path.parts)
    assert {"index.html", "README.html", "api.html", one(out, "*tour").name} <= {path.name for path in pages}
    with browsing() as watched:
        page, colours = watched.page, set()
        for path in pages:
            page.goto(path.as_uri())
            figures = page.locator("div.figure")
            page.wait_for_function(
                "n => document.querySelectorAll('.js-plotly-plot .gtitle, .js-plotly-plot .main-svg').length >= n",
                arg=figures.count(),
            )
        page.goto((out / "search.html").as_uri() + "?q=checkpoint")
        page.get_by_role("link", name="Reliability").first.wait_for()
        page.goto(one(out, "*tour").as_uri())
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                colours.add(page.evaluate(COLOUR))
                assert not page.evaluate(SIDEWAYS), (width, scheme)
        page.goto(one(out, "*mapping*").as_uri())
        assert page.evaluate("document.fonts.load('16px Formulas').then(fonts => fonts.length)") == 1
        assert len(colours) == 2  # the book follows the reader's setting
        assert watched.errors == []
        assert watched.outside(out.as_uri()) == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A source with a page and a notebook that has a formula, a figure and a hidden cell."""
    source = tmp_path / "source"
    (source / "notebooks").mkdir(parents=True)
    (source / "README.md").write_text("# Small\n\nSee [the notebook](notebooks/a.ipynb).\n")
    output = nbformat.v4.new_output("display_data", {FIGURE: {"data": [{"y": [1, 2]}]}, "text/plain": "Figure()"})
    hidden = nbformat.v4.new_code_cell("answer = 42", outputs=[output], metadata={"tags": ["hide-input"]})
    text = nbformat.v4.new_markdown_cell(
        "# Formula\n\n$\\frac{1}{2}$ and\n\n$$\\sum_i x_i$$\n\n![A](attachment:a.png)",
        attachments={"a.png": {"image/png": PIXEL}},
    )
    language = {"language_info": {"name": "python"}}
    nbformat.write(
        nbformat.v4.new_notebook(cells=[text, hidden], metadata=language), tmp_path / "source" / "notebooks" / "a.ipynb"
    )
    return tmp_path / "source"


def test_formulas_figures_and_hidden_cells(small: Path, tmp_path: Path) -> None:
    done = build(tmp_path / "out", small)
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "out" / "notebooks" / "a.html").read_text()
    assert page.count("<math ") == 2
    assert "<mfrac>" in page
    assert '<img alt="A" src="data:image/png;base64,' in page
    before, _, after = page.partition('<details class="admonition hide')
    assert "answer" not in before
    assert '<div class="figure"' in after
    assert (tmp_path / "out" / "_static" / "plotly.min.js").stat().st_size > 1_000_000


FAULTS = {
    "[a](none.md)": "'none.md'",
    "[a](#none)": "'none'",
    "![a](none.png)": "none.png",
    "$\\nonsense{x}$": "\\nonsense",
    '<a href="none.html">a</a>': "book: README.html: none.html leads nowhere",
    '<img src="https://x.org/a.png">': "book: README.html: https://x.org/a.png loads from elsewhere",
}


def test_every_fault_is_reported(small: Path, tmp_path: Path) -> None:
    with (small / "README.md").open("a") as readme:
        readme.write("\n\n".join(FAULTS))
    done = build(tmp_path / "out", small)
    assert done.returncode == 1
    assert [text for text, message in FAULTS.items() if message not in done.stderr] == []
