"""Rows of the ledger are joined with what was measured, and those are shown that pass every filter."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from uavlab.core.errors import FileError
from uavlab_lab.claims import report
from uavlab_lab.claims.ledger import ledger, select
from uavlab_lab.explore import claims as module
from uavlab_lab.explore.claims import ALL, FILTERS, ClaimsBrowser, claim_rows, select_rows

RECORD: dict[str, Any] = {
    "date": "2026-01-01",
    "machine": {"device": "A GPU", "cpu": "A CPU"},
    "measured": {
        "cached-forwards": {"value": 1.2, "low": 1.1, "high": 1.4, "note": ""},
        "env-share": {"value": 0.05, "low": None, "high": None, "note": ""},
    },
}
NAMES = ["cached-forwards", "env-share", "more-agents-gain-more"]
for claim in select(NAMES[:2]):
    RECORD["measured"][claim.claim]["digest"] = claim.digest


class TestClaimRows:
    def test_rows_have_the_claims_words_and_their_intervals(self) -> None:
        rows = {each["claim"]: each for each in claim_rows(select(NAMES), RECORD)}
        cached = rows["cached-forwards"]
        assert (cached["verdict"], cached["low"], cached["high"]) == ("partly", 1.1, 1.4)
        assert (cached["claimed_text"], cached["measured_text"]) == ("1.40x to 1.60x", "1.20x")
        assert (cached["system"], cached["technique"]) == ("leader_follower", "update=cached")
        assert (rows["env-share"]["verdict"], rows["env-share"]["low"]) == ("not testable here", None)
        assert rows["more-agents-gain-more"]["verdict"] == "not measured"

    def test_without_a_record_every_row_is_there(self) -> None:
        assert [row["claim"] for row in claim_rows(ledger(), None)] == [claim.claim for claim in ledger()]


class TestSelectRows:
    ROWS = (
        {"claim": "x", "system": "a", "verdict": "partly", "device": "gpu"},
        {"claim": "y", "system": "b", "verdict": "partly", "device": "gpu"},
        {"claim": "z", "system": "b", "verdict": "holds", "device": "cpu"},
    )

    @pytest.mark.parametrize(
        ("system", "verdict", "names"),
        [("all", "all", "xyz"), ("b", "all", "yz"), ("all", "partly", "xy"), ("b", "holds", "z"), ("a", "holds", "")],
    )
    def test_by_system_and_verdict(self, system: str, verdict: str, names: str) -> None:
        assert "".join(each["claim"] for each in select_rows(self.ROWS, system, verdict)) == names

    @pytest.mark.parametrize(
        ("text", "more", "names"), [("Z", {}, "z"), ("gpu b", {}, "y"), ("", {"device": "gpu"}, "xy"), ("q", {}, "")]
    )
    def test_by_words_and_other_keys(self, text: str, more: dict[str, str], names: str) -> None:
        assert "".join(each["claim"] for each in select_rows(self.ROWS, text=text, **more)) == names


@pytest.fixture
def browser(tmp_path: Path) -> ClaimsBrowser:
    (tmp_path / "claims.json").write_text(json.dumps(RECORD))
    return ClaimsBrowser(tmp_path / "claims.json")


def shown(browser: ClaimsBrowser) -> list[str]:
    """Return the names of the claims in the table."""
    return re.findall(r"<tr><td[^>]*>([^<]*)</td>", browser.table.value)


class TestBrowser:
    def test_at_first_all_claims_are_there_and_counted(self, browser: ClaimsBrowser) -> None:
        assert shown(browser) == [claim.claim for claim in ledger()]
        counts = report.count_verdicts(claim_rows(ledger(), RECORD))
        assert browser.status.value == f"<span role='status'>{counts}; {len(ledger())} in all</span>"
        assert "Measured on A GPU." in browser.children[0].value

    @pytest.mark.parametrize("name", FILTERS)
    def test_each_filter_has_every_value_and_shows_its_rows_alone(self, browser: ClaimsBrowser, name: str) -> None:
        options = browser.filters[name].options
        assert set(options) == {ALL, *(row[name] for row in browser.rows)}
        counts = []
        for value in options[1:]:
            browser.filters[name].value = value
            assert shown(browser) == [row["claim"] for row in browser.rows if row[name] == value]
            counts.append(len(shown(browser)))
        assert sum(counts) == len(browser.rows)

    def test_filters_and_words_act_together(self, browser: ClaimsBrowser) -> None:
        browser.filters["system"].value, browser.text.value = "leader_follower", "cached-forwards 1.20x"
        assert shown(browser) == ["cached-forwards"]
        assert "1 claims: 1 partly" in browser.status.value
        assert "1.20x" in browser.table.value
        browser.text.value = "no such word"
        assert (browser.table.value, browser.selected()) == ("", [])
        assert "no such claims" in browser.status.value
        browser.text.value = ""
        assert len(shown(browser)) == sum(claim.system == "leader_follower" for claim in ledger())

    def test_by_default_it_has_the_record_of_the_notebook(self) -> None:
        record, whose = report.newest(report.own_path("cpu"))
        browser = ClaimsBrowser()
        assert [row["verdict"] for row in browser.rows] == [row["verdict"] for row in claim_rows(ledger(), record)]
        assert whose in browser.children[0].value

    def test_a_record_that_is_none_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "claims.json").write_text("{}")
        with pytest.raises(FileError, match="expected a record"):
            ClaimsBrowser(tmp_path / "claims.json")

    def test_a_filter_that_is_ignored_is_caught(self, browser: ClaimsBrowser, monkeypatch: pytest.MonkeyPatch) -> None:
        ignoring = lambda rows, text="", **chosen: select_rows(rows, text=text, system=chosen["system"])  # noqa: E731
        monkeypatch.setattr(module, "select_rows", ignoring)
        with pytest.raises(AssertionError):
            self.test_each_filter_has_every_value_and_shows_its_rows_alone(browser, "verdict")
