"""Committed notebooks on a page without JavaScript and styles, such as GitHub's: all figures and tables are there."""

import copy
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest
from nbconvert import HTMLExporter

from tests.conftest import NOTEBOOKS
from tests.support.lab_browser import browsing
from uavlab_lab.headless.strip_outputs import FIGURE, PICTURE, WIDGET

NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
TABLES = {"table", "thead", "tbody", "tr", "th", "td"}
SAFE = TABLES | {"div", "span", "p", "b", "i", "em", "strong", "code", "pre", "br", "sup", "sub", "ul", "ol", "li", "a"}
# How many pictures the page shows; an image neither runs nor loads anything.
IMAGES = """async () => {
  const images = [...document.querySelectorAll('.output_svg img')];
  await Promise.all(images.map(image => image.decode().catch(() => 0)));
  return images.filter(image => image.naturalWidth > 0 && image.getBoundingClientRect().width > 0).length;
}"""
# Faults of the pictures on a page, each a frame with texts; a picture of views holds a frame for each.
FAULTS = """async () => {
  const faults = [];
  for (const image of document.querySelectorAll('.output_svg img')) {
    const inline = document.createElement('div');
    inline.innerHTML = await (await fetch(image.src)).text();
    image.replaceWith(inline);
    for (const svg of [...inline.querySelectorAll('svg')].filter(e => !e.querySelector(':scope > svg'))) {
      if (svg.parentElement.closest('svg svg')) continue;
      const frame = svg.getBoundingClientRect();
      const titles = [...svg.querySelectorAll('.gtitle, .annotation-text')].map(e => e.textContent.trim());
      if (!titles.some(text => text)) faults.push('no title');
      for (const text of svg.querySelectorAll('text')) {
        const own = text.getBoundingClientRect();
        if (own.width && (own.left < frame.left - 1 || own.right > frame.right + 1 || own.top < frame.top - 1
            || own.bottom > frame.bottom + 1)) faults.push('cut off: ' + text.textContent);
      }
    }
  }
  return faults;
}"""


class Tags(HTMLParser):
    """The tags of a page, and the styles that a sanitizer takes away."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.styles: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        names = (part.partition(":")[0].strip() for key, value in attrs if key == "style" for part in value.split(";"))
        self.styles |= {name for name in names if name}


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with browsing() as watched:
        yield watched.page


def read(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def bundles(nb: Any) -> list[Any]:
    return [output.data for cell in nb.cells for output in cell.get("outputs", ()) if "data" in output]


def github_page(nb: Any) -> str:
    """Return a notebook as HTML that shows neither widgets nor plotly's figures."""
    nb = copy.deepcopy(nb)
    for bundle in bundles(nb):
        for kind in (FIGURE, WIDGET):
            bundle.pop(kind, None)
        bundle.setdefault("text/plain", "")
    return HTMLExporter(template_name="basic").from_notebook_node(nb)[0]


def faults(page: Any, nb: Any) -> list[str]:
    """Return what is wrong with the figures of a notebook on such a page."""
    figures = sum(FIGURE in bundle for bundle in bundles(nb))
    page.set_content(re.sub(r"<(script|link)\b.*?(</script>|>)", "", github_page(nb), flags=re.S))
    pictures = page.evaluate(IMAGES)
    return page.evaluate(FAULTS) + ([f"{pictures} pictures of {figures} figures"] if pictures != figures else [])


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_a_whole_picture(name: str, page: Any) -> None:
    assert faults(page, read(name)) == []


@pytest.mark.browser
def test_a_missing_a_cut_and_a_nameless_picture_are_caught(page: Any) -> None:
    nb, texts = nbformat.v4.new_notebook(), ("<text class='gtitle' y='20'>title</text>", "<text y='20'>name</text>")
    svgs = [f"<svg xmlns='http://www.w3.org/2000/svg' width='90' height='50'>{text}</svg>" for text in texts]
    cut = svgs[0].replace("y='20'", "x='80' y='20'")
    cells = [{FIGURE: {}, PICTURE: svg} for svg in (*svgs, cut)] + [{FIGURE: {}}]
    nb.cells = [
        nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("display_data", each)], execution_count=1)
        for each in cells
    ]
    assert faults(page, nb) == ["no title", "cut off: title", "3 pictures of 4 figures"]


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_images_and_tables_need_no_style(name: str) -> None:
    for bundle in bundles(read(name)):
        if FIGURE in bundle:
            assert ElementTree.fromstring(bundle[PICTURE]).tag.endswith("}svg")
        elif "text/html" in bundle:
            seen = Tags(bundle["text/html"])
            assert seen.tags <= SAFE
            assert seen.styles <= {"text-align", "white-space"}, "a colour or a size is lost on such a page"


def test_a_coloured_table_is_caught() -> None:
    seen = Tags("<table><tr><td style='color: red; text-align: left'>slower</td></tr></table><script>1</script>")
    assert (seen.tags - SAFE, seen.styles) == ({"script"}, {"color", "text-align"})
