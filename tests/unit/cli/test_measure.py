"""Suites are run and listed by the command line, wherever they are registered; toggles and profiles are printed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_runner import uavlab
from uavlab.bench import profile_run, registry
from uavlab.bench.registry import Option, suite, suites


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a suite from outside, as a person's own program does."""
    monkeypatch.setattr(registry, "REGISTRY", dict(suites()))

    @suite("mine", about="of one's own", options=[Option("depth", "how deep", (1, 8))])
    def mine_suite(rounds: int, device: str, depth: tuple[int, ...] = ()) -> dict[str, Any]:
        return {"rows": [{"agents": 5, "device": device, "depth": depth}]}


def test_bench(tmp_path: Path, mine: None) -> None:
    ended = uavlab("bench", "mine", "--rounds", "3", "--out", "mine.json", "--json")
    assert ended.code == 0
    assert json.loads((tmp_path / "mine.json").read_text()) == ended.json
    assert ended.json["command"] == "uavlab bench mine --rounds 3 --out mine.json --json"
    assert (ended.json["suite"], ended.json["rounds"]) == ("mine", 3)
    assert ended.json["rows"] == [{"agents": 5, "device": "auto", "depth": []}]
    assert uavlab("bench", "mine", "--depth", "2", "--depth", "3", "--json").json["rows"][0]["depth"] == [2, 3]
    for wrong in (["all"], ["mine", "--rounds", "2"], ["mine", "--device", "tpu"], ["mine", "--depth", "9"]):
        assert uavlab("bench", *wrong).code == 2


def test_help_lists_every_suite_and_its_own_options(mine: None) -> None:
    text = " ".join(uavlab("bench", "--help").out.split())
    for name, each in suites().items():
        assert f"`{name}` ({each.about})" in text
    assert "mine: how deep; repeatable." in text
    assert "ladder: 16 agents too." in text


def test_the_registry_is_read_by_bench_alone() -> None:
    look = "import sys, uavlab.cli\ntry: uavlab.cli.main()\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look, "--help"], capture_output=True, text=True)
    assert "Measure here" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_options_of_the_ladder_belong_to_it(mine: None) -> None:
    for wrong in (["env", "--full"], ["guard", "--threads", "2"]):
        ended = uavlab("bench", *wrong)
        assert ended.code == 2
        assert "--threads and --full belong to `bench ladder`" in ended.err


def test_toggles() -> None:
    ended = uavlab("toggles", "--device", "cpu", "--json")
    assert ended.code == 0
    assert {"name", "values", "seam", "equality", "claim"} <= set(ended.json["rows"][0])
    assert ended.out.startswith("toggle ")


def test_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def profile_preset(preset: str, *layers: Any, **options: Any) -> dict[str, Any]:
        calls.append((preset, options))
        return {"verdict": "launch-bound: so it is", "stages": [], "candidates": []}

    monkeypatch.setattr(profile_run, "profile_preset", profile_preset)
    ended = uavlab("profile", "leader_follower_quick", "--rounds", "5", "--all", "--out", "p.json", "--json")
    assert ended.code == 0
    assert calls == [("leader_follower_quick", {"rounds": 5, "trace": None, "every": True})]
    assert "launch-bound: so it is" in ended.out
    assert json.loads((tmp_path / "p.json").read_text()) == ended.json
