"""Measuring: suites into records."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.typed import uavlab
from uavlab.app import suites


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def test_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def suite(rounds: int, device: str) -> dict[str, Any]:
        return {"suite": "env", "rounds": rounds, "rows": [{"agents": 5, "device": device}]}

    monkeypatch.setitem(suites.SUITES, "env", suite)
    ended = uavlab("bench", "env", "--rounds", "3", "--out", "env.json", "--json")
    assert ended.code == 0
    assert json.loads((tmp_path / "env.json").read_text()) == ended.told
    assert ended.told["command"] == "uavlab bench env --rounds 3 --out env.json --json"
    assert ended.told["rows"] == [{"agents": 5, "device": "auto"}]
    for wrong in (["all"], ["env", "--rounds", "2"], ["env", "--device", "tpu"]):
        assert uavlab("bench", *wrong).code == 2
