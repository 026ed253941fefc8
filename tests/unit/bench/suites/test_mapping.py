"""Rows of the suite hold what they promise, and all paths fly the same missions."""

import pytest
import torch

from tests.support.fixtures_config import SMALL_MISSION
from uavlab.bench.suites import mapping
from uavlab.core.types import leaves
from uavlab.envs.mapping.numpy_reference import HostMapping
from uavlab.runtime.runtime import Runtime

SMALL = HostMapping(cells=41, cell=0.5, lattice=5, reach=12.0)


def test_rows() -> None:
    record = mapping.maps_suite(3, "cpu", missions=(1, 2), workers=2, compiled=False, cells=48)
    keys = [(row["path"], row["setting"], row["missions"]) for row in record["rows"]]
    assert keys == [
        ("host", "one process", 2),
        ("host", "2 processes", 2),
        ("device", "eager", 1),
        ("device", "eager", 2),
        ("device", "eager, fresh memory", 2),
    ]
    assert record["rows"][0]["over_host"] == 1.0
    for row in record["rows"]:
        assert row["team_step_ms"] > 0
        assert 0 < row["low"] <= row["over_host"] <= row["high"]
    assert len({row["bytes_per_mission"] for row in record["rows"]}) == 1


def test_the_pool_flies_what_one_process_flies() -> None:
    """Without processes: what is sent away comes back as it would have been."""

    class Here:
        map = staticmethod(map)

    alone, sent = mapping.stepping(SMALL, 2, Runtime()), mapping.pooled(SMALL, Here(), 2)
    for call in (alone, sent):
        for _ in range(3):
            call()
    states = [call.__closure__[[*call.__code__.co_freevars].index("state")].cell_contents for call in (alone, sent)]
    for (name, one), (_, other) in zip(*map(leaves, states), strict=True):
        assert torch.equal(one, other), name


def test_training_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "TRAINING", {**SMALL_MISSION, "updates": 1})
    record = mapping.missions_suite(3, "cpu")
    assert [row["setting"] for row in record["rows"]] == ["plain", "eager", "eager, bf16"]
    for row in record["rows"]:
        assert (row["moves"], row["passes"]) == (3 * 4 * 3, 2)
        assert row["s_per_300"] == pytest.approx(row["s"] * 300 / 36, rel=0.02, abs=0.01)
        assert row["over_original"] == pytest.approx(13.0 / row["s_per_300"], rel=0.1)
