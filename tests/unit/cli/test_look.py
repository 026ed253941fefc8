"""Looking things up: presets and the doctor."""

import os
from pathlib import Path

import pytest

from tests.support.cli_runner import uavlab
from uavlab.bench import doctor
from uavlab.experiment.presets import presets as known


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def test_presets() -> None:
    ended = uavlab("presets", "--json")
    assert ended.code == 0
    assert set(ended.told) == set(known())
    assert {"leader_follower", "leader_follower_quick", "leader_follower_published"} <= set(ended.told)
    assert ended.out.count("\n") == len(ended.told) + 1


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SIDE", dict.fromkeys(doctor.SIDE, 8))
    ended = uavlab("doctor", "--json")
    assert ended.code == 0
    assert all({"what", "value", "usable", "advice"} == set(row) for row in ended.told["rows"])
    assert len(ended.out.splitlines()) == len(ended.told["rows"]) + 1


def test_doctor_of_a_process() -> None:
    ended = uavlab("doctor", "--pid", str(os.getpid()), "--json")
    assert ended.code == 0
    lines = [command["line"] for command in ended.told["commands"]]
    assert f"py-spy dump --pid {os.getpid()}" in lines
    assert all(line in ended.out for line in lines)
    assert "residency, not throughput" in ended.out
    assert uavlab("doctor", "--pid", str(2**22 + 1)).code == 2  # more than Linux gives
