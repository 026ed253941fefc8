"""Every claim has its numbers and a measure or a reason, and numbers are judged as one would by hand."""

import csv
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from uavlab.bench.claims import ledger as book
from uavlab.bench.claims import report
from uavlab.bench.claims.ledger import Claim, format_number, format_range, judge, ledger, select, verdict
from uavlab.bench.claims.mapping import count_missions
from uavlab.bench.claims.measures import Bench
from uavlab.core.errors import ConfigError
from uavlab.core.text import yaml_value

BY_NAME = {claim.claim: claim for claim in ledger()}
UNITS = {"boolean", "fraction", "h", "missions", "ms", "operations", "ratio", "s", "samples/s", "updates"}


def entry(value: float | None, low: float | None = None, high: float | None = None) -> dict[str, object]:
    return {"value": value, "low": low, "high": high, "note": ""}


class TestLedger:
    def test_names_are_unique_and_rows_complete(self) -> None:
        assert len(BY_NAME) == len(ledger())
        assert {claim.unit for claim in ledger()} <= UNITS
        assert all(claim.system and claim.metric and claim.technique and claim.setting for claim in ledger())

    def test_a_row_in_full(self) -> None:
        row = BY_NAME["cached-forwards"]
        assert (row.low, row.high, row.digits, row.unit, row.neutral) == (1.4, 1.6, 2, "ratio", 1)
        assert (row.technique, row.setting, row.gpu) == ("update=cached", "2 agents", "")
        assert (row.measure, row.arguments) == ("gain", "call: update, after: {update: cached}")

    def test_a_setting_may_name_a_gpu(self) -> None:
        assert (BY_NAME["scenario-a"].gpu, BY_NAME["gtx-1660"].gpu) == ("RTX 3090", "GTX 1660")
        assert BY_NAME["forward-fill"].setting == "batch 128, hidden 256, RTX 3090"
        assert BY_NAME["forward-fill"].gpu == "RTX 3090"

    @pytest.mark.parametrize(
        ("name", "low", "high", "digits"),
        [
            ("env-share", 0.3, 0.4, 2),
            ("hours-2-agents", 0.5, 1.4, 1),
            ("equal-updates", 10_000_000, 10_000_000, 0),
            ("more-agents-gain-more", 1.0, None, 2),
        ],
    )
    def test_numbers_and_their_digits(self, name: str, low: float, high: float | None, digits: int) -> None:
        assert (BY_NAME[name].low, BY_NAME[name].high, BY_NAME[name].digits) == (low, high, digits)

    def test_every_claim_has_a_measure_and_a_note_or_is_not_built_yet(self) -> None:
        for claim in ledger():
            if claim.standing == "not built yet":
                assert not claim.measure, claim.claim
                assert not claim.arguments, claim.claim
            else:
                assert claim.standing in ("judged", "ill-defined"), claim.claim
                assert claim.measure, claim.claim
                assert claim.note, claim.claim

    def test_every_measure_is_claimed_and_every_claim_has_its_arguments(self) -> None:
        assert {claim.measure for claim in ledger() if claim.measure} == set(report.MEASURES)
        bench = Bench(3, device="cpu")
        for claim in filter(lambda claim: claim.measure, ledger()):
            arguments = yaml_value(f"{{{claim.arguments}}}", claim.claim)
            assert inspect.signature(report.MEASURES[claim.measure]).bind(bench, **arguments), claim.claim

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("full-steps", 1500),  # of 4,800 missions
            ("budget-8", (8 + 1) / (14 + 1)),
            ("map-operations", 1500 * 64 * 3),
            ("equal-updates", 6250 * 200 / 10 * 8),
        ],
    )
    def test_constants_by_hand(self, name: str, value: float) -> None:
        assert yaml_value(f"{{{BY_NAME[name].arguments}}}", name)["value"] == pytest.approx(value)
        assert f"{count_missions(1500, 64, 3, 14):,.0f} missions" in BY_NAME["full-steps"].arguments

    def test_ranges_and_directions_make_sense(self) -> None:
        for claim in ledger():
            assert claim.high is None or claim.low <= claim.high, claim.claim
            if claim.neutral is not None and claim.high is not None:
                assert claim.neutral <= claim.low or claim.high <= claim.neutral, claim.claim
            assert claim.neutral is None or claim.unit in ("ratio", "fraction"), claim.claim

    def test_shares_claimed_of_a_cycle_do_not_add_up(self) -> None:
        shares = [claim for claim in ledger() if claim.measure == "share"]
        assert len(shares) == 6
        assert sum(claim.low for claim in shares) == pytest.approx(0.80)
        assert sum(claim.high or 0 for claim in shares) == pytest.approx(1.25)
        assert all("six shares claimed add up to between 80 and 125 %" in claim.note for claim in shares)

    def test_fields_stay_in_their_columns(self) -> None:
        with book.LEDGER.open(newline="") as file:
            assert len({len(row) for row in csv.reader(file)}) == 1


class TestSelect:
    def test_all(self) -> None:
        assert select() == ledger()

    def test_by_system_and_name_in_the_order_of_the_ledger(self) -> None:
        assert {claim.system for claim in select(system="scale_out")} == {"scale_out"}
        assert [claim.claim for claim in select(["total", "compile"])] == ["compile", "total"]
        assert select(["total"], "scale_out") == []

    def test_unknown_names_are_refused_with_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match=r"unknown claim 'totl' \(did you mean 'total'\?\)"):
            select(["totl"])
        with pytest.raises(ConfigError, match="unknown system 'snakes'"):
            select(system="snakes")


def claim(low: float, high: float | None, digits: int = 2, neutral: float | None = None, **changes: str) -> Claim:
    words = dict.fromkeys(("claim", "system", "technique", "setting", "metric", "note"), "")
    given = {**words, "unit": "ratio", "measure": "some", "arguments": "", "standing": "judged", **changes}
    return Claim(low=low, high=high, digits=digits, neutral=neutral, **given)


FASTER = claim(1.40, 1.60, neutral=1)  # a speed-up of 1.40 to 1.60
SMALLER = claim(0.50, 0.65, neutral=1)  # to 0.50 or 0.65 of what it was
SHARE = claim(0.30, 0.40)
MORE = claim(1.00, None, neutral=1)  # above 1
CASES: list[tuple[Claim, tuple[float, ...], str]] = [
    (FASTER, (1.50,), "holds"),
    (FASTER, (1.396,), "holds"),  # 1.40, rounded as the claim is
    (FASTER, (1.394,), "partly"),
    (FASTER, (2.70,), "holds"),  # more than was claimed
    (FASTER, (1.10, 1.02, 1.20), "partly"),  # faster beyond doubt, but not as claimed
    (FASTER, (1.10, 0.98, 1.20), "does not hold"),  # the interval has no effect in it
    (FASTER, (1.45, 0.90, 2.00), "does not hold"),
    (FASTER, (0.80,), "does not hold"),
    (FASTER, (1.00,), "does not hold"),
    (SMALLER, (0.60, 0.55, 0.62), "holds"),
    (SMALLER, (0.30,), "holds"),  # less than was claimed
    (SMALLER, (0.80, 0.70, 0.90), "partly"),
    (SMALLER, (0.80, 0.70, 1.10), "does not hold"),
    (SMALLER, (1.20,), "does not hold"),
    (SHARE, (0.30,), "holds"),
    (SHARE, (0.404,), "holds"),
    (SHARE, (0.41,), "does not hold"),  # a size has no direction
    (SHARE, (0.10,), "does not hold"),
    (MORE, (1.30, 1.10, 1.50), "holds"),
    (MORE, (1.02, 0.97, 1.08), "does not hold"),
    (MORE, (0.90,), "does not hold"),
    (claim(0.5, None), (0.6,), "holds"),  # at least a size
    (claim(0.5, None), (0.4,), "does not hold"),
    (claim(0, 0, digits=0), (1.0,), "does not hold"),
    (claim(10, 10, digits=0), (200,), "does not hold"),
]


def wrong(judge: Callable[..., str]) -> list[tuple[float, ...]]:
    return [numbers for of, numbers, expected in CASES if judge(of, *numbers) != expected]


def test_numbers_are_judged_as_by_hand() -> None:
    assert wrong(judge) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("round(value, claim.digits)", "value"),
        ("claim.high > claim.neutral", "True"),
        ("(value if low is None else low) > claim.neutral", "value > claim.neutral"),
        ("(value if low is None else low) > claim.neutral", "(value if low is None else low) >= claim.neutral"),
        ("(value if high is None else high) < claim.neutral", "value < claim.neutral"),
        ("rounded >= claim.low\n", "claim.low <= rounded <= (claim.high or rounded)\n"),
        ('else "partly"', 'else "does not hold"'),
        ("(claim.high is None or rounded <= claim.high)", "True"),
    ],
)
def test_a_broken_judge_is_caught(old: str, new: str) -> None:
    source, broken = Path(book.__file__).read_text(), ModuleType("uavlab.bench.claims.broken")
    broken.__file__ = book.__file__
    assert source.count(old) == 1
    exec(compile(source.replace(old, new), "broken", "exec"), broken.__dict__)
    assert wrong(broken.judge) != []


def test_verdicts_that_no_number_changes() -> None:
    assert verdict(claim(1, 2, measure="", standing="not built yet"), None) == "not built yet"
    assert verdict(FASTER, None) == "not measured"
    assert verdict(FASTER, entry(None)) == "not testable on this machine"
    ill = claim(1.4, 1.6, neutral=1, standing="ill-defined")
    assert verdict(ill, entry(1.5)) == "ill-defined"
    assert verdict(ill, entry(None)) == "not testable on this machine"
    assert verdict(FASTER, entry(1.5, 1.4, 1.6)) == "holds"
    assert verdict(FASTER, entry(1.5, 0.9, 1.6)) == "does not hold"


def test_numbers_in_words() -> None:
    assert format_number(None, "ratio") == "-"
    assert format_number(1.0649, "ratio") == "1.06x"
    assert format_number(0.0042, "fraction") == "0.42 %"
    assert format_number(1, "boolean") == "yes"
    assert format_number(10_000_000, "updates") == "10,000,000 updates"
    assert format_number(0.0712, "h") == "0.0712 h"
    assert format_range(0.3, 0.4, "fraction") == "30 % to 40 %"
    assert format_range(76, 76, "s") == "76 s"
    assert format_range(1.0, None, "ratio") == "at least 1.00x"
