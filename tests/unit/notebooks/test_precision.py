"""The tensors of an update in few digits against those of a learner in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from uavlab.experiment.config import Config, configure
from uavlab.runtime.runtime import Runtime
from uavlab_lab.lessons import precision
from uavlab_lab.lessons.precision import Probe, errors, scaled_gradients, train_probe, update_tensors

SMALL = {"hidden": 16, "batch": 32, "worlds": 8, "learning_starts": 64, "capacity": 256, "device": "cpu"}


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


def test_what_is_evaluated_does_not_move_the_learner(probe: Probe, config: Config) -> None:
    before = {name: value.clone() for name, value in probe.learner.state_dict().items()}
    checks: list[Callable[[], object]] = [lambda: errors(probe), lambda: scaled_gradients(probe, [1.0])]
    for check in checks:
        check()
    after: dict[str, Tensor] = probe.learner.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
