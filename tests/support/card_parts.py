"""What the HTML of a card shows: its heading, its facts by name, and its tables as rows of texts."""

import html
import re


def text(part: str) -> str:
    """Return the text of a part without its tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", part))


def title(page: str) -> str:
    """Return the heading."""
    return text(re.findall(r"<p role='heading'.*?</p>", page)[0])


def facts(page: str) -> dict[str, str]:
    """Return the facts by name."""
    pairs = re.findall(r"<span><span class='name'>(.*?):</span> (.*?)</span>", page)
    return {text(name): text(value) for name, value in pairs}


def tables(page: str) -> list[list[list[str]]]:
    """Return the rows of each table, its head first."""
    parts = [
        re.findall(r"<tr>(.*?)</tr>", each, re.DOTALL) for each in re.findall(r"<table>.*?</table>", page, re.DOTALL)
    ]
    return [
        [[text(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)] for row in rows] for rows in parts
    ]
