"""Every preset is valid, has a description, and changes a setting."""

import dataclasses

import pytest

from uavlab.core.registry import ENVIRONMENTS
from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower
from uavlab.experiment.config import configure
from uavlab.experiment.presets import PRESETS, Preset, presets


def test_every_environment_is_a_preset_of_its_own() -> None:
    known = presets()
    assert set(known) == set(ENVIRONMENTS) | set(PRESETS)
    for name, env in ENVIRONMENTS.items():
        assert known[name] == Preset(name, f"{env} with its defaults.")
    assert configure("leader_follower").env == configure("leader_follower").evaluation == LeaderFollower()


@pytest.mark.parametrize("name", presets())
def test_each_is_valid_and_told_in_a_sentence(name: str) -> None:
    preset = presets()[name]
    assert preset.about.endswith(".")
    learner = {key: value for key, value in preset.values.items() if key == "learner"}
    others = {key: value for key, value in preset.values.items() if key not in learner}
    plain, default = (configure(preset.env, layer).values for layer in (learner, {}))
    repeated = [key for key, value in others.items() if plain[key] == value]
    assert repeated + [key for key, value in learner.items() if default[key] == value] == []
    assert configure(name).preset == name


def test_the_published_preset_is_tested_by_the_published_test() -> None:
    config = configure("leader_follower_published")
    names = [field.name for field in dataclasses.fields(PUBLISHED)]
    rewards = [n for n in names if n.endswith(("_reward", "_cost", "_bonus", "match_speed"))]  # no figure uses them
    assert dataclasses.replace(config.evaluation, **{n: getattr(PUBLISHED, n) for n in rewards}) == PUBLISHED
    assert (config.env.followers, config.env.dt) == (1, 1.0)


def test_a_batch_of_mapping_mappo_is_one_mission_in_each_world() -> None:
    config = configure("mapping_mappo")
    assert config.source.rollout_steps == config.env.spec.horizon
