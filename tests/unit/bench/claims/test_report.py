"""Records are whole and per machine, damaged ones are refused, and rows hold what notebooks and tables read."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.bench.claims.test_measures import TINY
from uavlab.bench.claims import report as book
from uavlab.bench.claims.ledger import select
from uavlab.bench.claims.measures import Bench, Estimate, NotTestable
from uavlab.bench.claims.report import (
    HEAD,
    format_rows,
    markdown,
    measure,
    measure_claim,
    newest,
    read,
    rows,
    slug,
    texts,
)
from uavlab.core.errors import FileError, ResourceError

COLUMNS = ["claim", "claimed_low", "claimed_high", "measured", "verdict", "command", "unit", "note", "machine"]


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
        assert markdown(HEAD, map(texts, two)).splitlines() == [
            "| claim | claimed | measured here | verdict |",
            "| --- | --- | --- | --- |",
            "| total | 2.30x to 4.00x | 4.20x | holds |",
            "| zero-shot | at least 0.50x | - | not built yet |",
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
