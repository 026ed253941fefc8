"""The book takes pages and names from the repository, and its links are checked."""

import json
import re
from pathlib import Path

import nbformat
import pytest

import uavlab
from tools.book import links, notebooks, texts
from uavlab_lab.headless.strip_outputs import FIGURE, PICTURE, WIDGET

ROOT = Path(__file__).parents[3]


def test_pages_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("10_b.ipynb", "index.ipynb", "02_a.ipynb", "README.md"):
        (tmp_path / name).touch()
    assert texts.pages(tmp_path, ["*"]) == ["index", "02_a", "10_b"]


def test_every_notebook_and_guide_is_in_the_contents() -> None:
    pages = [
        *ROOT.glob("notebooks/*.ipynb"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("*.md"),
        ROOT / "figures" / "README.md",
    ]
    names = {str(path.relative_to(ROOT).with_suffix("")) for path in pages} - {"README"}
    assert sorted(line for line in texts.contents(ROOT).splitlines() if line in names) == sorted(names)


def test_every_decision_is_listed_once() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted({path.name for path in folder.glob("*.md")} - {"README.md"})


def test_every_public_name_is_described_in_one_group() -> None:
    names = [name for group in texts.groups().values() for name in group]
    assert sorted(names) == sorted(set(uavlab.__all__) - {"__version__"})
    text = texts.api()
    assert all(text.count(f":: uavlab.{name}\n") == 1 for name in names)
    assert ".. autofunction:: uavlab.train\n" in text
    assert ".. autoclass:: uavlab.Run\n   :members:\n" in text


def test_a_figure_is_drawn_and_has_its_picture() -> None:
    spec = {"data": [{"name": "</script>"}], "layout": {"height": 300}}
    figure = {FIGURE: spec, PICTURE: "<svg/>", "text/plain": "Figure()", WIDGET: {}}
    table = {"text/html": "<table/>"}
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("display_data", each) for each in (figure, table)])
    read = notebooks.read(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])))
    first, second = (output.data for output in read.cells[0].outputs)
    assert second == table
    assert set(first) == {"text/html", "text/plain"}
    before, _, rest = first["text/html"].partition('<script type="application/json">')
    assert before == '<div class="figure" style="min-height:300px">'
    text, _, rest = rest.partition("</script>")
    assert json.loads(text) == spec
    assert rest == "<noscript><svg/></noscript></div>"
    assert "min-height:450px" in notebooks.html({}, "")


def test_an_attached_picture_is_in_the_text() -> None:
    attachments = {"a.png": {"image/png": "AAAA"}}
    cell = nbformat.v4.new_markdown_cell("![A](attachment:a.png)", attachments=attachments)
    read = notebooks.read(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])))
    assert read.cells[0].source == "![A](data:image/png;base64,AAAA)"


GOOD = """<a href="b.html#there">b</a><a href="#here" id="here">h</a><a href="https://x.org/y">y</a>
<link href="s.css"><img src="data:image/png;base64,AA"><script src="s.css?v=1"></script>"""


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "a.html").write_text(GOOD)
    (tmp_path / "b.html").write_text('<p id="there">')
    (tmp_path / "s.css").touch()
    return tmp_path


def test_good_links(book: Path) -> None:
    assert links.check(book) == ([], [], ["https://x.org/y"])


@pytest.mark.parametrize(
    ("page", "broken", "loaded"),
    [
        ('<a href="b.html#nowhere">', ["c.html: b.html#nowhere"], []),
        ('<a href="#nowhere">', ["c.html: #nowhere"], []),
        ('<img src="none.png">', ["c.html: none.png"], []),
        ('<script src="https://x.org/a.js">', [], ["c.html: https://x.org/a.js"]),
        ('<link href="//x.org/a.css">', [], ["c.html: //x.org/a.css"]),
    ],
)
def test_bad_links_are_caught(book: Path, page: str, broken: list[str], loaded: list[str]) -> None:
    (book / "c.html").write_text(page)
    assert links.check(book)[:2] == (broken, loaded)
