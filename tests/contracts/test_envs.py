"""Every registered environment, and every quirk of LeaderFollower, meets the contract of an environment."""

from dataclasses import fields, replace

import pytest

from tests.support.fixtures_mapping import SMALL, TINY_MISSION
from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower
from uavlab.envs.mapping.env import Mapping
from uavlab.envs.mapping.numpy_reference import HostMapping
from uavlab.experiment.build import ENVIRONMENTS, EPISODES
from uavlab.testing import check_env

STEPS = {"slow_leader_follower": 40, "mapping": 40}  # of slow worlds
SMALLER = {"mapping": TINY_MISSION}


@pytest.mark.parametrize("name", [name for name, entry in ENVIRONMENTS.items() if (entry.evaluation or EPISODES).flies])
def test_registered_environments(name: str) -> None:
    report = check_env(SMALLER.get(name, ENVIRONMENTS[name].kind()), steps=STEPS.get(name, 300))
    assert report.started >= 21


@pytest.mark.parametrize(
    "env",
    [
        PUBLISHED,
        LeaderFollower(followers=8, obstacles=5, obstacle_speed=20.0, sight=3, horizon=40),
        LeaderFollower(followers=2, lagged=True, dt=0.5, horizon=30, time_cost=0.2),
        LeaderFollower(followers=3, trailing=True, first_follower_only=True, follower_costs=False, horizon=1),
    ],
    ids=["published", "many", "lagged", "quirks"],
)
def test_variants_of_leader_follower(env: LeaderFollower) -> None:
    report = check_env(env, worlds=4, steps=80)
    assert report.truncated > 0 or env.horizon > 80


@pytest.mark.parametrize(
    "env",
    [
        replace(TINY_MISSION, uavs=6, reach=0.0, centred=True),
        replace(TINY_MISSION, lattice=3, starts="random", truth="fields", lagged=True, dropout=0.5),
        replace(TINY_MISSION, uavs=1, flip=(0.1,), measurements=2),
        HostMapping(**{field.name: getattr(SMALL, field.name) for field in fields(SMALL)}),
    ],
    ids=["crowded", "fields", "alone", "host"],
)
def test_variants_of_mapping(env: Mapping) -> None:
    report = check_env(env, worlds=3, steps=6)
    assert report.terminated > 0 or env.measurements > 7
