"""A card is HTML of its own parts and escaped text, in the colours of the page around it."""

import math
import re

import pytest

from tests.support.card_parts import facts, tables, title
from tests.support.hostile import HARMLESS, HOSTILE, skeleton
from uavlab.core import cards
from uavlab.core.cards import Html, card, folded, interval_bar, notes, strong, table


def whole(word: str) -> Html:
    """Return a card with a text in each place that takes one."""
    rows = [(word, strong(word), interval_bar(0.0, 0.5, 1.0))]
    return card(word, {word: word}, table((word, word), rows), notes([word]), folded(word, table((word,), [(word,)])))


class TestContents:
    def test_heading_facts_and_table(self) -> None:
        page = card(
            "A run", {"seeds": 3, "gain": 0, "none": None, "empty": ""}, table(("a", "b"), [(1, "x"), (2, "y")])
        )
        assert title(page) == "A run"
        assert facts(page) == {"seeds": "3", "gain": "0"}
        assert tables(page) == [[["a", "b"], ["1", "x"], ["2", "y"]]]

    def test_a_table_without_rows_is_empty(self) -> None:
        assert table(("a",), []) == ""

    def test_what_is_folded_has_a_summary(self) -> None:
        assert folded("All", table(("a",), [(1,)])).startswith("<details><summary>All</summary><div class='scroll'>")


class TestBar:
    def shapes(self, low: float, mean: float, high: float) -> list[tuple[float, float]]:
        """Return the left edge and the width of axis, interval and mean (px)."""
        drawing = interval_bar(low, mean, high)
        return [(float(x), float(width)) for x, width in re.findall(r"<rect x='(.*?)' .*?width='(.*?)'", drawing)]

    @pytest.mark.parametrize(
        ("ends", "interval", "mean"),
        [
            ((0.25, 0.5, 0.75), (2 + 30, 60), 2 + 60),  # of 120 px, which stand for 0 to 1
            ((10.0, 20.0, 40.0), (2 + 30, 90), 2 + 60),  # 0 to 40
            ((-30.0, -20.0, -10.0), (2, 80), 2 + 40),  # -30 to 0
            ((-1.0, 0.0, 2.0), (2, 120), 2 + 40),  # -1 to 2
            ((0.0, 0.0, 0.0), (2, 0), 2),
        ],
    )
    def test_it_is_drawn_to_scale(self, ends: tuple[float, float, float], interval: tuple, mean: float) -> None:
        assert self.shapes(*ends) == [(2, 120), interval, (mean - 1, 2)]

    @pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
    def test_a_number_that_is_not_finite_has_none(self, odd: float) -> None:
        assert [interval_bar(*ends) for ends in ((odd, 0.5, 1.0), (0.0, odd, 1.0), (0.0, 0.5, odd))] == ["", "", ""]


class TestText:
    @pytest.mark.parametrize("word", HOSTILE)
    def test_it_stays_text(self, word: str) -> None:
        assert skeleton(whole(word)) == skeleton(whole(HARMLESS[0]))

    def test_a_card_that_does_not_escape_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cards, "markup", str)
        with pytest.raises(AssertionError):
            self.test_it_stays_text(HOSTILE[0])

    def test_a_cell_that_is_taken_for_html_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cards, "_html", str)
        with pytest.raises(AssertionError):
            self.test_it_stays_text(HOSTILE[0])


def test_colours_are_those_of_the_page() -> None:
    """No background, and no colour without the page's own: a card is readable on light and on dark."""
    colours = re.findall(r"(?:color|background|border-bottom|fill)[:=] ?([^;}>]+)", whole("x").replace("'", ""))
    own = ("var(--jp-", "inherit", "1px solid var(--jp-", "currentColor")
    assert len(colours) >= 4
    assert [colour for colour in colours if not colour.startswith(own)] == []
    assert "background" not in whole("x")
