"""Every preset is valid, has a description, and changes a setting."""

import dataclasses

import pytest

from uavlab.core.registry import ENVIRONMENTS
from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower
from uavlab.experiment.config import configure
from uavlab.experiment.names import PRESETS, Preset, presets


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


TEMPLATES = {  # workers, environments of each, and the published sizes of a batch and of a minibatch
    "assignment_single_machine": (4, 2, 4000, 128),
    "assignment_multi_machine": (8, 1, 8000, 256),
    "assignment_dev": (2, 1, 1000, 64),
    "assignment_prod": (8, 2, 8000, 256),
    "assignment_debug": (1, 1, 100, 32),
}


@pytest.mark.parametrize(("name", "sizes"), TEMPLATES.items())
def test_templates_have_the_published_sizes(name: str, sizes: tuple[int, int, int, int]) -> None:
    config, (workers, each, batch, minibatch) = configure(name), sizes
    rows = config.source.worlds * config.source.rollout_steps
    assert config.source.worlds == workers * each
    assert rows == config.learner.minibatches * minibatch
    assert abs(rows - batch) < minibatch  # the nearest batch of whole minibatches for each world, or the one after it
    assert f"batches of {rows} decisions (published: {batch}), minibatches of {minibatch}" in presets()[name].about
    ends = config.source.rollout_steps / 6.18  # the mean length of an episode of random decisions, measured
    assert config.source.spares > ends


def test_templates_differ_in_how_often_they_score_and_save() -> None:
    names = ("assignment_dev", "assignment_prod", "assignment_debug")
    runs = [configure(name).run for name in names]
    assert [(run.evaluate_every, run.checkpoint_every) for run in runs] == [(10, 50), (100, 500), (1, 10)]
    assert [run.log_level for run in runs] == ["warning", "warning", "debug"]
    toggles = configure("assignment_prod").toggles
    assert (toggles.precision, toggles.compile) == ("bf16", "default")
    assert [configure(name).learner.epochs for name in ("assignment_single_machine", "assignment_multi_machine")] == [
        *(10, 5)
    ]
