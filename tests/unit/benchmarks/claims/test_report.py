"""Every claim has its numbers and a measure or a reason, and numbers are judged as one would by hand.

Records are whole and per machine, damaged ones are refused, and rows hold what notebooks and tables read.
"""

import csv
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.benchmarks.claims.test_measures import TINY
from uavlab.benchmarks.claims import report as book
from uavlab.benchmarks.claims.mapping import count_missions
from uavlab.benchmarks.claims.measures import Bench, Estimate, NotTestable
from uavlab.benchmarks.claims.report import (
    Claim,
    format_number,
    format_range,
    format_rows,
    judge,
    ledger,
    measure,
    measure_claim,
    newest,
    read,
    rows,
    select,
    slug,
    texts,
    verdict,
)
from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.core.text import yaml_value

COLUMNS = ["claim", "claimed_low", "claimed_high", "measured", "verdict", "command", "unit", "note", "machine"]
BY_NAME = {claim.claim: claim for claim in ledger()}
UNITS = {"boolean", "fraction", "h", "missions", "ms", "operations", "ratio", "s", "samples/s", "updates"}


def entry(value: float | None, low: float | None = None, high: float | None = None, note: str = "") -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "note": note}


def record(device: str = "Abacus", date: str = "2026-01-01", **measured: Any) -> dict[str, Any]:
    return {"machine": {"device": device}, "date": date, "measured": measured}


@pytest.fixture
def bench() -> Bench:
    return Bench(3, **TINY)


def given(monkeypatch: pytest.MonkeyPatch, **results: Estimate | Exception) -> None:
    """Set what measures return or raise."""

    def answer(name: str) -> Any:
        def function(bench: Bench, **arguments: Any) -> Estimate:
            result = results[name]
            if isinstance(result, Exception):
                raise result
            return result

        return function

    monkeypatch.setattr(book, "MEASURES", {name: answer(name) for name in results})


class TestMeasure:
    def test_a_claim_about_another_gpu_is_measured_here_and_not_judged(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given(monkeypatch, gain=Estimate(2.0, note="so and so"))
        [claim] = select(["rtx-3060"])
        with pytest.raises(NotTestable, match="needs another device, RTX 3060; here it is 2, so and so"):
            measure_claim(claim, bench)
        bench.name = "NVIDIA GeForce RTX 3060"
        assert measure_claim(claim, bench).value == 2

    def test_an_entry_in_full(self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        given(monkeypatch, gain=Estimate(1.234567, 1.1, 1.39999, "so it is"))
        lines: list[str] = []
        saved = measure(select(["compile"]), tmp_path / "new" / "claims.json", bench, lines.append)
        assert read(tmp_path / "new" / "claims.json") == saved
        assert saved["measured"]["compile"] == {
            **{"value": 1.235, "low": 1.1, "high": 1.4, "note": "so it is", "rounds": 3},
            "commit": saved["machine"]["commit"],
        }
        assert saved["suite"] == "claims"
        assert lines == ["compile: 1.24x, claimed 1.05x to 1.15x"]

    def test_what_cannot_be_measured_keeps_its_reason(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given(monkeypatch, gain=NotTestable("needs luck"), batch_size=ResourceError("no memory"))
        saved = measure(select(["total", "auto-batch"]), tmp_path / "claims.json", bench, lambda line: None)
        assert {name: each["note"] for name, each in saved["measured"].items()} == {
            "total": "needs luck",
            "auto-batch": "no memory",
        }
        assert [row["verdict"] for row in rows(select(["total", "auto-batch"]), saved)] == [
            "not testable on this machine",
            "not testable on this machine",
        ]

    def test_others_stay_and_each_is_written_at_once(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "claims.json"
        given(monkeypatch, gain=Estimate(1.1), duplicates=ValueError("a fault"))
        measure(select(["total"]), path, bench, lambda line: None)
        with pytest.raises(ValueError, match="a fault"):
            measure(select(["cached-forwards", "duplicate-waste-2"]), path, bench, lambda line: None)
        assert list(read(path)["measured"]) == ["total", "cached-forwards"]
        assert [file.name for file in tmp_path.iterdir()] == ["claims.json"]

    def test_a_file_of_another_kind_stays_as_it_is(self, bench: Bench, tmp_path: Path) -> None:
        path = tmp_path / "mine.json"
        path.write_text('{"rows": []}')
        with pytest.raises(FileError, match="expected a record that uavlab claims"):
            measure(select(["equal-updates"]), path, bench, lambda line: None)
        assert path.read_text() == '{"rows": []}'

    def test_what_is_not_built_is_not_measured(self, bench: Bench, tmp_path: Path) -> None:
        measure(select(["zero-shot"]), tmp_path / "claims.json", bench, lambda line: None)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value",
    [
        *({}, [], {"measured": {}}, {"measured": [], "date": "", "machine": {"device": ""}}),
        *({**record(), "date": 3}, {**record(), "machine": {"device": None}}, {**record(), "machine": []}),
        *(record(a={}), record(a=entry("1")), record(a={**entry(1.0), "note": None})),  # type: ignore[arg-type]
    ],
)
def test_damaged_records_are_refused(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "claims_x.json"
    path.write_text(json.dumps(value))
    with pytest.raises(FileError, match=r"claims_x\.json"):
        read(path)


class TestMachines:
    @pytest.mark.parametrize(
        ("machine", "name"),
        [
            ({"device": "Intel(R) Xeon(R) CPU @ 2.1GHz", "cores": 2}, "intel-xeon-cpu-2-1ghz-2-cores"),
            ({"device": "NVIDIA H200", "cpu": "AMD EPYC", "cores": 16}, "nvidia-h200"),
        ],
    )
    def test_file_names(self, machine: dict[str, Any], name: str) -> None:
        assert slug({"cpu": machine["device"], **machine}) == name

    def test_the_own_record_comes_first_then_the_newest(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(book, "FOLDER", tmp_path)
        own = tmp_path / "claims_own.json"
        assert newest(own) == (None, "Not measured on this machine, nor on another; uavlab claims --all measures.")
        for name, date in (("b", "2026-02-01"), ("a", "2026-01-01")):
            (tmp_path / f"claims_{name}.json").write_text(json.dumps(record(name, date)))
        newer, whose = newest(own)
        assert newer == record("b", "2026-02-01")
        assert whose == "Not measured on this machine; uavlab claims --all does. Measured, the newest shown: b, a."
        own.write_text(json.dumps(record("own", "2025-01-01")))
        assert newest(own) == (record("own", "2025-01-01"), "Measured on own.")

    def test_records_of_the_repository_can_be_read(self) -> None:
        for path in book.FOLDER.glob("claims_*.json"):
            assert rows(select(), read(path))


class TestRows:
    def test_columns(self) -> None:
        unmeasured = rows(select(), None)
        assert [row["claim"] for row in unmeasured] == [claim.claim for claim in select()]
        assert all(list(row) == COLUMNS for row in unmeasured)
        assert {row["verdict"] for row in unmeasured} == {"not measured", "not built yet"}

    def test_a_measured_row(self) -> None:
        measured = record(**{"cached-forwards": entry(1.06, 1.01, 1.12, "17 ms before")})
        (row,) = rows(select(["cached-forwards"]), measured)
        assert [row[name] for name in COLUMNS[:7]] == [
            *("cached-forwards", 1.4, 1.6, 1.06, "partly"),
            *("uavlab claims --measure cached-forwards", "ratio"),
        ]
        assert row["note"].endswith("of agents. 95 % interval 1.01x to 1.12x. 17 ms before.")
        assert row["machine"] == "Abacus"

    def test_every_row_that_can_be_made_says_how(self) -> None:
        for claim, row in zip(select(), rows(select(), None), strict=True):
            assert row["command"] == (f"uavlab claims --measure {claim.claim}" if claim.measure else "")
            assert (row["verdict"] == "not built yet") == (row["command"] == "")

    def test_tables(self) -> None:
        two = rows(select(["total", "zero-shot"]), record(total=entry(4.2, 4.0, 4.4)))
        assert list(map(texts, two)) == [
            ("total", "2.30x to 4.00x", "4.20x", "holds"),
            ("zero-shot", "at least 0.50x", "-", "not built yet"),
        ]
        lines = format_rows(two).splitlines()
        assert [line.split() for line in (lines[0], lines[1], lines[3])] == [
            ["claim", "claimed", "measured", "verdict"],
            ["total", "2.30x", "to", "4.00x", "4.20x", "holds"],
            ["zero-shot", "at", "least", "0.50x", "-", "not", "built", "yet"],
        ]
        assert lines[2].startswith("    The stages claimed multiply")

    def test_control_characters_of_a_file_are_escaped(self) -> None:
        assert "\x1b" not in format_rows(rows(select(["total"]), record(total=entry(4.2, note="\x1b[2J"))))


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
        assert {claim.measure for claim in ledger() if claim.measure} == set(book.MEASURES)
        bench = Bench(3, device="cpu")
        for claim in filter(lambda claim: claim.measure, ledger()):
            arguments = yaml_value(f"{{{claim.arguments}}}", claim.claim)
            assert inspect.signature(book.MEASURES[claim.measure]).bind(bench, **arguments), claim.claim

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
    source, broken = Path(book.__file__).read_text(), ModuleType("uavlab.benchmarks.claims.broken")
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


def test_an_installed_package_is_not_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(book, "FOLDER", tmp_path)
    assert book.own_path("cpu").parent == tmp_path
    monkeypatch.setattr(book.installation, "INSTALLED", True)
    assert book.own_path("cpu").parent == Path("figures", "records")
