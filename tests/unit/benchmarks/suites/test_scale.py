"""Loads hold the gradients of an update as counted by hand; clocks are not judged."""

from typing import Any

import pytest

from tests.support.fixtures_config import TINY, sizes, tiny
from uavlab import training
from uavlab.benchmarks import bench
from uavlab.experiment.config import configure
from uavlab_lab.scaling import Link, Load, ring_seconds
from uavlab_lab.suites import scale
from uavlab_lab.suites.scale import CLUSTERS, SYSTEMS, measure_load, plan_row, scale_suite


def test_gradients_of_masac_by_hand() -> None:
    load = measure_load(tiny(), 2)
    # an actor of 7 observations, two layers of 8 units, and means and deviations of 2 actions; two critics of 2 x 7
    # observations and 4 actions; a temperature; all in 4 bytes, of both agents
    actor, critic = 8 * 8 + 9 * 8 + 9 * 4, 19 * 8 + 9 * 8 + 9
    assert load.gradient_bytes == 2 * 4 * (actor + 2 * critic + 1)
    assert load.reductions == 3


def test_each_minibatch_of_each_pass_is_a_sum() -> None:
    config = configure("spread", {**sizes("spread", "mappo"), "learner": "mappo", "epochs": 2, "minibatches": 2})
    load = measure_load(config, 2)
    assert load.reductions % 4 == 0  # of the actor, and of the critic
    once = measure_load(configure("spread", {**config.values, "epochs": 1, "minibatches": 1}), 2)
    assert load.gradient_bytes == 4 * once.gradient_bytes
    assert load.reductions == 4 * once.reductions


def test_an_update_is_its_share_of_a_whole_round(monkeypatch: pytest.MonkeyPatch) -> None:
    cycles: list[int] = []

    def make_cycle(*parts: Any) -> Any:
        cycle = training.make_cycle(*parts)
        return lambda: (cycles.append(1), cycle())

    def time_in_turn(calls: Any, *limits: Any, **more: Any) -> dict[str, list[float]]:
        cycles.clear()
        calls[""]()
        return {"": [12.0]}

    monkeypatch.setattr(scale, "make_cycle", make_cycle)
    monkeypatch.setattr(scale, "time_in_turn", time_in_turn)
    load = measure_load(tiny(interval=3, ratio=2), 3)
    assert len(cycles) == 6
    assert load.learner_s + load.collect_s == pytest.approx(12 / 6)
    assert load.collect_s > 0
    assert (load.reductions, load.interval) == (3, 3)


def test_a_row_by_hand() -> None:
    load = Load(0.018, collect_s=0.002, gradient_bytes=8e6)
    row = plan_row("x", load, "four", 4, Link(1e9, 1e-3))
    assert (row["update_ms"], row["steps_ms"], row["devices_ms"]) == (20.0, 2.0, 38.0)  # 18 ms around the ring
    assert row["gain"] == round(4 * 20 / 38, 2)
    assert (row["gradient_mb"], row["reductions"], row["devices"]) == (8.0, 1, 4)


def test_the_suite_plans_for_each_cluster_or_for_one_of_your_own() -> None:
    settings: dict[str, Any] = {name: TINY[name] for name in ("hidden", "batch", "worlds", "learning_starts")}
    rows = scale_suite(2, "cpu", ["leader_follower"], **settings)["rows"]
    assert [row["cluster"] for row in rows] == [*CLUSTERS]
    assert all(0 < row["gain"] <= row["devices"] for row in rows)
    (own,) = scale_suite(2, "cpu", ["leader_follower"], devices=3, gbit=8.0, latency=1000.0, **settings)["rows"]
    longer = own["devices_ms"] - own["update_ms"]
    size, steps = own["gradient_mb"] * 1e6, own["reductions"]
    assert longer == pytest.approx(1e3 * steps * ring_seconds(size / steps, 3, Link(1e9, 1e-3)), abs=0.01)


def test_systems_have_presets() -> None:
    assert [configure(preset).preset for preset in SYSTEMS.values()] == [*SYSTEMS.values()]


def test_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    record = bench("scale", rounds=1, device="cpu", presets=["spread"], devices=2)
    assert record["suite"] == "scale"
    assert len(record["rows"]) == 1
