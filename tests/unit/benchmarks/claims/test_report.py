"""Numbers are judged as by hand, and none decides a claim about another device or about another program.

Records are whole and per machine, damaged ones are refused, and rows hold what notebooks and tables read.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.benchmarks.claims.test_measures import TINY
from uavlab.core.errors import FileError, ResourceError
from uavlab.storage.machine import describe
from uavlab_lab.claims import report as book
from uavlab_lab.claims.ledger import Claim, ledger, select
from uavlab_lab.claims.measures import Bench, Estimate, NotTestable
from uavlab_lab.claims.report import (
    count_verdicts,
    format_number,
    format_range,
    format_rows,
    judge,
    measure,
    newest,
    read,
    rows,
    slug,
    texts,
    verdict,
)

COLUMNS = [
    *("claim", "wording", "source", "device", "unit", "neutral", "claimed_low", "claimed_high", "measured"),
    *("low", "high", "verdict", "command", "note", "machine"),
]
DIGESTS = {claim.claim: claim.digest for claim in ledger() if claim.measure}


def entry(value: float | None, low: float | None = None, high: float | None = None, note: str = "") -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "note": note}


def not_built() -> Claim:
    """Return a claim about something that is not built."""
    return replace(select(["eight-devices"])[0], measure="", arguments="", standing="not built yet")


def record(device: str = "Abacus", date: str = "2026-01-01", cpu: str = "Abacus", **measured: Any) -> dict[str, Any]:
    """Return a record of a CPU, or of a GPU beside the CPU ``cpu``, whose entries belong to the present measures."""
    entries = {name: {"digest": DIGESTS.get(name), **each} for name, each in measured.items()}
    return {"machine": {"device": device, "cpu": cpu}, "date": date, "measured": entries}


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
    def test_an_entry_in_full(self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        given(monkeypatch, gain=Estimate(1.234567, 1.1, 1.39999, "so it is", 17), constant=NotTestable("no"))
        lines: list[str] = []
        saved = measure(select(["stage-1", "slow-env"]), tmp_path / "new" / "claims.json", bench, lines.append)
        assert read(tmp_path / "new" / "claims.json") == saved
        assert saved["measured"]["stage-1"] == {
            **{"value": 1.235, "low": 1.1, "high": 1.4, "note": "so it is", "rounds": 17},  # those that were run
            "commit": saved["machine"]["commit"],
            "digest": DIGESTS["stage-1"],
        }
        assert set(saved["measured"]["slow-env"]) == set(saved["measured"]["stage-1"])
        assert saved["suite"] == "claims"
        assert lines == ["stage-1: 1.24x, claimed 1.50x to 1.80x", "slow-env: -, claimed 80 ms"]

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
            "ill-defined",
            "not testable here",
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
        measure([not_built()], tmp_path / "claims.json", bench, lambda line: None)
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
            (
                {"device": "AMD EPYC", "cpu_id": "family 25 model 17 stepping 1", "cores": 2},
                "amd-epyc-family-25-model-17-stepping-1-2-cores",
            ),
            ({"device": "NVIDIA H200", "cpu": "AMD EPYC", "cpu_id": "family 25", "cores": 16}, "nvidia-h200"),
        ],
    )
    def test_file_names(self, machine: dict[str, Any], name: str) -> None:
        assert slug({"cpu": machine["device"], **machine}) == name

    def test_two_cpus_of_one_name_have_two_records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = set()
        for model in ("1", "17"):
            monkeypatch.setattr(
                "uavlab.storage.machine.cpuinfo", lambda model=model: {"model name": "A", "model": model}
            )
            paths.add(book.own_path("cpu"))
        assert len(paths) == 2

    def test_the_own_record_comes_first_then_the_newest(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(book, "FOLDER", tmp_path)
        own = tmp_path / "claims_own.json"
        assert newest(own) == (None, "Not measured on this machine, nor on another; uavlab claims --all measures.")
        for name, date in (("b", "2026-02-01"), ("a", "2026-01-01")):
            (tmp_path / f"claims_{name}.json").write_text(json.dumps(record(name, date)))
        newer, whose = newest(own)
        older = record("a", "2026-01-01")
        assert newer == record("b", "2026-02-01") | {"others": [older]}
        assert whose == "Not measured on this machine; uavlab claims --all does. Measured, the newest shown: b, a."
        own.write_text(json.dumps(record("own", "2025-01-01")))
        others = [record("b", "2026-02-01"), older]
        assert newest(own) == (record("own", "2025-01-01") | {"others": others}, "Measured on own.")

    def test_records_of_the_repository_can_be_read(self) -> None:
        for path in book.FOLDER.glob("claims_*.json"):
            assert rows(select(), read(path))


class TestRows:
    def test_columns(self) -> None:
        unmeasured = rows(select(), None)
        assert [row["claim"] for row in unmeasured] == [claim.claim for claim in select()]
        assert all(list(row) == COLUMNS for row in unmeasured)

    def test_without_a_record_only_the_document_decides(self) -> None:
        for claim in ledger():
            expected = {"judged": "not measured", "arithmetic": verdict(claim, record())}.get(claim.standing)
            unmeasurable = claim.subject == "program" or claim.measure == "constant"
            no_number = unmeasurable and claim.standing == "judged"
            assert verdict(claim, None) == ("not testable here" if no_number else expected or claim.standing)

    def test_a_measured_row(self) -> None:
        measured = record(**{"cached-forwards": entry(1.25, 1.21, 1.3, "17 ms before")}, device="H200")
        (row,) = rows(select(["cached-forwards"]), measured)
        assert [row[name] for name in COLUMNS[3:13]] == [
            *("gpu", "ratio", 1, 1.4, 1.6, 1.25, 1.21, 1.3, "partly"),
            *("uavlab claims --measure cached-forwards",),
        ]
        assert (row["source"], row["machine"]) == ("000 L683, L830", "H200")
        assert row["note"].endswith("of agents. 95 % interval 1.21x to 1.30x. 17 ms before.")

    @pytest.mark.parametrize(
        ("rounds", "words"), [(6, "95 % interval 0.99x to 1.03x."), (5, "Range of 5 rounds: 0.99x to 1.03x.")]
    )
    def test_few_rounds_have_a_range_and_no_interval(self, rounds: int, words: str) -> None:
        measured = record(**{"map-constants": entry(1.01, 0.99, 1.03) | {"rounds": rounds}})
        (row,) = rows(select(["map-constants"]), measured)
        assert row["note"].endswith(words)

    def test_a_number_of_another_device_is_beside_the_claim(self) -> None:
        (row,) = rows(select(["rtx-3060"]), record(**{"rtx-3060": entry(3.1, 3.0, 3.2)}))
        assert (row["measured"], row["verdict"]) == (3.1, "not testable here")

    def test_a_gpus_record_decides_what_a_cpus_does_not(self) -> None:
        names = ["cached-forwards", "map-constants", "final-utilisation", "equal-updates", "compile"]
        here = record(**{"cached-forwards": entry(1.12), "map-constants": entry(1.4, 1.3, 1.5)})
        there = record("H200", cpu="Abacus", **{"cached-forwards": entry(1.5), "map-constants": entry(0.5)})
        there["measured"]["final-utilisation"] = {**entry(0.75), "digest": DIGESTS["final-utilisation"]}
        alone = {row["claim"]: row["verdict"] for row in rows(select(names), here)}
        assert (alone["cached-forwards"], alone["final-utilisation"]) == ("not testable here", "not testable here")
        joined = {row["claim"]: row for row in rows(select(names), here | {"others": [there]})}
        assert {name: (row["measured"], row["verdict"], row["machine"]) for name, row in joined.items()} == {
            "cached-forwards": (1.5, "holds", "H200"),
            "map-constants": (1.4, "holds", "Abacus"),  # the first that decides
            "final-utilisation": (0.75, "holds", "H200"),
            "equal-updates": (1_000_000, "refuted by arithmetic", None),
            "compile": (None, "not testable here", None),
        }
        [unlike] = rows(select(["cached-forwards"]), record("H200", cpu="Abacus") | {"others": [here]})
        assert (unlike["measured"], unlike["verdict"]) == (1.12, "not testable here")  # better a number than none
        assert joined["cached-forwards"]["note"].endswith("On Abacus: 1.12x, not testable here.")
        assert joined["map-constants"]["note"].endswith("On H200: 0.50x, does not hold.")
        assert joined["final-utilisation"]["note"].endswith("Decided of this program on this GPU, not of theirs.")

    def test_a_calculated_row_needs_no_record_and_says_so(self) -> None:
        (row,) = rows(select(["equal-updates"]), None)
        assert (row["measured"], row["verdict"], row["machine"]) == (1_000_000, "refuted by arithmetic", None)
        assert row["note"].startswith("By arithmetic. ")

    @pytest.mark.parametrize(
        "changes",
        [{"arguments": "stages: [draw]"}, {"measure": "lost"}, {"unit": "s"}, {"arguments": "setting: {stage: 1}"}],
    )
    def test_an_entry_of_another_measure_is_void(self, changes: dict[str, str]) -> None:
        [claim] = select(["env-share"])
        saved = record(**{"env-share": entry(0.35)})
        assert rows([claim], saved)[0]["measured"] == 0.35
        assert rows([replace(claim, **changes)], saved)[0]["measured"] is None  # type: ignore[arg-type]
        del saved["measured"]["env-share"]["digest"]
        assert rows([claim], saved)[0]["measured"] is None

    def test_every_row_that_can_be_made_says_how(self) -> None:
        claims = [*select(), not_built()]
        for claim, row in zip(claims, rows(claims, None), strict=True):
            assert row["command"] == (f"uavlab claims --measure {claim.claim}" if claim.measure else "")
            assert (row["verdict"] == "not built yet") == (row["command"] == "")

    def test_tables(self) -> None:
        two = rows([*select(["total"]), not_built()], record(total=entry(4.2, 4.1, 4.4), device="H200"))
        assert list(map(texts, two)) == [
            ("total", "2.30x to 4.00x", "gpu", "4.20x", "exceeds"),
            ("eight-devices", "7.00x to 7.50x", "gpu", "-", "not built yet"),
        ]
        lines = [line.split() for line in format_rows(two).splitlines()]
        assert lines[0] == ["claim", "claimed", "device", "measured", "verdict"]
        assert lines[1] == ["total", "2.30x", "to", "4.00x", "gpu", "4.20x", "exceeds"]
        assert lines[2][:3] + lines[2][-2:] == ["An", "estimate:", "all", "L840,", "L1099)"]
        assert lines[4] == ["uavlab", "claims", "--measure", "total"]
        assert lines[5] == ["eight-devices", "7.00x", "to", "7.50x", "gpu", "-", "not", "built", "yet"]
        assert " ".join(lines[-1]) == "2 claims: 1 exceeds, 1 not built yet" == count_verdicts(two)
        assert count_verdicts([]) == "no such claims"

    def test_control_characters_of_a_file_are_escaped(self) -> None:
        assert "\x1b" not in format_rows(rows(select(["total"]), record(total=entry(4.2, note="\x1b[2J"))))


def claim(low: float, high: float | None, digits: int = 2, neutral: float | None = None, **changes: str) -> Claim:
    words = dict.fromkeys(("claim", "system", "technique", "setting", "metric", "source", "wording", "note"), "")
    about = {"device": "any", "subject": "technique", "standing": "judged"}
    given = {**words, **about, "unit": "ratio", "measure": "some", "arguments": "", **changes}
    return Claim(low=low, high=high, digits=digits, neutral=neutral, **given)


FASTER = claim(1.40, 1.60, neutral=1)  # a speed-up of 1.40 to 1.60
SMALLER = claim(0.50, 0.65, neutral=1)  # to 0.50 or 0.65 of what it was
SHARE = claim(0.30, 0.40)
MORE = claim(1.00, None, neutral=1)  # above 1
CASES: list[tuple[Claim, tuple[float, ...], str]] = [
    (FASTER, (1.50,), "holds"),
    (FASTER, (1.396,), "holds"),  # 1.40, rounded as the claim is
    (FASTER, (1.394,), "partly"),
    (FASTER, (1.604,), "holds"),
    (FASTER, (2.70,), "exceeds"),
    (FASTER, (2.70, 1.61, 3.00), "exceeds"),
    (FASTER, (2.70, 1.60, 3.00), "holds"),  # its interval reaches the range
    (FASTER, (1.20, 1.02, 1.30), "partly"),  # faster beyond doubt, by half of the claim
    (FASTER, (1.19, 1.15, 1.30), "does not hold"),  # by less than half
    (FASTER, (1.30, 0.98, 1.60), "does not hold"),  # the interval has no effect in it
    (FASTER, (1.30, 1.00, 1.60), "does not hold"),
    (FASTER, (1.45, 0.90, 2.00), "does not hold"),
    (FASTER, (0.80,), "does not hold"),
    (FASTER, (1.00,), "does not hold"),
    (SMALLER, (0.60, 0.55, 0.62), "holds"),
    (SMALLER, (0.30,), "exceeds"),
    (SMALLER, (0.30, 0.20, 0.55), "holds"),
    (SMALLER, (0.80, 0.70, 0.90), "partly"),
    (SMALLER, (0.83, 0.70, 0.90), "does not hold"),
    (SMALLER, (0.80, 0.70, 1.10), "does not hold"),
    (SMALLER, (1.20,), "does not hold"),
    (SHARE, (0.30,), "holds"),
    (SHARE, (0.404,), "holds"),
    (SHARE, (0.41,), "does not hold"),  # a size has no direction
    (SHARE, (0.10,), "does not hold"),
    (MORE, (1.30, 1.10, 1.50), "holds"),  # an open range has no beyond
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


def broken(old: str, new: str) -> ModuleType:
    """Return ``report`` with a piece of its source replaced."""
    source, module = Path(book.__file__).read_text(), ModuleType("uavlab_lab.claims.broken")
    module.__file__ = book.__file__
    assert source.count(old) == 1
    exec(compile(source.replace(old, new), "broken", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("near) >= 0", "near) > 0"),
        ("round(value, claim.digits) - near", "value - near"),
        ("_upper(claim) > claim.neutral", "True"),
        ("weak = value if weak is None else weak", "weak = value"),
        ("claim.neutral) <= 0", "claim.neutral) < 0"),
        ("round(weak, claim.digits) - far) > 0", "round(value, claim.digits) - far) > 0"),
        ("round(weak, claim.digits) - far) > 0", "round(weak, claim.digits) - far) >= 0"),
        ("2 * sign * (value", "4 * sign * (value"),
        ("2 * sign * (value", "1 * sign * (value"),
        ("math.inf if claim.high is None", "claim.low if claim.high is None"),
        ("<= _upper(claim) else", "else"),
    ],
)
def test_a_broken_judge_is_caught(old: str, new: str) -> None:
    assert wrong(broken(old, new).judge) != []


I9 = "Intel(R) Core(TM) i9-9900K CPU @ 3.60GHz"
MACHINES = {  # device and CPU
    "cpu": ("Abacus", "Abacus"),
    "Core i9": (I9, I9),
    "gpu": ("NVIDIA H200", "Abacus"),
    "gpu beside a Core i9": ("NVIDIA H200", I9),
    "RTX 3090": ("NVIDIA GeForce RTX 3090", "Abacus"),
    "RTX 3090 Ti": ("NVIDIA GeForce RTX 3090 Ti", "Abacus"),
}


def faults(verdict: Callable[[Claim, Any], str]) -> list[tuple[str, str]]:
    """Return every claim of the ledger that a number decides which may not, or that one does not which may, by machine.

    A claim is open to numbers of a machine if its verdict follows them: from within the range, and far outside.
    """
    wrong = []
    for each in ledger():
        measured = each.measure and each.measure not in book.COUNTED
        for name, (device, cpu) in MACHINES.items():
            about_us = each.subject == "technique" or each.metric.startswith("device utilisation")  # of this program
            testable = measured and each.standing == "judged" and about_us
            kind_fits = each.device != "gpu" or device != cpu
            model_fits = not each.only or (name.endswith(each.only) and (each.device == "cpu") == (cpu == I9))
            expected = testable and kind_fits and model_fits
            verdicts = [
                verdict(each, record(**{each.claim: entry(number)}, device=device, cpu=cpu))
                for number in (each.low + (each.high is None), -1.0 if each.neutral is None else each.neutral, None)
            ]
            ruled = {"judged": "not testable here"}.get(each.standing, each.standing)
            if expected and verdicts != ["holds", "does not hold", "not testable here"]:
                wrong.append((each.claim, name))
            if not expected and (len(set(verdicts)) > 1 or (each.standing != "arithmetic" and verdicts[0] != ruled)):
                wrong.append((each.claim, name))
    return wrong


def test_no_number_decides_a_claim_about_another_device_or_program() -> None:
    assert faults(verdict) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(elsewhere or", "(False or"),
        ("and not (record and of_this_program(claim))", ""),
        (' and claim.metric.startswith("device utilisation")', ""),
        ("not arithmetic and (", "False and ("),
        ("(record and not applies", "(False and not applies"),
        ('(claim.device != "gpu" or has_gpu) and', "True and"),
        ('claim.device != "gpu" or has_gpu', "has_gpu"),
        ('has_gpu = machine["device"] !=', 'has_gpu = machine["device"] =='),
        ('f"{claim.only.lower()}-"', '"-"'),
        ('f"{claim.only.lower()}-" in f"{model}-"', "claim.only.lower() in model"),
        ('if claim.device == "cpu" else machine["device"]', 'if False else machine["device"]'),
        ("model = _plain(device_of(claim, machine))", "model = device_of(claim, machine).lower()"),
        ('(NOT_BUILT, "ill-defined")', '(NOT_BUILT, "")'),
        ("return REFUTED if arithmetic and", "return REFUTED if"),
        (
            'if entry["value"] is None:\n        return NOT_TESTABLE',
            'if entry["value"] is None:\n        return "holds"',
        ),
    ],
)
def test_a_verdict_on_another_device_is_caught(old: str, new: str) -> None:
    assert faults(broken(old, new).verdict) != []


def test_verdicts_by_machine() -> None:
    by_name = {each.claim: each for each in ledger()}

    def on(name: str, device: str, *number: float | None) -> str:
        return verdict(by_name[name], record(**{name: entry(*number)}, device=device))

    assert on("compile", "Abacus", 1.10) == "not testable here"
    assert on("compile", "H200", 1.10) == "holds"
    assert on("compile", "H200", 2.0) == "exceeds"
    assert on("scenario-a", "H200", 2.86) == "not testable here"
    assert on("scenario-a", "RTX 3090", 2.86) == "holds"
    assert on("scenario-a", "RTX 3090 Ti", 2.86) == "not testable here"
    assert on("cpu-not-applicable", "Abacus", 1) == "not testable here"  # another CPU
    assert on("cpu-not-applicable", "12th Gen Intel(R) Core(TM) i9-12900K", 1) == "not testable here"  # a GPU's record
    assert on("interval-total", "RTX 3090", 2.0) == "not testable here"  # eight devices
    assert on("map-step", "H200", 76) == "not testable here"  # another program
    assert on("interval-10", "Abacus", 0.75) == "refuted by arithmetic"  # whatever was measured
    assert on("prenormalised", "H200", 3.0) == on("prenormalised", "Abacus", 3.0) == "holds"
    here = {"machine": describe("cpu"), "date": "", "measured": {}}
    assert verdict(by_name["compile"], here) == "not testable here"
    assert verdict(by_name["prenormalised"], here) == "not measured"
    unknown = {"machine": {"device": "H200"}, "date": "", "measured": {}}
    assert verdict(by_name["compile"], unknown) == "not testable here"  # an older record, whose CPU is not named
    assert verdict(by_name["compile"], record(device="H200")) == "not measured"


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
    assert format_range(1.0, None, "ratio", 1.0) == "more than 1.00x"  # no effect is not what is claimed
    assert texts(rows(select(["map-constants"]), None)[0])[1] == "more than 1.00x"


def test_an_installed_package_is_not_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(book, "FOLDER", tmp_path)
    assert book.own_path("cpu").parent == tmp_path
    monkeypatch.setattr(book.installation, "INSTALLED", True)
    assert book.own_path("cpu").parent == Path("figures", "records")


def test_a_number_of_a_cpu_is_named_by_its_cpu_whatever_gpu_is_beside_it() -> None:
    (row,) = rows(select(["cpu-not-applicable"]), record("H200", cpu=I9, **{"cpu-not-applicable": entry(1)}))
    assert (row["verdict"], row["machine"]) == ("does not hold", I9)
