"""Hyper-parameters of MASAC: ranges, labels and defaults that follow from what is learned."""

from dataclasses import fields
from typing import Any

import pytest

from uavlab.core.errors import ConfigError
from uavlab.core.registry import LEARNERS
from uavlab.experiment.config import configure
from uavlab.learners.masac.masac import MASACConfig


def test_labels_belong_to_settings() -> None:
    assert set(MASACConfig.labels) <= {field.name for field in fields(MASACConfig)}


@pytest.mark.parametrize(
    ("name", "value"),
    [("alpha", 0.0), ("reward_scale", 0.0), ("n_step", 0), ("lr_to", 1.5), ("critic", "both"), ("tau", 2.0)],
)
def test_values_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        configure("spread", {"learner": "masac", name: value})


def test_presets_with_large_rewards_set_their_own_scale() -> None:
    quick, own = (configure(name).learner for name in ("leader_follower_quick", "leader_follower"))
    assert (quick.reward_scale, quick.alpha, quick.alpha_lr) == (1.0, 1.0, 3e-4)
    assert (own.reward_scale, own.alpha, own.target_entropy) == (None, 0.1, None)


@pytest.mark.parametrize(("alpha", "advised"), [(1.0, [0.1, 0.1]), (5e-4, [None, 1e-4]), (1e-4, [None, None])])
def test_no_temperature_below_a_ten_thousandth_is_advised(alpha: float, advised: list[float | None]) -> None:
    config = configure("spread", {"learner": "masac", "alpha": alpha})
    remedies = LEARNERS["masac"].symptoms.remedies["entropy_high"]
    assert [each.value(config.learner, config.env.spec) for each in remedies if each.setting == "alpha"] == advised
