"""Every claim has words, a source, numbers, and a measure or a reason; numbers of arithmetic are computed again."""

import csv
import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest

from uavlab.core.errors import ConfigError
from uavlab_lab.claims import ledger as book
from uavlab_lab.claims import report  # noqa: F401 - it imports every measure
from uavlab_lab.claims.ledger import Claim, ledger, select
from uavlab_lab.claims.measures import MEASURES, Bench

BY_NAME = {claim.claim: claim for claim in ledger()}
UNITS = {
    "boolean",
    "fraction",
    "h",
    "MB",
    "missions",
    "months",
    "ms",
    "operations",
    "ratio",
    "s",
    "samples/s",
    "updates",
}

IN_WORDS = {  # claims whose words have no number, or say "half", or hold both terms of the ratio
    *("more-agents-gain-more", "better-gpus-gain-more", "cpu-not-applicable", "lr-unchanged"),
    *("map-pool", "map-constants", "smaller-networks"),
    *("duplicate-waste-2", "fast-batch", "zero-shot", "steadier-gradients"),
    *("scenario-a-memory", "scenario-b-memory", "map-copies", "throughput-drop", "fewer-updates"),
}
BY_HAND = {
    "payback": 2.5 * 40 / (10 * 2.5),
    "map-operations": 4800 * 14 * 4 * 7,
    "budget-10-operations": 2667 * 10 * 4 * 7,
    "budget-8-operations": 2000 * 8 * 4 * 7,
    "budget-6-operations": 1500 * 6 * 4 * 7,
    "full-steps": 1500,
    "full-hours": 4800 * 76 / 3600,
    "budget-10": 800 / 1500,
    "budget-8": (8 + 1) / (14 + 1),
    "fast-batch": 32 / 64,
    "fast-updates": 500 / 1500,
    "batch-512-utilisation": 30 / (30 + 80),
    "interval-5": 100 / (100 + 5 * 80),
    "interval-10": 200 / (200 + 10 * 80),
    "interval-20": 350 / (350 + 20 * 80),
    "steadier-gradients": 1,
    "updates-per-episode": 100 / 10 * 10,
    "fewer-updates": 10 / 10,
    "equal-updates": 6250 * 200 / 10 * 8,
    "longer-episodes": 10_000 * 2000,
}


def numbers(claim: Claim) -> set[str]:
    """Return the ends of a claim's range as they may stand in words: an effect also as what is gained, in percent."""
    ends = [end for end in (claim.low, claim.high) if end is not None]
    percent = claim.unit in ("fraction", "ratio")
    written = {f"{end:,.10g}" for end in ends} | {f"{100 * end:.3g}" for end in ends if percent}
    return written | {f"{100 * abs(end - 1):.3g}" for end in ends if percent}


class TestLedger:
    def test_names_are_unique_and_rows_complete(self) -> None:
        assert len(BY_NAME) == len(ledger())
        assert {claim.unit for claim in ledger()} <= UNITS
        assert all(claim.system and claim.metric and claim.technique and claim.setting for claim in ledger())

    def test_a_row_in_full(self) -> None:
        row = BY_NAME["cached-forwards"]
        assert (row.low, row.high, row.digits, row.unit, row.neutral) == (1.4, 1.6, 2, "ratio", 1)
        assert (row.technique, row.setting, row.device, row.subject) == (
            "update=cached",
            "2 agents",
            "gpu",
            "technique",
        )
        assert (row.measure, row.call) == ("gain", {"call": "update", "after": {"update": "cached"}})
        assert row.wording.startswith("Keeping the results of forward passes")

    def test_a_setting_may_name_a_model_or_a_number_of_devices(self) -> None:
        names = ("scenario-a", "gtx-1660", "forward-fill", "cpu-not-applicable", "interval-total", "cached-forwards")
        models = ["RTX 3090", "GTX 1660", "RTX 3090", "Core i9", "8 devices", ""]
        assert [BY_NAME[name].only for name in names] == models

    def test_device_subject_and_source_of_every_claim(self) -> None:
        for claim in ledger():
            assert claim.device in ("gpu", "cpu", "any"), claim.claim
            assert claim.subject in ("technique", "program"), claim.claim
            assert re.fullmatch(r"companion|00[0-4] L\d+(-\d+)?(, L\d+(-\d+)?)*(; companion)?", claim.source), (
                claim.claim
            )
            assert claim.wording.endswith("."), claim.claim
            assert claim.standing != "arithmetic" or claim.device == "any", claim.claim

    def test_the_numbers_of_a_claim_are_in_its_words(self) -> None:
        words = {claim.claim: set(re.findall(r"\d[\d,.]*", claim.wording.rstrip("."))) for claim in ledger()}
        cleaned = {name: {each.rstrip(",.") for each in some} for name, some in words.items()}
        assert {claim.claim for claim in ledger() if not numbers(claim) & cleaned[claim.claim]} == IN_WORDS

    @pytest.mark.parametrize(
        ("name", "low", "high", "digits"),
        [
            ("env-share", 0.3, 0.4, 2),
            ("hours-2-agents", 0.5, 1.4, 1),
            ("equal-updates", 10_000_000, 10_000_000, 0),
            ("more-agents-gain-more", 1.0, None, 2),
            ("batch-512-utilisation", 0.3, 0.3, 2),
        ],
    )
    def test_numbers_and_their_digits(self, name: str, low: float, high: float | None, digits: int) -> None:
        assert (BY_NAME[name].low, BY_NAME[name].high, BY_NAME[name].digits) == (low, high, digits)

    def test_a_share_has_the_digits_of_its_percents(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """30 % is no 27 %, whether it is written 0.3 or 0.30."""
        assert min(claim.digits for claim in ledger() if claim.unit == "fraction") == 2
        written = book.LEDGER.read_text(encoding="utf-8")
        assert written.count(",0.30,0.30,fraction,") >= 2
        monkeypatch.setattr(book, "LEDGER", tmp_path / "ledger.csv")
        book.LEDGER.write_text(written.replace(",0.30,0.30,fraction,", ",0.3,0.3,fraction,"), encoding="utf-8")
        assert [claim.digits for claim in ledger()] == [claim.digits for claim in BY_NAME.values()]

    def test_what_a_document_expects_is_no_observation(self) -> None:
        """Tables of expected stages, scenarios and hours; the estimated parts of a step and of the device's time."""
        expected = re.compile(
            r"stage-\d|cumulative-\d|scenario-[ab](-stage-\d|-memory|-utilisation-\d|)|[rg]tx-\d+|hours-.*|budget-\d+-hours|"
            r"fast-(config|config-hours|missions)|full-hours|optimised|cached|per-item-scaling|prenormalised|eight-device.*"
        )
        estimated = re.compile(r".*-share|(baseline|actor|critic|backward)-utilisation|forward-fill|total")
        for claim in ledger():
            if expected.fullmatch(claim.claim):
                assert "expected" in claim.wording, claim.claim
            if estimated.fullmatch(claim.claim) and claim.system == "leader_follower":
                assert claim.wording.startswith("An estimate: "), claim.claim

    def test_a_count_is_not_the_performance_that_it_costs(self) -> None:
        for agents in (2, 4):
            count, loss = BY_NAME[f"duplicate-waste-{agents}"], BY_NAME[f"duplicate-loss-{agents}"]
            assert (count.measure, count.device, count.source) == ("duplicates", "any", "000 L231")
            assert (loss.measure, loss.device, loss.source) == ("lost", "gpu", "000 L232")
            assert (loss.low, loss.neutral) == (count.low, 0)

    def test_every_claim_has_a_measure_and_a_note_or_is_not_built_yet(self) -> None:
        for claim in ledger():
            if claim.standing == "not built yet":
                assert not claim.measure, claim.claim
                assert not claim.arguments, claim.claim
            else:
                assert claim.standing in ("judged", "arithmetic", "ill-defined"), claim.claim
                assert claim.measure, claim.claim
                assert claim.note, claim.claim

    def test_every_measure_is_claimed_and_every_claim_has_its_arguments(self) -> None:
        assert {claim.measure for claim in ledger() if claim.measure} == set(MEASURES)
        bench = Bench(3, device="cpu")
        for claim in filter(lambda claim: claim.measure, ledger()):
            assert inspect.signature(MEASURES[claim.measure]).bind(bench, **claim.call), claim.claim

    def test_numbers_of_arithmetic_by_hand(self) -> None:
        calculated = {claim.claim: claim.call for claim in ledger() if claim.measure == "constant"}
        calculated = {name: call["value"] for name, call in calculated.items() if "value" in call}
        assert calculated == pytest.approx(BY_HAND, rel=1e-3)

    def test_ranges_and_directions_make_sense(self) -> None:
        for claim in ledger():
            assert claim.high is None or claim.low <= claim.high, claim.claim
            if claim.neutral is not None and claim.high is not None:
                assert claim.neutral <= claim.low or claim.high <= claim.neutral, claim.claim
            assert claim.neutral is None or claim.unit in ("ratio", "fraction"), claim.claim

    def test_shares_claimed_of_a_cycle_do_not_add_up(self) -> None:
        shares = [claim for claim in ledger() if "seven shares claimed" in claim.note]
        assert len(shares) == 7
        assert sum(claim.low for claim in shares) == pytest.approx(0.82)
        assert sum(claim.high or 0 for claim in shares) == pytest.approx(1.30)
        assert all("add up to between 82 and 130 %" in claim.note for claim in shares)

    def test_a_digest_follows_measure_arguments_and_stages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        staged, plain = BY_NAME["stage-1"], BY_NAME["cached-forwards"]
        before = staged.digest, plain.digest
        assert (
            len({claim.digest for claim in (staged, plain, replace(plain, unit="s"), replace(plain, measure="x"))}) == 4
        )
        assert replace(plain, note="another", low=1.0).digest == plain.digest
        spaced = replace(plain, arguments="after:  {update: cached},  call: update")
        assert spaced.digest == plain.digest
        monkeypatch.setattr(book, "STAGES", [{}, {"update": "vmap"}])
        assert staged.digest != before[0]
        assert plain.digest == before[1]

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
