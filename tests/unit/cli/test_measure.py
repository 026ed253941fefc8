"""Measuring: suites into records."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_runner import uavlab
from uavlab.bench import profile_run, registry


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def test_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def suite(rounds: int, device: str) -> dict[str, Any]:
        return {"suite": "env", "rounds": rounds, "rows": [{"agents": 5, "device": device}]}

    monkeypatch.setitem(registry.SUITES, "env", suite)
    ended = uavlab("bench", "env", "--rounds", "3", "--out", "env.json", "--json")
    assert ended.code == 0
    assert json.loads((tmp_path / "env.json").read_text()) == ended.told
    assert ended.told["command"] == "uavlab bench env --rounds 3 --out env.json --json"
    assert ended.told["rows"] == [{"agents": 5, "device": "auto"}]
    for wrong in (["all"], ["env", "--rounds", "2"], ["env", "--device", "tpu"]):
        assert uavlab("bench", *wrong).code == 2


def test_options_of_the_ladder_belong_to_it() -> None:
    for wrong in (["env", "--full"], ["guard", "--threads", "2"]):
        ended = uavlab("bench", *wrong)
        assert ended.code == 2
        assert "--threads and --full belong to `bench ladder`" in ended.err


def test_toggles() -> None:
    ended = uavlab("toggles", "--device", "cpu", "--json")
    assert ended.code == 0
    assert {"name", "values", "seam", "equality", "claim"} <= set(ended.told["rows"][0])
    assert ended.out.startswith("toggle ")


def test_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def profiled(preset: str, *layers: Any, **options: Any) -> dict[str, Any]:
        asked.append((preset, options))
        return {"verdict": "launch-bound: so it is", "stages": [], "candidates": []}

    monkeypatch.setattr(profile_run, "profiled", profiled)
    ended = uavlab("profile", "leader_follower_quick", "--rounds", "5", "--all", "--out", "p.json", "--json")
    assert ended.code == 0
    assert asked == [("leader_follower_quick", {"rounds": 5, "trace": None, "every": True})]
    assert "launch-bound: so it is" in ended.out
    assert json.loads((tmp_path / "p.json").read_text()) == ended.told
