"""The ledger on the command line, and two numbers that are counted, end to end."""

from pathlib import Path

import pytest

from tests.support.cli_runner import uavlab
from uavlab.bench.claims import report as book
from uavlab.bench.claims.report import ledger
from uavlab.cli.claims import SYSTEMS


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "FOLDER", tmp_path / "records")


def test_nothing_is_written_or_measured_by_default(tmp_path: Path) -> None:
    ended = uavlab("claims", "--json")
    assert ended.code == 0
    assert [row["claim"] for row in ended.json["rows"]] == [claim.claim for claim in ledger()]
    assert all(row["verdict"] for row in ended.json["rows"])
    assert "Not measured on this machine" in ended.out
    assert list(tmp_path.iterdir()) == []


def test_counted_claims_end_to_end(tmp_path: Path) -> None:
    names = ["duplicate-waste-2", "equal-updates"]
    ended = uavlab("claims", *(part for name in names for part in ("--measure", name)), "--rounds", 3, "--json")
    assert ended.code == 0, ended.err
    rows = ended.json["rows"]
    assert [(row["claim"], row["measured"], row["verdict"]) for row in rows] == [
        ("duplicate-waste-2", 0.5, "holds"),
        ("equal-updates", 1_000_000, "does not hold"),
    ]
    assert rows[0]["command"] == "uavlab claims --measure duplicate-waste-2"
    assert "equal-updates: 1,000,000 updates, claimed 10,000,000 updates" in ended.err
    recorded = uavlab("claims", "--json").json["rows"]  # from the record of this machine
    assert [row for row in recorded if row["claim"] in names] == rows


def test_numbers_in_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    assert uavlab("claims", "--measure", "equal-updates", "--out", path).code == 0
    assert [file.name for file in tmp_path.iterdir()] == ["mine.json"]
    (row,) = [row for row in uavlab("claims", "--out", path, "--json").json["rows"] if row["measured"]]
    assert row["claim"] == "equal-updates"
    assert uavlab("claims", "--out", tmp_path / "none.json").code == 3


def test_one_system() -> None:
    assert set(SYSTEMS) == {claim.system for claim in ledger()}
    rows = uavlab("claims", "--system", "assignment", "--json").json["rows"]
    assert [row["claim"] for row in rows] == ["zero-shot"]


def test_mistakes() -> None:
    ended = uavlab("claims", "--measure", "duplicate-waste")
    assert ended.code == 2
    assert "did you mean 'duplicate-waste-" in ended.err
    assert uavlab("claims", "--system", "snakes").code == 2
    assert uavlab("claims", "--rounds", "2").code == 2
