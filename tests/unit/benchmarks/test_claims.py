"""Claims are judged as by hand, none by a number of another device or program; records are whole, damaged ones refused.

Every claim has words, a source and numbers; numbers of arithmetic are computed again.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import sizes
from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.learners.masac import loop
from uavlab_lab.claims import ledger as book
from uavlab_lab.claims import mapping, measures, report, telemetry
from uavlab_lab.claims.ledger import Claim, ledger, select
from uavlab_lab.claims.measures import LOOP, Bench, Estimate, NotTestable
from uavlab_lab.claims.report import judge, measure, measure_claim, newest, read, rows, verdict
from uavlab_lab.measure.compare import IN_A_ROW, build_call, loading_calls

TINY: dict[str, Any] = {"hidden": 8, "batch": 8, "learning_starts": 16, "capacity": 128, "device": "cpu"}
STAGE_1 = {"stage": 1}
COLUMNS = [
    *("claim", "wording", "source", "device", "unit", "neutral", "claimed_low", "claimed_high", "measured"),
    *("low", "high", "verdict", "command", "note", "machine"),
]
BY_NAME = {claim.claim: claim for claim in ledger()}
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


def entry(value: float | None, low: float | None = None, high: float | None = None, note: str = "") -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "note": note}


def record(device: str = "Abacus", date: str = "2026-01-01", cpu: str = "Abacus", **measured: Any) -> dict[str, Any]:
    """Return a record of a CPU, or of a GPU beside the CPU ``cpu``, whose entries belong to the present measures."""
    entries = {
        name: {"digest": BY_NAME[name].digest if name in BY_NAME else "", **one} for name, one in measured.items()
    }
    return {"machine": {"device": device, "cpu": cpu}, "date": date, "measured": entries}


@pytest.fixture
def bench() -> Bench:
    return Bench(3, **TINY)


class TestLedger:
    def test_every_claim_is_whole(self) -> None:
        with book.LEDGER.open(newline="") as file:
            assert len({len(row) for row in csv.reader(file)}) == 1
        assert len(BY_NAME) == len(ledger())
        for claim in ledger():
            assert all((claim.system, claim.technique, claim.setting, claim.metric, claim.measure, claim.note)), claim
            assert claim.device in ("gpu", "cpu", "any"), claim
            assert claim.subject in ("technique", "program"), claim
            assert claim.standing in ("judged", "arithmetic", "ill-defined"), claim
            assert claim.source.startswith(("guide to ", "a companion document")), claim
            assert claim.wording.endswith("."), claim
            assert claim.standing != "arithmetic" or claim.device == "any", claim
            assert claim.high is None or claim.low <= claim.high, claim
            if claim.neutral is not None and claim.high is not None:
                assert claim.neutral <= claim.low or claim.high <= claim.neutral, claim

    def test_numbers_of_arithmetic_by_hand(self) -> None:
        calculated = {claim.claim: claim.call for claim in ledger() if claim.measure == "constant"}
        calculated = {name: call["value"] for name, call in calculated.items() if "value" in call}
        assert calculated == pytest.approx(BY_HAND, rel=1e-3)

    @pytest.mark.parametrize(
        ("settings", "missions"),
        [((1500, 64, 3, 14), 4800), ((1000, 48, 3, 12), 2769), ((800, 48, 2, 10), 1745), ((500, 32, 2, 8), 889)],
    )
    def test_missions_by_the_published_formula(self, settings: tuple[int, ...], missions: int) -> None:
        assert round(mapping.count_missions(*settings)) == missions

    def test_a_digest_follows_measure_arguments_and_stages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        staged, plain = BY_NAME["stage-1"], BY_NAME["cached-forwards"]
        before = staged.digest, plain.digest
        others = replace(plain, unit="s"), replace(plain, measure="x"), replace(plain, arguments="call: cycle")
        assert len({*before, *(claim.digest for claim in others)}) == 5
        assert replace(plain, note="another", low=1.0, arguments=f" {plain.arguments} ").digest == plain.digest
        monkeypatch.setattr(book, "STAGES", [{}, {"update": "vmap"}])
        assert staged.digest != before[0]
        assert plain.digest == before[1]

    def test_claims_are_selected_in_the_order_of_the_ledger(self) -> None:
        assert select() == ledger()
        assert [claim.claim for claim in select(["total", "compile"])] == ["compile", "total"]
        assert select(["total"], "scale_out") == []
        with pytest.raises(ConfigError, match=r"unknown claim 'totl' \(did you mean 'total'\?\)"):
            select(["totl"])


class TestRecords:
    def test_entries_are_written_at_once_and_others_stay(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = {
            "gain": Estimate(1.234567, 1.1, 1.39999, "so it is", 17),
            "lost": ResourceError("no memory"),
            "duplicates": ValueError("a fault"),
        }

        def answer(name: str) -> Estimate:
            if isinstance(result := answers[name], Exception):
                raise result
            return result

        monkeypatch.setattr(report, "MEASURES", {name: lambda bench, name=name, **_: answer(name) for name in answers})
        path, lines = tmp_path / "new" / "claims.json", list[str]()
        names = "stage-1", "acting-loss", "env-share", "duplicate-waste-2"
        with pytest.raises(ValueError, match="a fault"):
            measure([BY_NAME[name] for name in names], path, bench, lines.append)
        saved = read(path)
        assert list(saved["measured"]) == ["stage-1", "acting-loss"]
        assert saved["measured"]["stage-1"] == {
            **{"value": 1.235, "low": 1.1, "high": 1.4, "note": "so it is", "rounds": 17},
            **{"commit": saved["machine"]["commit"], "digest": BY_NAME["stage-1"].digest},
        }
        assert saved["measured"]["acting-loss"]["note"] == "no memory"
        gone = "env-share: nothing measures it"
        assert lines == ["stage-1: 1.24x, claimed 1.50x to 1.80x", "acting-loss: -, claimed 5 % to 15 %", gone]

    @pytest.mark.parametrize(
        "value",
        [
            *({}, [], {"measured": {}}, {"measured": [], "date": "", "machine": {"device": ""}}),
            *({**record(), "date": 3}, {**record(), "machine": {"device": None}}, {**record(), "machine": []}),
            *(record(a={}), record(a=entry("1")), record(a={**entry(1.0), "note": None})),  # type: ignore[arg-type]
        ],
    )
    def test_damaged_records_are_refused_and_kept(self, bench: Bench, tmp_path: Path, value: Any) -> None:
        path = tmp_path / "claims_x.json"
        path.write_text(json.dumps(value))
        for call in (lambda: read(path), lambda: measure(select(["equal-updates"]), path, bench)):
            with pytest.raises(FileError, match=r"claims_x\.json"):
                call()
        assert path.read_text() == json.dumps(value)

    def test_records_of_the_repository_can_be_read(self) -> None:
        paths = [*report.FOLDER.glob("claims_*.json")]
        assert paths
        for path in paths:
            assert any(row["measured"] is not None and row["machine"] for row in rows(select(), read(path)))

    def test_the_own_record_comes_first_then_the_newest(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(report, "FOLDER", tmp_path)
        own = tmp_path / "claims_own.json"
        assert newest(own)[0] is None
        older, newer = record("a", "2026-01-01"), record("b", "2026-02-01")
        for name, one in (("b", newer), ("a", older)):
            (tmp_path / f"claims_{name}.json").write_text(json.dumps(one))
        assert newest(own)[0] == newer | {"others": [older]}
        own.write_text(json.dumps(record("own", "2025-01-01")))
        assert newest(own) == (record("own", "2025-01-01") | {"others": [newer, older]}, "Measured on own.")
        assert report.own_path("cpu").parent == tmp_path
        monkeypatch.setattr(report.installation, "INSTALLED", True)  # an installed package is not written to
        assert report.own_path("cpu").parent == Path("figures", "records")


class TestRows:
    def test_a_measured_row(self) -> None:
        measured = record(**{"cached-forwards": entry(1.25, 1.21, 1.3, "17 ms before")}, device="H200")
        (row,) = rows(select(["cached-forwards"]), measured)
        assert list(row) == COLUMNS
        assert [row[name] for name in COLUMNS[3:13]] == [
            *("gpu", "ratio", 1, 1.4, 1.6, 1.25, 1.21, 1.3, "partly"),
            *("uavlab claims --measure cached-forwards",),
        ]
        assert (row["source"], row["machine"]) == ("guide to leader-follower training, lines 683, 830", "H200")
        assert row["note"].endswith("of agents. 95 % interval 1.21x to 1.30x. 17 ms before.")

    def test_few_rounds_have_a_range_and_no_interval(self) -> None:
        measured = record(**{"map-constants": entry(1.01, 0.99, 1.03) | {"rounds": 5}})
        assert rows([BY_NAME["map-constants"]], measured)[0]["note"].endswith("Range of 5 rounds: 0.99x to 1.03x.")

    def test_a_gpus_record_decides_what_a_cpus_does_not(self) -> None:
        names = ["cached-forwards", "map-constants", "final-utilisation", "equal-updates", "compile"]
        here = record(**{"cached-forwards": entry(1.12), "map-constants": entry(1.4, 1.3, 1.5)})
        there = {"cached-forwards": entry(1.5), "map-constants": entry(0.5), "final-utilisation": entry(0.75)}
        joined = rows(select(names), here | {"others": [record("H200", **there)]})
        found = {row["claim"]: (row["measured"], row["verdict"], row["machine"]) for row in joined}
        assert found == {
            "cached-forwards": (1.5, "holds", "H200"),
            "map-constants": (1.4, "holds", "Abacus"),  # the first that decides
            "final-utilisation": (0.75, "holds", "H200"),
            "equal-updates": (1_000_000, "refuted by arithmetic", None),
            "compile": (None, "not testable here", None),
        }
        notes = {row["claim"]: row["note"] for row in joined}
        assert notes["cached-forwards"].endswith("On Abacus: 1.12x, not testable here.")
        assert notes["final-utilisation"].endswith("Decided of this program on this GPU, not of theirs.")

    @pytest.mark.parametrize(
        "changes", [{"arguments": "stages: [draw]"}, {"measure": "lost"}, {"unit": "s"}, {"measure": ""}]
    )
    def test_an_entry_of_another_measure_is_void(self, changes: Any) -> None:
        claim, saved = BY_NAME["env-share"], record(**{"env-share": entry(0.35)})
        assert rows([claim], saved)[0]["measured"] == 0.35  # whose measure is gone
        assert rows([replace(claim, **changes)], saved)[0]["measured"] is None

    def test_what_nothing_decides_is_counted_and_shown_on_request(self) -> None:
        claims = [replace(BY_NAME["compile"], standing="not built yet", measure=""), BY_NAME["total"]]
        two = rows(claims, record("H200", total=entry(4.2, 4.1, 4.4, note="\x1b[2J")))
        text, whole = report.format_rows(two, every=False), report.format_rows(two)
        assert text.splitlines()[1].split() == ["total", "2.30x", "to", "4.00x", "gpu", "4.20x", "exceeds"]
        assert "compile  " not in text
        assert "compile  " in whole
        count = "2 claims: 1 not built yet, 1 exceeds"
        hidden = "1 of them, which nothing decides here, are not shown; uavlab claims --all shows them."
        assert text.endswith(f"{count}\n{hidden}")
        assert whole.endswith(count)
        assert "(guide to leader-follower training, lines 840, 1099)" in text
        assert "\x1b" not in whole
        assert "    uavlab claims --measure total" in text.splitlines()
        assert [row["command"] for row in two] == ["", "uavlab claims --measure total"]

    def test_numbers_in_words(self) -> None:
        texts = [
            (None, "ratio", "-"),
            (1.0649, "ratio", "1.06x"),
            (0.0042, "fraction", "0.42 %"),
            (1, "boolean", "yes"),
        ]
        texts += [(10_000_000, "updates", "10,000,000 updates"), (0.0712, "h", "0.0712 h")]
        assert [report.format_number(value, unit) for value, unit, _ in texts] == [text for *_, text in texts]
        assert report.format_range(0.3, 0.4, "fraction") == "30 % to 40 %"
        assert report.format_range(1.0, None, "ratio", 1.0) == "more than 1.00x"  # no effect is not what is claimed


def claim(low: float, high: float | None, digits: int = 2, neutral: float | None = None) -> Claim:
    numbers = {"low": low, "high": high, "digits": digits, "neutral": neutral}
    return replace(BY_NAME["total"], **numbers)  # type: ignore[arg-type]


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
    (FASTER, (1.30, 1.00, 1.60), "does not hold"),  # the interval has no effect in it
    (FASTER, (1.45, 0.90, 2.00), "does not hold"),
    (FASTER, (0.80,), "does not hold"),
    (SMALLER, (0.60, 0.55, 0.62), "holds"),
    (SMALLER, (0.30,), "exceeds"),
    (SMALLER, (0.30, 0.20, 0.55), "holds"),
    (SMALLER, (0.80, 0.70, 0.90), "partly"),
    (SMALLER, (0.83, 0.70, 0.90), "does not hold"),
    (SMALLER, (0.80, 0.70, 1.10), "does not hold"),
    (SHARE, (0.30,), "holds"),
    (SHARE, (0.404,), "holds"),
    (SHARE, (0.41,), "does not hold"),  # a size has no direction
    (MORE, (1.30, 1.10, 1.50), "holds"),  # an open range has no beyond
    (MORE, (1.02, 0.97, 1.08), "does not hold"),
    (claim(0.5, None), (0.6,), "holds"),  # at least a size
    (claim(0.5, None), (0.4,), "does not hold"),
    (claim(10, 10, digits=0), (200,), "does not hold"),
]


def test_numbers_are_judged_as_by_hand() -> None:
    assert [(numbers, judge(of, *numbers)) for of, numbers, expected in CASES if judge(of, *numbers) != expected] == []


I9 = "Intel(R) Core(TM) i9-9900K CPU @ 3.60GHz"
VERDICTS = [  # claim, device and CPU of the record, number, verdict
    ("compile", "Abacus", "Abacus", 1.10, "not testable here"),  # a claim about a GPU, a number of a CPU
    ("compile", "H200", "Abacus", 1.10, "holds"),
    ("compile", "H200", "Abacus", 2.0, "exceeds"),
    ("compile", "H200", "Abacus", None, "not testable here"),  # the reason is in its note
    ("compile", "H200", None, 1.10, "not testable here"),  # an older record, whose CPU is not named
    ("scenario-a", "H200", "Abacus", 2.86, "not testable here"),
    ("scenario-a", "NVIDIA GeForce RTX 3090", "Abacus", 2.86, "holds"),
    ("scenario-a", "NVIDIA GeForce RTX 3090 Ti", "Abacus", 2.86, "not testable here"),
    ("cpu-not-applicable", "Abacus", "Abacus", 1, "not testable here"),  # another CPU
    ("cpu-not-applicable", I9, I9, 1, "does not hold"),
    ("cpu-not-applicable", "H200", I9, 1, "does not hold"),  # whatever GPU is beside it
    ("cpu-not-applicable", "H200", "Abacus", 0, "not testable here"),
    ("interval-total", "H200", "Abacus", 2.0, "not testable here"),  # eight devices
    ("map-step", "H200", "Abacus", 76, "not testable here"),  # another program
    ("final-utilisation", "H200", "Abacus", 0.75, "holds"),  # the utilisation of a GPU is one of this program
    ("final-utilisation", "Abacus", "Abacus", 0.75, "not testable here"),
    ("full-steps", "H200", "Abacus", 4800, "ill-defined"),
    ("interval-10", "H200", "Abacus", 0.75, "refuted by arithmetic"),  # whatever was measured
    ("fast-batch", "H200", "Abacus", 9.0, "holds"),  # by arithmetic
    ("prenormalised", "H200", "Abacus", 3.0, "holds"),
    ("prenormalised", "Abacus", "Abacus", 3.0, "holds"),
    ("prenormalised", "Abacus", "Abacus", 0.5, "does not hold"),
]


@pytest.mark.parametrize(("name", "device", "cpu", "number", "expected"), VERDICTS)
def test_no_number_decides_a_claim_about_another_device_or_program(
    name: str, device: str, cpu: str | None, number: float | None, expected: str
) -> None:
    machine = {"device": device} | ({"cpu": cpu} if cpu else {})
    assert verdict(BY_NAME[name], record(**{name: entry(number)}) | {"machine": machine}) == expected


def test_without_a_number_only_the_document_decides() -> None:
    assert verdict(BY_NAME["compile"], None) == verdict(BY_NAME["compile"], record("H200")) == "not measured"
    assert verdict(BY_NAME["full-steps"], None) == "ill-defined"
    assert verdict(BY_NAME["interval-10"], None) == "refuted by arithmetic"


def timed(ms: list[float], **more: Any) -> list[dict[str, Any]]:
    """Return rows of ``compare`` for these times, with an interval of 10 % to each side."""
    overs = [ms[0] / one for one in ms]
    more = {"first_call_s": 0.5, "rounds": 7, "fell_back": {}, **more}
    return [
        {"setting": str(at), "ms": one, "over_first": over, "low": 0.9 * over, "high": 1.1 * over, **more}
        for at, (one, over) in enumerate(zip(ms, overs, strict=True))
    ]


class TestMeasures:
    def test_numbers_by_hand(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """12 ms become 8 with 2 agents, 45 become 15 with 4."""
        answers = {2: timed([12.0, 8.0]), 4: timed([45.0, 15.0])}
        asked: list[int] = []

        def compare(preset: str, settings: Mapping[str, Mapping[str, Any]], **how: Any) -> list[dict[str, Any]]:
            asked.append(settings["0"]["followers"] + 1)
            return answers[asked[-1]]

        monkeypatch.setattr(measures, "compare", compare)
        interval = pytest.approx(1.35), pytest.approx(1.65)
        gained = measures.gain(bench, "update", LOOP, STAGE_1)
        assert gained == Estimate(1.5, *interval, "12 ms before, 8 ms after", 7)
        lost = measures.lost(bench, call="update", after=STAGE_1)
        assert (lost.value, lost.low, lost.high) == pytest.approx((1 / 3, 1 - 1 / 1.35, 1 - 1 / 1.65))
        assert asked == [2]  # what several need is measured once
        grown = measures.growth(bench, STAGE_1)
        assert (grown.value, grown.low, grown.high) == pytest.approx((2.0, 2.7 / 1.65, 3.3 / 1.35))
        assert measures.helps(bench, call="update", after=STAGE_1).value == 1
        monkeypatch.setattr(measures, "compare", lambda *_, **__: timed([12.0, 11.5]))
        assert measures.helps(bench, call="update", after={"stage": 2}).value == 0  # the interval reaches no effect

    def test_a_toggle_that_fell_back_is_no_number(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(measures, "compare", lambda *_, **__: timed([1, 1], fell_back={"compile": "no compiler"}))
        with pytest.raises(NotTestable, match="compile cannot be used: no compiler"):
            measures.gain(bench, "update", STAGE_1)
        assert measures.speedup_text(bench, "update", (LOOP,)) == "none, compile cannot be used: no compiler"

    @pytest.mark.parametrize(("agents", "loop", "cached"), [(2, 8, 4), (4, 32, 8)])  # 2 N^2 and 2 N
    def test_evaluations_of_actors(self, bench: Bench, agents: int, loop: int, cached: int) -> None:
        result = measures.duplicates(bench, agents)
        assert result.value == 1 - 1 / agents
        assert result.note.startswith(f"{loop} evaluations of actors in an update, {cached} ")

    def test_measures_run(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(measures, "compile_function", lambda function, *_: function)
        monkeypatch.setattr(measures, "speedup_text", lambda *_: "2.00x")
        plain = loop.evaluate
        assert measure_claim(BY_NAME["compile"], bench).note.endswith("whole batched updates as one function: 2.00x")
        assert loop.evaluate is plain
        assert measures.time_growth(bench, {"update": "batched"}).value > 0
        assert mapping.cached_constants(Bench(3, device="cpu", cells=64, cell=50 / 64)).value > 0
        for name in ("stage-1-utilisation", "amp-memory", "once-utilisation"):
            with pytest.raises(NotTestable, match="needs a GPU: device"):
                measure_claim(BY_NAME[name], bench)

    def test_utilisation_is_what_nvml_reports_or_else_a_profile(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A call of 10 ms in which kernels run for 2 ms; the first third of the readings is left out."""
        clock, readings = [0.0], iter([0.5, 0.75, *[0.25] * 28])

        def call() -> None:
            clock[0] += 0.01

        monkeypatch.setattr(measures.time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(measures, "time_call", lambda call, device: call() or 0.01)
        monkeypatch.setattr(measures, "time_in_turn", lambda calls, *_, **__: {"call": [0.01] * 6})
        monkeypatch.setattr(measures, "profile", lambda *_, **__: [{"device_ms": 1.5}, {"device_ms": 0.5}])
        monkeypatch.setattr(measures, "gpu_load", lambda device: {"load/gpu": next(readings)})
        one = replace(build_call(bench.config(LOOP), "update"), call=call)
        reported = measures.device_share(bench, one)
        assert reported.value == pytest.approx((0.5 + 0.75 + 18 * 0.25) / 20, abs=0.01)  # every 0.1 s for 2 s
        monkeypatch.delattr(measures, "gpu_load")
        assert measures.device_share(bench, one).value == pytest.approx(0.2)


def test_every_remedy_of_loading_draws_the_same_windows() -> None:
    bench = Bench(3, **{**sizes("telemetry"), "batch": 16})
    batches = []
    for path, kind in telemetry.SOURCES.items():
        _, source, _ = loading_calls(telemetry.config(bench, path), kind)
        batches.append(source.next())
    for batch in batches[1:]:
        assert torch.equal(batch.index, batches[0].index)
        torch.testing.assert_close(batch.data.inputs, batches[0].data.inputs, rtol=1e-5, atol=1e-5)
    seconds = {"per_item": 8.0, "once": 2.0, "cached": 1.0, "device": 0.1}
    parts = {f"{path} {part}": [took] * 3 for path, took in seconds.items() for part in ("loader", "model", "both")}
    bench.results["time_paths(){}"] = parts, {}
    result = telemetry.loading_gain(bench)
    assert (result.value, result.low, result.high) == (4.0, 4.0, 4.0)
    assert result.note == "kept window by window 8x, gathered by index 80x"
    rates = telemetry.path_rates(bench, "once")
    assert rates == {"loader": IN_A_ROW * 16 / 2, "model": 16 / 2, "both": 16 / 2}
