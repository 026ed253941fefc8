import html
import re
from pathlib import Path

import nbformat
import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_markdown_cell, new_output
from plotly.offline import get_plotlyjs

from tests.support.tiny_notebook import Write
from tests.support.web_page import loaded_addresses
from uavlab.core.errors import FileError
from uavlab_lab.headless.report import draw_formulas, report
from uavlab_lab.headless.strip_outputs import FIGURE, WIDGET


def fetched(page: str) -> list[str]:
    styles = re.findall(r"@import[^;]*|url\(\s*['\"]?(?:https?:)?//[^)]*", page.replace(get_plotlyjs(), ""))
    return [a for a in [*loaded_addresses(page), *styles] if not a.startswith("data:")]


@pytest.fixture
def executed(write: Write) -> Path:
    path = write("secret_source()", "second()")
    nb = nbformat.read(path, as_version=4)
    for number, cell in enumerate(nb.cells):
        figure = go.Figure(go.Scatter(y=[1, 2]), {"title": f"Curve {number} </script><script>alert(1)</script>"})
        bundle = {
            WIDGET: {"model_id": "m"},
            FIGURE: {**figure.to_plotly_json(), "config": {"plotlyServerURL": "https://plot.ly"}},
            "text/plain": "label",
        }
        cell.outputs = [new_output("display_data", bundle)]
    nb.metadata.widgets = {"application/vnd.jupyter.widget-state+json": {"version_major": 2, "state": {}}}
    nbformat.write(nb, path)
    return path


def test_one_file_that_needs_no_network(executed: Path, tmp_path: Path) -> None:
    report(executed, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert fetched(page) == []
    assert page.count(get_plotlyjs()) == 1
    assert [page.count(f'id="figure-{n}"') for n in range(3)] == [1, 1, 0]
    assert "</script><script>alert(1)" not in page  # a title is text, never markup
    assert WIDGET not in page
    assert "secret_source" not in page


def test_code_on_request(executed: Path, tmp_path: Path) -> None:
    report(executed, tmp_path / "r.html", code=True)
    assert "secret_source" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_check_sees_what_the_stock_converter_fetches(executed: Path) -> None:
    from nbconvert import HTMLExporter

    page, _ = HTMLExporter(template_name="lab").from_filename(str(executed))
    assert any("require" in address for address in fetched(page))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is not a readable notebook"):
        report(tmp_path / "missing.ipynb", tmp_path / "r.html")


class TestFormulas:
    def test_a_page_draws_them(self, write: Write, tmp_path: Path) -> None:
        path = write("1")
        nb = nbformat.read(path, as_version=4)
        nb.cells.insert(0, new_markdown_cell("The share $s_1 < 2$ and\n\n$$\\frac{a}{b} & c$$\n\n`$x$ of $y$`"))
        nbformat.write(nb, path)
        report(path, tmp_path / "r.html")
        page = (tmp_path / "r.html").read_text(encoding="utf-8")
        assert ["block" in tag for tag in re.findall("<math[^>]*>", page)] == [False, True]
        assert page.count("<mfrac>") == 1
        assert "<msub><mi>s</mi><mn>1</mn></msub>" in page
        assert "<code>$x$ of $y$</code>" in page

    def test_what_is_none_stays(self) -> None:
        for text in ("$a_b_c$ for 5 $", "<p>It costs $5.</p><p>And $6.</p>"):
            assert draw_formulas(text) == text

    @pytest.mark.parametrize(
        "text",
        [
            *("<img src=x onerror=alert(1)>", "\\text{<script>alert(1)</script>}", "&lt;b&gt;"),
            *("\\href{javascript:alert(1)}{x}", '\\color{red" onclick="alert(1)}{y}'),
        ],
    )
    def test_they_are_never_markup(self, text: str) -> None:
        page = draw_formulas(f"${html.escape(text)}$")
        assert set(re.findall(r"</?(\w+)", page)) <= {"math", "mrow", "mi", "mo", "mn", "mtext", "mstyle"}
        assert not re.search(r"<[^>]* (href|on\w+)=\"", page)
