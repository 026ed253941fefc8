"""A page shows text as it is, runs its own scripts alone, and loads nothing."""

import base64
import hashlib
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest

from tests.support.web_page import loaded_addresses
from uavlab.core.errors import ResourceError
from uavlab_lab.page import Page
from uavlab_lab.plots.charts import Table


def make() -> Page:
    page = Page("A & B")
    page.add("h1", "A & B")
    page.add("p", "<b>bold\x1b</b>", "note")
    page.add_table(Table(["x"], [["<i>"]]), "All <1>")
    page.add_figure(go.Figure(go.Scatter(y=[1, 2], name="</script>")))
    return page


def test_text_is_shown_as_it_is() -> None:
    body = make().html().partition("<body>")[2]
    assert "<h1>A &amp; B</h1>" in body
    assert "<p class='note'>&lt;b&gt;bold\\x1b&lt;/b&gt;</p>" in body
    assert "<details><summary>All &lt;1&gt;</summary>" in body
    assert ">&lt;i&gt;</td>" in body
    assert '"name":"\\u003c\\u002fscript' in body or '"name":"\\u003c/script' in body


def test_the_policy_allows_the_scripts_of_the_page_alone() -> None:
    page = make().html()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    assert len(scripts) == 2
    assert policy.partition("script-src ")[2] == " ".join(f"'sha256-{each}'" for each in digests)
    assert policy.startswith("default-src 'none'; ")
    assert loaded_addresses(page) == []
    assert "script-src 'none'" in Page("without figures").html()


def test_it_replaces_an_older_page_or_says_why_not(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "page.html"
    make().write(path)
    make().write(path)
    assert path.read_text(encoding="utf-8") == make().html()
    with pytest.raises(ResourceError, match=r"page\.html: cannot be written .*; choose another page\."):
        make().write(path / "page.html")
