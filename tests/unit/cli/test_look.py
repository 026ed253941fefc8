"""The commands presets and doctor."""

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
    assert set(ended.json) == set(known())
    assert {"leader_follower", "leader_follower_quick", "leader_follower_published"} <= set(ended.json)
    assert ended.out.count("\n") == len(ended.json) + 1


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "matrix_rate", lambda device, precision: 1e9)
    ended = uavlab("doctor", "--json")
    assert ended.code == 0
    assert all({"what", "value", "usable", "advice"} == set(row) for row in ended.json["rows"])
    assert len(ended.out.splitlines()) == len(ended.json["rows"]) + 1
