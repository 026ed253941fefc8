"""Rows of the ledger are chosen, counted and drawn beside what was measured of them."""

from typing import Any

import pytest

from uavlab.benchmarks.claims.ledger import ledger, select
from uavlab_notebooks import claims

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


def row(claim: str, unit: str = "ratio", **changes: Any) -> dict[str, Any]:
    known = {"claimed_low": 1.5, "claimed_high": 2.0, "measured": 1.25, "low": 1.2, "high": 1.5, "verdict": "partly"}
    texts = {"claimed_text": "1.50x to 2.00x", "measured_text": "1.25x", "system": "a"}
    return {"claim": claim, "unit": unit, **known, **texts, **changes}


class TestClaimRows:
    def test_rows_have_the_claims_words_and_their_intervals(self) -> None:
        rows = {each["claim"]: each for each in claims.claim_rows(select(NAMES), RECORD)}
        cached = rows["cached-forwards"]
        assert (cached["verdict"], cached["low"], cached["high"]) == ("partly", 1.1, 1.4)
        assert (cached["claimed_text"], cached["measured_text"]) == ("1.40x to 1.60x", "1.20x")
        assert (cached["system"], cached["technique"]) == ("leader_follower", "update=cached")
        assert (rows["env-share"]["verdict"], rows["env-share"]["low"]) == ("not testable here", None)
        assert rows["more-agents-gain-more"]["verdict"] == "not measured"

    def test_without_a_record_every_row_is_there(self) -> None:
        rows = claims.claim_rows(ledger(), None)
        assert len(rows) == len(ledger())
        assert {each["verdict"] for each in rows if each["measured"] is not None} <= {*claims.POINTS, "ill-defined"}


class TestSelectRows:
    ROWS = (row("x"), row("y", system="b"), row("z", system="b", verdict="holds"))

    @pytest.mark.parametrize(
        ("system", "verdict", "names"),
        [("all", "all", "xyz"), ("b", "all", "yz"), ("all", "partly", "xy"), ("b", "holds", "z"), ("a", "holds", "")],
    )
    def test_by_system_and_verdict(self, system: str, verdict: str, names: str) -> None:
        assert "".join(each["claim"] for each in claims.select_rows(self.ROWS, system, verdict)) == names


class TestRanges:
    def test_ranges_are_bars_and_numbers_points_with_intervals(self) -> None:
        rows = [row("x"), row("y", verdict="holds", measured=1.75, low=None, high=None), row("other unit", unit="h")]
        bar, partly, holds = claims.ranges([*rows, row("none", measured=None)], "ratio").data
        assert (list(bar.y), list(bar.base), list(bar.x)) == (["x", "y"], [1.5, 1.5], [0.5, 0.5])
        assert (list(partly.x), list(holds.x)) == ([1.25], [1.75])
        assert (list(partly.error_x.array), list(partly.error_x.arrayminus)) == ([0.25], [0.05])
        assert (list(holds.error_x.array), list(holds.error_x.arrayminus)) == ([0], [0])
        assert partly.marker.symbol != holds.marker.symbol  # distinct without colour

    def test_shares_are_in_percent(self) -> None:
        share = row("x", "fraction", claimed_low=0.25, claimed_high=0.5, measured=0.125, low=None, high=None)
        figure = claims.ranges([share], "fraction")
        assert (list(figure.data[0].base), list(figure.data[1].x)) == ([25], [12.5])
        assert figure.layout.xaxis.title.text == "share (%)"

    @pytest.mark.parametrize(("measured", "end"), [(3.0, 3.0), (1.0, 1.5)])
    def test_a_claim_without_an_upper_end_reaches_what_was_measured(self, measured: float, end: float) -> None:
        bar = claims.ranges([row("x", claimed_high=None, measured=measured)], "ratio").data[0]
        assert bar.base[0] + bar.x[0] == end

    def test_nothing_to_draw(self) -> None:
        assert len(claims.ranges([], "ratio", "no such claims").data) == 1

    def test_every_verdict_on_a_number_has_its_look(self) -> None:
        drawn = {row["verdict"] for row in claims.claim_rows(ledger(), RECORD) if row["measured"] is not None}
        assert drawn <= {*claims.POINTS, "ill-defined", "not testable here"}
