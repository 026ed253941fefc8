"""Rows of the catalogue that need no process of their own end as they say, in one line, and write nothing."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bad_inputs import Row
from tests.support.catalogue import ROWS, check_row, complete_run, differences, here, listing
from tests.support.cli_runner import Result, uavlab

__all__ = ["complete_run", "here"]  # fixtures
PASSED: set[str] = set()  # rows that ended as they say


@pytest.mark.parametrize("row", [row for row in ROWS if not row.alone], ids=lambda row: row.id)
def test_each_row_ends_as_it_says(
    row: Row, monkeypatch: pytest.MonkeyPatch, complete_run: Path, proof: Callable[[str, str], None]
) -> None:
    check_row(row, monkeypatch, complete_run)
    PASSED.add(row.id)
    kinds = {name.split()[0] for name in PASSED}
    proof("bad input", f"{len(PASSED)} rows of {len(kinds)} kinds, each one whole line and nothing written")


def test_no_row_is_there_twice() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    "result",
    [
        Result(3, "", "ConfigError: no."),
        Result(2, "", "ConfigError: no"),
        Result(2, "", "ConfigError: no.\nConfigError: no."),
        Result(2, "", "FileError: no."),
        Result(2, "", "Traceback\nConfigError: no."),
    ],
)
def test_another_end_is_noticed(result: Result) -> None:
    row = Row("", "", "no.")
    assert differences(row, Result(2, "", "ConfigError: no.\n")) == []
    assert differences(row, result) != []


def test_whatever_is_written_is_noticed() -> None:
    Path("a").write_text("1")
    before = listing()
    Path("b").mkdir()
    assert listing() != before
    Path("b").rmdir()
    assert listing() == before
    Path("a").write_text("2")
    os.utime("a", ns=(0, 1))
    assert listing() != before


def test_a_refusal_is_also_an_object() -> None:
    row = next(row for row in ROWS if row.id == "cli-2 path")
    record = uavlab(*shlex.split(row.command), "--json").json
    assert record == {"error": "ConfigError", "message": row.message, "exit_code": 2}
