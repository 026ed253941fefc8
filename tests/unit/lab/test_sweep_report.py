"""The page of a sweep has its figures, its failures and its trials, whatever there is."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.sweeps import table
from tests.support.web_page import loaded_addresses
from uavlab.sweeps.table import SweepTable
from uavlab_lab import sweep_report
from uavlab_lab.sweep_report import write_sweep_report


def page_of(own: SweepTable) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a page, and its figures."""
    path = write_sweep_report(own)
    assert path == own.folder / "report.html"
    page = path.read_text(encoding="utf-8")
    assert loaded_addresses(page) == []
    drawn = re.search(r"const figures = (\{.*\});\n", page)
    figures = json.loads(drawn[1]) if drawn else {}
    return page.partition("<body>")[2].partition("<script>")[0], list(figures.values())


TWO = {("leader_follower", 0.1): [0.2, 0.4, 0.6], ("leader_follower", 0.2): [0.1, None], ("pursuit", 0.1): [5.0, 9.0]}


def test_a_grid_on_two_presets(tmp_path: Path) -> None:
    text, figures = page_of(table(tmp_path, TWO, grid={"lr": [0.1, 0.2]}))
    assert "6 of 7 trials have a score" in text
    assert "1 of 7 trials have no score and are left out." in text
    assert "&lt;b&gt;nan&lt;/b&gt;" in text
    assert "All 7 trials" in text
    assert len(figures) == 2
    means, profiles = figures
    dots = means["data"][0]
    assert (dots["x"], dots["y"]) == (
        [0.56, 0.0],
        ["lr=0.1", "lr=0.2"],
    )  # of 0.2, 0.6, 1, 0, 1 and of 0: the best first
    assert "mean, Student" in text
    assert means["layout"]["title"]["text"].startswith("Best: lr=0.1, 0.560 [")
    named = {trace["name"] for trace in profiles["data"] if trace.get("name")}
    assert named == {"lr=0.1", "lr=0.2"}
    shares = next(trace["y"] for trace in profiles["data"] if trace.get("name") == "lr=0.1")
    assert (shares[0], shares[-1]) == (0.8, 0.0)


def test_a_search_is_drawn_in_its_order(tmp_path: Path) -> None:
    scores = {
        ("pursuit", 0.3): [1.0, 3.0],
        ("pursuit", 0.1): [4.0, 6.0],
        ("pursuit", 0.2): [None, 9.0],
        ("pursuit", 0.4): [3.0, 3.0],
    }
    search = {"ranges": {"lr": {"low": 0.1, "high": 1.0}}, "trials": 4}
    _, (_, drawn, _) = page_of(table(tmp_path, scores, search=search))
    proposals, best = drawn["data"]
    assert (proposals["x"], proposals["y"], best["y"]) == ([1, 2, 4], [2.0, 5.0, 3.0], [2.0, 5.0, 5.0])
    assert drawn["layout"]["title"]["text"].startswith("Best: lr=0.1")
    text, figures = page_of(table(tmp_path, {("pursuit", 0.3): [1.0, None]}, search=search))
    assert "No proposal has a score in each of its trials." in text
    assert len(figures) == 2


def test_code_that_a_folder_may_not_start_is_named(tmp_path: Path) -> None:
    for name, env in (("mine.py:make", " --env mine.py:make"), ("pettingzoo:mpe2.simple_tag_v3", ""), ("pursuit", "")):
        row = {"preset": name, "trial": "t"}
        own = table(tmp_path, {("pursuit", 0.1): [1.0]})
        assert sweep_report._commands(own, row)[0] == f"uavlab{env} evaluate {tmp_path}/trials/t"


def test_a_sweep_without_a_score(tmp_path: Path) -> None:
    text, figures = page_of(table(tmp_path, {("pursuit", 0.1): [None]}))
    assert "0 of 1 trials have a score" in text
    assert figures == []


def test_many_settings_have_the_best_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_report, "MOST_CURVES", 2)
    scores: dict[tuple[str, Any], list[float | None]] = {("pursuit", lr): [lr] for lr in (0.1, 0.3, 0.2)}
    _, (_, profiles) = page_of(table(tmp_path, scores))
    assert [trace["name"] for trace in profiles["data"] if trace.get("name")] == ["lr=0.3", "lr=0.2"]
