"""The addresses that a browser loads on its own for a page."""

from html.parser import HTMLParser

LOADING = {"script", "link", "img", "iframe", "source", "video", "audio", "object", "embed"}


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in LOADING:
            self.addresses += [value for name, value in attrs if name in {"src", "href", "data"} and value]


def loaded_addresses(page: str) -> list[str]:
    """List the addresses of scripts, styles, pictures and frames of a page."""
    parser = _Addresses()
    parser.feed(page)
    return parser.addresses
