"""Stages of runs under a monitor, runs that are watched and unwatched, and what a device is busy with."""

from typing import Any

import pytest

from tests.support.devices import DEVICES
from tests.support.fixtures_config import TINY
from uavlab.profiling.roofline import Ceilings
from uavlab.profiling.torch_profile import PYTHON
from uavlab_notebooks import stage_shares

PRESET = "leader_follower"
ROW = {"name": "update", "total_ms": 600.0, "share": 0.5}  # of 60 cycles: a cycle takes 600 / 0.5 / 60 = 20 ms

UPDATE = {"flop_per_s": 2e9, "bytes_per_s": 1e9}


def test_stages_are_those_of_so_many_cycles() -> None:
    stages = stage_shares.measure_shares(PRESET, {"plain": {"update": "loop"}, "batched": {}}, TINY, cycles=3)
    assert list(stages) == ["plain", "batched"]
    for rows in stages.values():
        stages = {row["name"]: row for row in rows}
        assert {"environment", "draw", "store", "acting"} <= set(stages)
        assert stages["environment"]["calls"] == 3  # what came before the watch began does not count
        assert 0 < sum(row["share"] for row in rows) <= 1


class TestWatching:
    @pytest.mark.parametrize("device", DEVICES)
    def test_it_changes_nothing(self, device: str) -> None:
        assert stage_shares.monitor_changes_nothing(PRESET, TINY, {"device": device}, cycles=2)

    def test_one_changed_number_would_be_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run_cycles = stage_shares.run_cycles

        def meddling(config: Any, cycles: int, monitor: Any = None) -> Any:
            learner = run_cycles(config, cycles, monitor)
            if monitor:
                learner.actor.parameter.data += 1e-6
            return learner

        monkeypatch.setattr(stage_shares, "run_cycles", meddling)
        assert not stage_shares.monitor_changes_nothing(PRESET, TINY, cycles=2)


def test_updates_are_weighed() -> None:
    loop, batched = stage_shares.weigh_updates(PRESET, {"loop": {"update": "loop"}, "batched": {}}, TINY)
    assert (loop["name"], batched["name"]) == ("loop", "batched")
    assert loop["operators"] > batched["operators"] > 0
    assert loop["flops"] > batched["flops"] > 0  # the loop evaluates actors again
    assert loop["ms"] > 0 < batched["bytes"]


class TestResidency:
    @pytest.fixture(autouse=True)
    def peak(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stage_shares, "ceilings", lambda device: Ceilings(rate=1e11, bandwidth=1e10, launch=1e-6))

    def shares(self, operators: list[dict[str, Any]]) -> list[float]:
        record = {"update": UPDATE, "operators": operators, "stages": [ROW]}
        return [row["share"] for row in stage_shares.utilisation(record)]

    def test_on_a_cpu_all_but_python(self) -> None:
        operators = [{"operator": PYTHON, "cpu_ms": 3.0, "share": 0.3}, {"operator": "mm", "cpu_ms": 5.0, "share": 0.5}]
        assert self.shares(operators) == pytest.approx([0.7, 0.02, 0.1])

    def test_on_a_gpu_the_kernels_time_of_a_cycle(self) -> None:
        operators = [
            {"operator": name, "cpu_ms": 9.0, "device_ms": ms, "share": 0.1} for name, ms in (("a", 3), ("b", 2))
        ]
        assert self.shares(operators) == pytest.approx([0.25, 0.02, 0.1])  # 5 of 20 ms

    def test_kernels_side_by_side_fill_no_more_than_all_of_it(self) -> None:
        assert self.shares([{"operator": "a", "cpu_ms": 9.0, "device_ms": 25.0, "share": 1.0}])[0] == 1
