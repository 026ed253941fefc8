"""Numbers of few digits, worked out by hand, and the tensors of an update against those of another learner."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from uavlab.experiment.config import Config, configure
from uavlab.runtime.runtime import Runtime
from uavlab_notebooks import precision
from uavlab_notebooks.precision import (
    Probe,
    corrections,
    errors,
    follow_scale,
    follow_target,
    formats,
    scaled_gradients,
    spacing,
    train_probe,
    update_tensors,
)

SMALL = {"hidden": 16, "batch": 32, "worlds": 8, "learning_starts": 64, "capacity": 256, "device": "cpu"}


class TestNumbers:
    @pytest.mark.parametrize("dtype", list(precision.DTYPES.values()))
    @pytest.mark.parametrize("value", [0.5, 1.0, 3.0, 800.0])
    def test_spacing_is_the_distance_to_the_next(self, value: float, dtype: torch.dtype) -> None:
        here = torch.tensor(value, dtype=dtype)
        after = torch.nextafter(here, torch.tensor(math.inf, dtype=dtype)) if dtype != torch.float16 else None
        step = spacing(value, dtype)
        assert here + step == value + step > value
        assert here + step / 4 == value
        assert after is None or after.item() == value + step

    def test_formats(self) -> None:
        rows = {row["name"]: row for row in formats()}
        assert [row["bytes"] for row in rows.values()] == [4, 2, 2]
        assert (rows["bf16"]["at_800"], rows["fp16"]["at_800"]) == (4, 0.5)  # 512 x 2^-7, 512 x 2^-10
        assert (rows["fp16"]["largest"], rows["fp16"]["smallest"]) == (65504, 2**-14)

    def test_a_target_stops_where_its_step_is_half_the_spacing(self) -> None:
        exact = 1.1 - 0.1 * 0.99**1000
        assert follow_target(torch.float32, 0.01, 1000)[-1] == pytest.approx(exact, abs=1e-4)
        assert set(follow_target(torch.bfloat16, 0.01, 1000)) == {1.0}  # 0.001 < 2^-8
        assert 1.1 - follow_target(torch.float16, 0.01, 1000)[-1] == pytest.approx(2**-11 / 0.01, abs=2**-10)

    def test_corrections(self) -> None:
        for row in corrections([0.0, 0.5, 6.0]):
            exact = math.log(1 - math.tanh(row["u"]) ** 2)
            near = 0.1 if "plain" in row["formula"] else 1e-4
            if row["formula"] == "plain form, bf16" and row["u"] == 6:  # tanh rounds to 1: 1e-6 is left
                exact = math.log(1e-6)
            assert row["value"] == pytest.approx(exact, abs=near)
        assert len(corrections([1.0])) == 4


@pytest.fixture(scope="module")
def config() -> Config:
    return configure("leader_follower_quick", SMALL)


@pytest.fixture(scope="module")
def probe(config: Config) -> Probe:
    return train_probe(config, updates=3)


class TestErrors:
    def test_the_twin_is_the_learner_in_float64(self, probe: Probe) -> None:
        assert probe.exact.actor.parameter.dtype == torch.float64
        assert torch.equal(probe.exact.critic.parameter.float(), probe.learner.critic.parameter)

    def test_gradients_are_those_of_the_update(self, probe: Probe) -> None:
        result = update_tensors(probe.learner, Runtime(), probe.data, probe.noise)
        again = update_tensors(probe.learner, Runtime(), probe.data, probe.noise)  # it changes nothing
        assert all(torch.equal(result[name], again[name]) for name in result)
        small = 1e-3
        downhill = probe.learner.critic.parameter.detach() - small * result["critic gradient"]
        loss, _ = probe.learner.critic_loss(downhill, probe.data, result["targets"], None)
        expected = small * result["critic gradient"].square().sum().item()
        assert (result["critic loss"] - loss.detach()).item() == pytest.approx(expected, rel=0.2)

    def test_fewer_digits_err_more(self, probe: Probe) -> None:
        rows = errors(probe)
        error = {(row["tensor"], row["with"]): row["error"] for row in rows}
        tensors = {row["tensor"] for row in rows}
        assert len(rows) == 3 * len(tensors) + 2 == 20
        for name in tensors:
            assert error[name, "fp32"] < 1e-5
            assert error[name, "fp32"] < error[name, "fp16"] < error[name, "bf16"] < 0.1
        for name in ("critic gradient", "actor gradient"):
            assert error[name, "another batch"] > error[name, "bf16"]

    def test_a_twin_that_is_not_exact_would_be_seen(self, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
        def to_half(leaf: Tensor) -> Tensor:
            return leaf.half().double() if leaf.is_floating_point() else leaf

        monkeypatch.setattr(precision, "_to_double", to_half)
        assert max(row["error"] for row in errors(probe) if row["with"] == "fp32") > 1e-5


class TestScale:
    def test_a_scale_too_large_overflows_and_one_too_small_vanishes(self, probe: Probe) -> None:
        tiny, one, huge = scaled_gradients(probe, [2.0**-30, 1.0, 2.0**30])
        assert tiny["vanished"] > 0.5 > tiny["overflowed"] == 0
        assert one == {"scale": 1.0, "vanished": pytest.approx(0, abs=0.05), "overflowed": 0}
        assert huge["overflowed"] > 0.5

    def test_one_change_per_iteration(self) -> None:
        path = follow_scale("conservative", 2100)
        assert path == {"scale": [1024.0] * 1999 + [2048.0] * 101, "skipped": 0}
        assert max(follow_scale("conservative", 1999)["scale"]) == 1024

    def test_more_changes_per_iteration_grow_faster(self) -> None:
        assert follow_scale("conservative", 410, changes=5)["scale"] == [1024.0] * 399 + [2048.0] * 11

    def test_overflows_halve_it(self) -> None:
        path = follow_scale("aggressive", 4, largest=4.0)  # 4 x 2^16, 2^15 and 2^14 lie beyond 65504
        assert path == {"scale": [2.0**15, 2.0**14, 2.0**13, 2.0**13], "skipped": 3}
        assert follow_scale("conservative", 3, at={1}) == {"scale": [1024.0, 512.0, 512.0], "skipped": 1}


def test_what_is_evaluated_does_not_move_the_learner(probe: Probe, config: Config) -> None:
    before = {name: value.clone() for name, value in probe.learner.state_dict().items()}
    checks: list[Callable[[], object]] = [lambda: errors(probe), lambda: scaled_gradients(probe, [1.0])]
    for check in checks:
        check()
    after: dict[str, Tensor] = probe.learner.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
