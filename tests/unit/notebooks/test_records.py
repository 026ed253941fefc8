"""Records by name: those of a folder that match, or those that are named."""

import json
from pathlib import Path

import pytest

from uavlab.core.errors import FileError
from uavlab_lab.lessons.records import read_records


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(("transfer_b", "transfer_a", "other")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"number": number}))
    return tmp_path


def test_those_that_match(folder: Path) -> None:
    assert read_records([], "transfer_*.json", folder) == {"transfer_a": {"number": 1}, "transfer_b": {"number": 0}}
    assert read_records([], "none_*.json", folder) == {}


def test_those_that_are_named(folder: Path) -> None:
    assert read_records([str(folder / "other.json")], "transfer_*.json", folder) == {"other": {"number": 2}}
    with pytest.raises(FileError, match=r"missing\.json: cannot be read"):
        read_records([str(folder / "missing.json")], "transfer_*.json", folder)
