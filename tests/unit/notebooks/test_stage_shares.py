"""Stages of runs under a monitor."""

from tests.support.fixtures_config import TINY
from uavlab_lab.lessons import stage_shares

PRESET = "leader_follower"


def test_stages_are_those_of_so_many_cycles() -> None:
    stages = stage_shares.measure_shares(PRESET, {"plain": {"update": "loop"}, "batched": {}}, TINY, cycles=3)
    assert list(stages) == ["plain", "batched"]
    for rows in stages.values():
        stages = {row["name"]: row for row in rows}
        assert {"environment", "draw", "store", "acting"} <= set(stages)
        assert stages["environment"]["calls"] == 3  # what came before the watch began does not count
        assert 0 < sum(row["share"] for row in rows) <= 1
