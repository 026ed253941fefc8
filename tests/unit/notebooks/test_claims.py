"""Rows of the ledger are drawn beside what was measured of them."""

from typing import Any

import pytest

from uavlab_lab.claims import report
from uavlab_lab.claims.ledger import ledger, select
from uavlab_lab.lessons import claims


def row(claim: str, unit: str = "ratio", **changes: Any) -> dict[str, Any]:
    known = {"claimed_low": 1.5, "claimed_high": 2.0, "measured": 1.25, "low": 1.2, "high": 1.5, "verdict": "partly"}
    texts = {"claimed_text": "1.50x to 2.00x", "measured_text": "1.25x", "system": "a"}
    return {"claim": claim, "unit": unit, **known, **texts, **changes}


def test_rows_have_the_claims_words_and_their_system() -> None:
    [claim] = select(["cached-forwards"])
    entry = {"value": 1.2, "low": 1.1, "high": 1.4, "note": "", "digest": claim.digest}
    record = {"machine": {"device": "A GPU", "cpu": "A CPU"}, "measured": {claim.claim: entry}}
    [row] = claims.claim_rows([claim], record)
    assert (row["verdict"], row["claimed_text"], row["measured_text"]) == ("partly", "1.40x to 1.60x", "1.20x")
    assert claims.select_rows([row], "leader_follower") == claims.select_rows([row]) == [row]
    assert claims.select_rows([row], "mapping") == []


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
        record, _ = report.newest(report.own_path("cpu"))
        drawn = {row["verdict"] for row in claims.claim_rows(ledger(), record) if row["measured"] is not None}
        assert drawn <= {*claims.POINTS, "ill-defined", "not testable here"}
