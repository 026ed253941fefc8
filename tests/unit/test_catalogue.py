"""Rows of the catalogue that need no process of their own end as they say, in one line, and write nothing."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.bad_inputs import Row
from tests.support.catalogue import ROWS, differences, listing, prepare, run_row
from tests.support.cli_runner import Result, uavlab
from tests.support.fixtures_config import train_tiny
from tests.support.registries import registered


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run with one checkpoint."""
    folder = tmp_path_factory.mktemp("runs") / "complete"
    train_tiny(folder, keep=1)
    return folder


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Work in a folder of the test's own, on a machine without a GPU, and forget what a row registers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with registered():
        yield


@pytest.mark.parametrize("row", [row for row in ROWS if not row.alone], ids=lambda row: row.id)
def test_each_row_ends_as_it_says(row: Row, monkeypatch: pytest.MonkeyPatch, complete_run: Path) -> None:
    for name, value in row.env.items():
        monkeypatch.setenv(name, value)
    prepare(row, complete_run)
    before = listing()
    assert differences(row, run_row(row)) == []
    assert listing() == before


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
