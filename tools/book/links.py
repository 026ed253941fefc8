"""Links of built pages: those within the book must lead somewhere, and no page may load anything from elsewhere."""

from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LOADING = ("src", "srcset", "poster", "data")


class Page(NamedTuple):
    """What a page links to, what it loads, and the anchors that it has."""

    links: list[str]
    loads: list[str]
    anchors: set[str]


class Report(NamedTuple):
    """Links within the book that lead nowhere, addresses that pages load from elsewhere, and links to elsewhere."""

    broken: list[str]
    loaded: list[str]
    outside: list[str]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page([], [], set())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not value:
                continue
            if name in ("id", "name"):
                self.page.anchors.add(value)
            elif name in LOADING or (tag == "link" and name == "href"):
                self.page.loads.append(value)
            elif name == "href":
                self.page.links.append(value)


def read(text: str) -> Page:
    """Return links, loads and anchors of an HTML page."""
    reader = _Reader()
    reader.feed(text)
    return reader.page


def check(folder: Path) -> Report:
    """Check all pages of a folder."""
    pages = {path.resolve(): read(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    report = Report([], [], [])
    for path, page in pages.items():
        for address in dict.fromkeys((*page.links, *page.loads)):
            if urlsplit(address).scheme or address.startswith("//"):
                (report.loaded if address in page.loads else report.outside).append(f"{path.name}: {address}")
            elif not leads(path, address, pages):
                report.broken.append(f"{path.relative_to(folder.resolve())}: {address}")
    loaded = [each for each in report.loaded if ": data:" not in each]
    return Report(report.broken, loaded, sorted({each.partition(": ")[2] for each in report.outside}))


def leads(path: Path, address: str, pages: dict[Path, Page]) -> bool:
    """Return whether an address on a page leads to a file, and to an anchor if it names one."""
    parts = urlsplit(address)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    fragment = unquote(parts.fragment)
    return target.exists() and (not fragment or target not in pages or fragment in pages[target].anchors)


def text(addresses: Iterable[str]) -> str:
    """Return addresses as lines."""
    return "".join(f"{each}\n" for each in addresses)
